"""Digital: brightness, contrast, saturate, elastic transform and pixelate."""

from __future__ import annotations

import torch
from torch import Tensor

from wildtta.corruptions import filters
from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit


def brightness(images: Tensor, draws: Draws, offset: float) -> Tensor:
    """Offset of the value channel."""
    hue, saturation, value = rgb_to_hsv(to_unit(images))
    return to_levels(hsv_to_rgb(hue, saturation, value.add_(offset).clamp_(0.0, 1.0)))


def saturate(images: Tensor, draws: Draws, factor: float, offset: float) -> Tensor:
    """Affine map of the saturation channel."""
    hue, saturation, value = rgb_to_hsv(to_unit(images))
    saturation = saturation.mul_(factor).add_(offset).clamp_(0.0, 1.0)
    return to_levels(hsv_to_rgb(hue, saturation, value))


def rgb_to_hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in [0, 1), saturation and value of unit RGB ``[N, 3, H, W]``, as scikit-image; grey has hue 0."""
    red, green, blue = rgb.unbind(1)
    value = rgb.amax(dim=1)
    spread = value - rgb.amin(dim=1)
    flat = spread == 0
    divisor = torch.where(flat, 1.0, spread)
    saturation = torch.where(flat, 0.0, spread / torch.where(flat, 1.0, value))
    hue = torch.where(
        blue == value,
        4.0 + (red - green) / divisor,
        torch.where(green == value, 2.0 + (blue - red) / divisor, (green - blue) / divisor),
    )
    hue = torch.where(flat, 0.0, (hue / 6.0).remainder(1.0))
    return hue, saturation, value


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse: six sectors of the hue circle."""
    sector = torch.floor(hue * 6.0)
    fraction = hue * 6.0 - sector
    low = value * (1.0 - saturation)
    falling = value * (1.0 - fraction * saturation)
    rising = value * (1.0 - (1.0 - fraction) * saturation)
    which = sector.to(torch.int64).remainder_(6).unsqueeze(1)
    candidates = torch.stack((value, rising, falling, low), dim=1)
    # Per channel, which of (value, rising, falling, low) holds in sectors 0 to 5.
    order = torch.tensor([[0, 2, 3, 3, 1, 0], [1, 0, 0, 2, 3, 3], [3, 3, 1, 0, 0, 2]], device=hue.device)
    return torch.cat([candidates.gather(1, channel[which]) for channel in order], dim=1)


def contrast(images: Tensor, draws: Draws, factor: float) -> Tensor:
    """Shrink towards each channel's mean. Sums of integers are exact in any order."""
    sums = images.sum(dim=(2, 3), keepdim=True, dtype=torch.int64)
    mean = sums.to(torch.float64) / (255.0 * images[0, 0].numel())
    return to_levels(to_unit(images).sub_(mean).mul_(factor).add_(mean))


def pixelate(images: Tensor, draws: Draws, share: float) -> Tensor:
    """Box-filter to a share of the side and back."""
    height, width = images.shape[2:]
    small = filters.box_resize(images, max(int(height * share), 1), max(int(width * share), 1))
    return filters.box_resize(small, height, width)


def elastic_transform(images: Tensor, draws: Draws, amplitude: float, sigma: float, half_range: float) -> Tensor:
    """A random affine map, then a smooth random displacement of every pixel.

    ``amplitude`` and ``sigma`` belong to the displacement, ``half_range`` to the map's three points.
    """
    height, width = images.shape[2:]
    clean = to_unit(images, torch.float32)
    warped = _random_affine(clean, draws.uniform((3, 2)), half_range)
    shifts = torch.stack([draws.uniform((height, width)) for _ in range(2)], dim=1).mul_(2.0).sub_(1.0)
    # A Gaussian filter that may be wider than the field: two matrix products. Images are multiplied one by one,
    # as the shape of a product selects the library's algorithm, hence perhaps the last bit.
    left = filters.gaussian_operator(height, sigma, 3.0, "symmetric", images.device)
    right = filters.gaussian_operator(width, sigma, 3.0, "symmetric", images.device).T.contiguous()
    smooth = torch.stack([torch.matmul(torch.matmul(left, field), right) for field in shifts])
    columns, rows = smooth.mul_(amplitude).to(torch.float32).to(torch.float64).unbind(1)
    grid_rows = torch.arange(height, device=images.device, dtype=torch.float64)[:, None]
    grid_columns = torch.arange(width, device=images.device, dtype=torch.float64)[None, :]
    moved = filters.bilinear_sample(warped, rows + grid_rows, columns + grid_columns, "symmetric")
    return to_levels(moved.to(torch.float32))


def _random_affine(images: Tensor, uniform: Tensor, half_range: float) -> Tensor:
    """Warp by the affine map that moves three corners of the central square by ``half_range`` at most."""
    height, width = images.shape[2:]
    side = min(height, width) // 3
    shift = uniform.mul(2.0 * half_range).sub_(half_range).to(torch.float32)
    centre = torch.tensor([width // 2, height // 2], dtype=torch.float32, device=images.device)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float32, device=images.device)
    corners = centre + signs * side
    moved = (corners + shift).to(torch.float64)
    # The corners differ along one axis at a time: differences of moved corners are the map's columns.
    along_y = (moved[:, 0] - moved[:, 1]) / (2.0 * side)
    along_x = (moved[:, 1] - moved[:, 2]) / (2.0 * side)
    origin = moved[:, 1] - along_x * corners[1, 0].double() - along_y * corners[1, 1].double()
    (right, down), (across, below), (left, top) = (pair.T[:, :, None, None] for pair in (along_x, along_y, origin))
    determinant = right * below - across * down
    columns = torch.arange(width, device=images.device, dtype=torch.float64) - left
    rows = torch.arange(height, device=images.device, dtype=torch.float64)[:, None] - top
    source_columns = (columns * below - rows * across) / determinant
    source_rows = (rows * right - columns * down) / determinant
    return filters.bilinear_sample(images, source_rows, source_columns, "mirror").to(torch.float32)
