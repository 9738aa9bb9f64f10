"""Digital: brightness, contrast, saturate, elastic transform and pixelate."""

from __future__ import annotations

import torch
from torch import Tensor

from wildtta.corruptions import filters
from wildtta.corruptions.constants import Level
from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit


def brightness(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """Offset of the value channel; level: (offset,)."""
    (offset,) = level
    hue, saturation, value = rgb_to_hsv(to_unit(images))
    return to_levels(hsv_to_rgb(hue, saturation, value.add_(offset).clamp_(0.0, 1.0)))


def saturate(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """Affine map of the saturation channel; level: (factor, offset)."""
    factor, offset = level
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


def contrast(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """Shrink towards each channel's mean; level: (factor,). Sums of integers are exact in any order."""
    (factor,) = level
    pixels = images.shape[2] * images.shape[3]
    sums = images.sum(dim=(2, 3), keepdim=True, dtype=torch.int64)
    mean = sums.to(torch.float64) / (255.0 * pixels)
    return to_levels(to_unit(images).sub_(mean).mul_(factor).add_(mean))


def pixelate(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """Box-filter to a share of the side and back; level: (share,)."""
    (share,) = level
    height, width = images.shape[2:]
    small = filters.box_resize(images, max(int(height * share), 1), max(int(width * share), 1))
    return filters.box_resize(small, height, width)


def elastic_transform(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """A random affine map, then a smooth random displacement of every pixel.

    level: (amplitude and smoothness sigma of the displacement, half-range of the affine map's three points).
    """
    amplitude, sigma, half_range = level
    height, width = images.shape[2:]
    clean = to_unit(images, torch.float32)
    warped = _random_affine(clean, draws.uniform((3, 2)), half_range)
    shifts = torch.stack([draws.uniform((height, width)) for _ in range(2)], dim=1).mul_(2.0).sub_(1.0)
    columns, rows = _smooth(shifts, sigma).mul_(amplitude).to(torch.float32).to(torch.float64).unbind(1)
    grid_rows = torch.arange(height, device=images.device, dtype=torch.float64)[:, None]
    grid_columns = torch.arange(width, device=images.device, dtype=torch.float64)[None, :]
    moved = filters.bilinear_sample(warped, rows + grid_rows, columns + grid_columns, "symmetric")
    return to_levels(moved.to(torch.float32))


def _smooth(fields: Tensor, sigma: float) -> Tensor:
    """Gaussian filter truncated at 3 sigma, perhaps wider than the field: two matrix products per image.

    Images are multiplied one by one: the shape of a product selects the library's algorithm, so a batched
    product could differ in the last bit from one batch size to the next.
    """
    height, width = fields.shape[2:]
    left = filters.gaussian_operator(height, sigma, 3.0, "symmetric", fields.device)
    right = filters.gaussian_operator(width, sigma, 3.0, "symmetric", fields.device).T.contiguous()
    return torch.stack([torch.matmul(torch.matmul(left, field), right) for field in fields])


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
    determinant = along_x[:, 0] * along_y[:, 1] - along_y[:, 0] * along_x[:, 1]

    def spread(values: Tensor) -> Tensor:
        return values[:, None, None]

    columns = torch.arange(width, device=images.device, dtype=torch.float64)[None, None, :] - spread(origin[:, 0])
    rows = torch.arange(height, device=images.device, dtype=torch.float64)[None, :, None] - spread(origin[:, 1])
    source_columns = (columns * spread(along_y[:, 1]) - rows * spread(along_y[:, 0])) / spread(determinant)
    source_rows = (rows * spread(along_x[:, 0]) - columns * spread(along_x[:, 1])) / spread(determinant)
    return filters.bilinear_sample(images, source_rows, source_columns, "mirror").to(torch.float32)
