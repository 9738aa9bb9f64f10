"""Weather: snow, frost and fog."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wildtta.corruptions import filters
from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the grey value (ITU-R BT.601)."""


def snow(images: Tensor, draws: Draws, *level: float) -> Tensor:
    """Whitened image under streaks of thresholded noise, twice (the second layer turned by 180 degrees).

    level: (mean, deviation, zoom, threshold) of the flakes, (radius, sigma) of their motion, weight of the
    unwhitened image.
    """
    mean, deviation, zoom, threshold, radius, sigma, blend = level
    height, width = images.shape[2:]
    flakes = draws.normal((height, width)).mul_(deviation).add_(mean).unsqueeze(1)
    layer = filters.clipped_zoom(flakes, zoom)
    layer = to_levels(torch.where(layer < threshold, 0.0, layer)).floor_()
    degrees = draws.uniform(()).mul_(90.0).sub_(135.0)
    layer = filters.motion_blur(layer, int(radius), sigma, degrees).div_(255.0)

    clean = to_unit(images, torch.float32)
    # Summed green, red, blue with multiply-adds fused in float64: on grey pictures the blended values often sit
    # on a grey level, where the last bit decides the truncation.
    weights = torch.tensor(LUMA, dtype=torch.float32).double().tolist()
    grey = torch.zeros_like(clean[:, :1])
    for channel in (1, 0, 2):
        grey = clean[:, channel : channel + 1].double().mul_(weights[channel]).add_(grey).float()
    whitened = torch.maximum(clean, grey.mul_(1.5).add_(0.5))
    base = clean.mul_(blend).add_(whitened.mul_(1.0 - blend))
    return to_levels(base + layer + layer.flip((2, 3)))


def frost(images: Tensor, draws: Draws, *level: float, textures: Sequence[Tensor]) -> Tensor:
    """Weighted sum with a random cut of one of the frost textures.

    level: (weight of the image, weight of the frost, scale at which the textures were loaded); ``textures``
    are the five that the official scripts choose from, each at least as large as the images.
    """
    image_weight, frost_weight, _ = level
    count, _, height, width = images.shape
    chosen = [textures[choice] for choice in draws.integers_below([len(textures)] * count)]
    tops = draws.integers_below([max(texture.shape[1] - height, 1) for texture in chosen])
    lefts = draws.integers_below([max(texture.shape[2] - width, 1) for texture in chosen])
    corners = zip(chosen, tops, lefts, strict=True)
    cuts = torch.stack([texture[:, top : top + height, left : left + width] for texture, top, left in corners])
    mixed = images.to(torch.float64).mul_(image_weight).add_(cuts.to(torch.float64).mul_(frost_weight))
    return mixed.clamp_(0.0, 255.0)


def fog(images: Tensor, draws: Draws, strength: float, decay: float) -> Tensor:
    """Plasma-fractal haze, rescaled to the clean maximum; ``decay`` is that of the plasma's detail."""
    height, width = images.shape[2:]
    side = 1 << (max(height, width) - 1).bit_length()
    haze = plasma_fractal(draws, side, decay)[:, None, :height, :width]
    clean = to_unit(images)
    brightest = clean.amax(dim=(1, 2, 3), keepdim=True)
    hazy = clean.add_(haze * strength)
    return to_levels(hazy.mul_(brightest).div_(brightest + strength))


def plasma_fractal(draws: Draws, side: int, decay: float) -> Tensor:
    """Periodic diamond-square height maps in [0, 1], float64 ``[N, side, side]``; side: a power of two.

    The noise of a level with amplitude ``a`` is ``a * U(-a, a)``: the amplitude enters squared and falls by
    ``decay`` squared per level.
    """
    amplitude, cells = 100.0, 1

    def noise() -> Tensor:
        return draws.uniform((cells, cells)).mul_(2.0 * amplitude).sub_(amplitude).mul_(amplitude)

    centres = noise()
    corners = torch.zeros_like(centres)
    while True:
        # Diamonds: the middle of a cell's upper edge first, then the middle of its left edge.
        upper = ((centres + centres.roll(1, 1)) + (corners + corners.roll(-1, 2))).div_(4.0).add_(noise())
        left = ((centres + centres.roll(1, 2)) + (corners + corners.roll(-1, 1))).div_(4.0).add_(noise())
        rows = [torch.stack(pair, dim=3).flatten(2) for pair in ((corners, upper), (left, centres))]
        corners = torch.stack(rows, dim=2).flatten(1, 2)
        cells, amplitude = 2 * cells, amplitude / decay
        if cells == side:
            break
        vertical = corners + corners.roll(-1, 1)
        centres = (vertical + vertical.roll(-1, 2)).div_(4.0).add_(noise())
    corners = corners - corners.amin(dim=(1, 2), keepdim=True)
    return corners / corners.amax(dim=(1, 2), keepdim=True)
