"""Spatter: drops of water or splashes of mud on the lens.

The water path is a chain of 8-bit image operators (edges, distances, equalisation). They are written out here
with the rounding and border rules of the library that the official script used, batched over images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from wildtta.corruptions import filters
from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit

WATER_COLOUR = (175, 238, 238)
MUD_COLOUR = (63, 42, 20)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))


def spatter(images: Tensor, draws: Draws, *level: float) -> Tensor:
    """Liquid where smoothed noise exceeds a threshold.

    level: (mean, deviation, smoothing sigma, threshold) of the liquid, then the water's intensity or the
    sigma of the mud's edge, then 0 for water and 1 for mud.
    """
    mean, deviation, sigma, threshold, strength, kind = level
    height, width = images.shape[2:]
    noise = draws.normal((height, width)).to(torch.float64).mul_(deviation).add_(mean)
    liquid = filters.gaussian_blur(noise, sigma)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    clean = to_unit(images, torch.float32)
    colour = to_unit(torch.tensor(MUD_COLOUR if kind else WATER_COLOUR), torch.float32)
    colour = colour.reshape(3, 1, 1).to(images.device)
    if not kind:
        return to_levels(clean + _drops(liquid).mul_(strength).unsqueeze(1) * colour)
    cover = filters.gaussian_blur((liquid > threshold).to(torch.float32), strength)
    cover = torch.where(cover < 0.8, 0.0, cover).unsqueeze(1)
    return to_levels(clean * (1.0 - cover) + colour * cover)


def _drops(liquid: Tensor) -> Tensor:
    """How much light the water's relief adds to every pixel, from 0 to 1."""
    drops = liquid.mul(255.0).to(torch.uint8).to(torch.int32)
    distance = chamfer_distance(canny_edges(drops, 50, 150), 20.0)
    relief = box_mean(distance.to(torch.float64)).floor_().to(torch.int32)
    relief = correlate(equalise_histogram(relief), _EMBOSS).clamp_(0, 255)
    relief = box_mean(relief.to(torch.float64)).add_(0.5).floor_()
    mask = (drops * relief).to(torch.float32)
    peak = mask.amax(dim=(1, 2), keepdim=True)
    return mask / torch.where(peak > 0, peak, 1.0)


def correlate(planes: Tensor, kernel: tuple[tuple[int, ...], ...], border: filters.Border = "mirror") -> Tensor:
    """3 x 3 correlation on ``[N, H, W]``."""
    padded, (height, width) = filters.pad(planes, 1, border), planes.shape[1:]
    total = torch.zeros_like(planes)
    for row, weights in enumerate(kernel):
        for column, weight in enumerate(weights):
            total.add_(padded[:, row : row + height, column : column + width] * weight)
    return total


def box_mean(planes: Tensor) -> Tensor:
    """Mean over 3 x 3 windows with mirrored borders."""
    mean = correlate(planes, ((1, 1, 1),) * 3).div_(9.0)
    # Rounded to float32: a mean that equals an integer must not fall below it by the division.
    return mean.to(torch.float32).to(torch.float64)


def equalise_histogram(planes: Tensor) -> Tensor:
    """Histogram equalisation of 8-bit planes: the darkest level to 0, the rest by cumulative share to 255."""
    flat = planes.reshape(planes.shape[0], -1).to(torch.int64)
    counts = torch.zeros(flat.shape[0], 256, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    darkest = flat.amin(dim=1, keepdim=True)
    first = counts.gather(1, darkest)
    rest = flat.shape[1] - first
    scale = (255.0 / rest.clamp(min=1).to(torch.float32)).to(torch.float32)
    table = torch.round((counts.cumsum(dim=1) - first).to(torch.float32) * scale).clamp_(0, 255)
    table = torch.where(rest == 0, darkest.to(torch.float32), table)
    return table.gather(1, flat).reshape(planes.shape).to(planes.dtype)


def canny_edges(planes: Tensor, low: int, high: int) -> Tensor:
    """Canny's edges of 8-bit planes ``[N, H, W]``: 3 x 3 Sobel, L1 magnitude, thinning, hysteresis; bool."""
    across = correlate(planes, ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)), "edge")
    down = correlate(planes, ((-1, -2, -1), (0, 0, 0), (1, 2, 1)), "edge")
    magnitude = across.abs() + down.abs()
    height, width = magnitude.shape[1:]
    around = F.pad(magnitude, (1, 1, 1, 1))

    def shifted(row: int, column: int) -> Tensor:
        return around[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    # The direction's sector by its tangent: tan(22.5°) in 15-bit fixed point, tan(67.5°) = tan(22.5°) + 2.
    horizontal, vertical = across.abs().long(), down.abs().long() << 15
    shallow = horizontal * round(math.tan(math.pi / 8) * (1 << 15))
    steep = shallow + (horizontal << 16)
    falling = (across ^ down) >= 0
    along_row = (magnitude > shifted(0, -1)) & (magnitude >= shifted(0, 1))
    along_column = (magnitude > shifted(-1, 0)) & (magnitude >= shifted(1, 0))
    along_falling = (magnitude > shifted(-1, -1)) & (magnitude > shifted(1, 1))
    along_rising = (magnitude > shifted(-1, 1)) & (magnitude > shifted(1, -1))
    diagonal = torch.where(falling, along_falling, along_rising)
    thin = torch.where(vertical < shallow, along_row, torch.where(vertical > steep, along_column, diagonal))
    weak = thin & (magnitude > low)
    edges = weak & (magnitude > high)
    while True:
        grown = F.max_pool2d(edges.to(torch.float32), 3, stride=1, padding=1).to(torch.bool) & weak
        if bool((grown == edges).all()):
            return edges
        edges = grown


def chamfer_distance(edges: Tensor, limit: float) -> Tensor:
    """Distance to the nearest edge by steps of length 1, 1.4 and 2.1969, cut at ``limit``; float32."""
    steps = [(row, column, 1.0) for row, column in ((0, 1), (0, -1), (1, 0), (-1, 0))]
    steps += [(row, column, 1.4) for row in (1, -1) for column in (1, -1)]
    steps += [(row * a, column * b, 2.1969) for a, b in ((1, 2), (2, 1)) for row in (1, -1) for column in (1, -1)]
    distance = torch.where(edges, 0.0, limit).to(torch.float32)
    height, width = distance.shape[1:]
    while True:
        around = F.pad(distance, (2, 2, 2, 2), value=limit)
        shorter = distance
        for row, column, length in steps:
            neighbour = around[:, 2 + row : 2 + row + height, 2 + column : 2 + column + width]
            shorter = torch.minimum(shorter, neighbour + length)
        if bool((shorter == distance).all()):
            return distance
        distance = shorter
