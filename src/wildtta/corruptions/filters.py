"""Deterministic image operators shared by the corruptions: borders, Gaussian filters, resampling, motion.

All sums run in a fixed order over elementwise operations. That keeps a result independent of the batch
(library convolutions choose their algorithm by shape) and, in float64, equal to what the official scripts'
libraries compute even where a flat region makes the final truncation decide on the last bit.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Border = Literal["edge", "symmetric", "mirror"]
"""``edge``: aaa|abcd; ``symmetric``: cba|abcd (the edge is repeated); ``mirror``: dcb|abcd (it is not)."""


def to_unit(images: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """8-bit values as floats from 0 to 1."""
    return images.to(dtype).div_(255.0)


def to_levels(values: Tensor) -> Tensor:
    """Floats cut to [0, 1], as grey levels from 0 to 255; in place."""
    return values.clamp_(0.0, 1.0).mul_(255.0)


def border_index(positions: Tensor, length: int, border: Border) -> Tensor:
    """Map integer positions, possibly outside ``[0, length)``, to positions inside by the border rule."""
    if border == "edge" or length == 1:
        return positions.clamp(0, length - 1)
    period = 2 * length if border == "symmetric" else 2 * length - 2
    last = period - 1 if border == "symmetric" else period
    wrapped = positions.remainder(period)
    return torch.minimum(wrapped, last - wrapped)


def pad(images: Tensor, radius: int, border: Border, axes: tuple[int, ...] = (-2, -1)) -> Tensor:
    """Extend the axes by ``radius`` on both sides."""
    for axis in axes:
        length = images.shape[axis]
        positions = torch.arange(-radius, length + radius, device=images.device)
        images = images.index_select(axis, border_index(positions, length, border))
    return images


def gaussian_weights(sigma: float, truncate: float) -> npt.NDArray[np.float64]:
    """``w[0] .. w[r]`` of the sampled, normalised Gaussian of radius ``r = int(truncate * sigma + 0.5)``."""
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 / (sigma * sigma) * offsets**2) if sigma > 0 else np.ones(1)
    weights = weights / weights.sum()
    return np.asarray(weights[radius:], dtype=np.float64)


def gaussian_blur(images: Tensor, sigma: float, *, truncate: float = 4.0, border: Border = "edge") -> Tensor:
    """Gaussian filter of the last two axes, rows first; pairs of taps are summed from the outermost in."""
    weights = gaussian_weights(sigma, truncate).tolist()
    radius = len(weights) - 1
    for axis in (-2, -1):
        length = images.shape[axis]
        padded = pad(images, radius, border, (axis,)).to(torch.float64)
        total = padded.narrow(axis, radius, length) * weights[0]
        for offset in range(radius, 0, -1):
            pair = padded.narrow(axis, radius - offset, length) + padded.narrow(axis, radius + offset, length)
            total.add_(pair.mul_(weights[offset]))
        images = total.to(images.dtype)
    return images


@functools.lru_cache(maxsize=32)
def gaussian_operator(length: int, sigma: float, truncate: float, border: Border, device: torch.device) -> Tensor:
    """The Gaussian filter of a line of samples as a dense matrix, for kernels as wide as the line."""
    half = gaussian_weights(sigma, truncate)
    radius = len(half) - 1
    positions = torch.arange(length)[:, None] + torch.arange(-radius, radius + 1)[None, :]
    weights = torch.from_numpy(np.concatenate((half[:0:-1], half))).expand(length, -1)
    operator = torch.zeros(length, length, dtype=torch.float64)
    operator.scatter_add_(1, border_index(positions, length, border), weights)
    return operator.to(device)


def clipped_zoom(images: Tensor, zoom: float) -> Tensor:
    """Enlarge the centre of the last two axes by ``zoom`` at constant size, bilinearly, in float64.

    Of every line, ``ceil(length / zoom)`` samples are stretched with their end points aligned, as
    ``scipy.ndimage.zoom`` does, and trimmed back to ``length``.
    """
    result = images.to(torch.float64)
    if zoom == 1.0:
        return result
    for axis in (-2, -1):
        length = images.shape[axis]
        crop = math.ceil(length / zoom)
        stretched = round(crop * zoom)
        trim = (stretched - length) // 2
        coordinates = np.arange(trim, trim + length) * ((crop - 1) / (stretched - 1) if stretched > 1 else 0.0)
        left = np.minimum(np.floor(coordinates).astype(np.int64), max(crop - 2, 0))
        weight = torch.from_numpy(coordinates - left).to(images.device).reshape((-1, 1) if axis == -2 else (-1,))
        first = torch.from_numpy(left + (length - crop) // 2).to(images.device)
        before = result.index_select(axis, first)
        after = result.index_select(axis, (first + 1).clamp_(max=length - 1))
        result = before.mul_(1.0 - weight).add_(after.mul_(weight))
    return result


def bilinear_sample(images: Tensor, rows: Tensor, columns: Tensor, border: Border) -> Tensor:
    """Bilinear values of ``images`` [N, C, H, W] at float64 coordinates [N, H', W'], with the border rule."""
    count, channels, height, width = images.shape
    top, left = rows.floor(), columns.floor()
    row_weight, column_weight = (rows - top).unsqueeze(1), (columns - left).unsqueeze(1)
    flat = images.reshape(count, channels, height * width)

    def value_at(down: int, across: int) -> Tensor:
        row = border_index(top.long() + down, height, border)
        column = border_index(left.long() + across, width, border)
        index = (row * width + column).reshape(count, 1, -1).expand(-1, channels, -1)
        return flat.gather(2, index).reshape(count, channels, *rows.shape[1:]).to(torch.float64)

    upper, lower = (value_at(down, 0) * (1.0 - column_weight) + value_at(down, 1) * column_weight for down in (0, 1))
    return upper * (1.0 - row_weight) + lower * row_weight


def motion_blur(images: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """One-sided motion blur of 8-bit values by one angle per image, as ImageMagick (16-bit) computes it.

    ``2 * radius + 1`` taps ``exp(-i^2 / (2 sigma^2))`` are read at ``(x + ceil(i cos a - 1/2), y + ceil(i sin
    a - 1/2))`` with clamped edges; the sum is rounded to 16 bits and truncated to 8. Takes and returns
    float64 ``[N, C, H, W]``.
    """
    count, channels, height, width = images.shape
    taps = 2 * radius + 1
    weights = np.exp(-(np.arange(taps) ** 2) / (2.0 * sigma * sigma))
    weights /= weights.sum()
    angle = torch.deg2rad(degrees.to(torch.float64))[:, None]
    steps = torch.arange(taps, dtype=torch.float64, device=images.device)
    reach = taps - 1
    stride = width + 2 * reach
    flat = pad(images, reach, "edge").reshape(count, channels, -1)
    row = torch.arange(reach, reach + height, device=images.device)[:, None]
    column = torch.arange(reach, reach + width, device=images.device)[None, :]
    centre = (row * stride + column).reshape(1, -1)
    shift = torch.ceil(steps * angle.sin() - 0.5).long() * stride + torch.ceil(steps * angle.cos() - 0.5).long()
    total = torch.zeros(count, channels, height * width, dtype=torch.float64, device=images.device)
    for tap in range(taps):
        index = (centre + shift[:, tap : tap + 1]).unsqueeze(1).expand(-1, channels, -1)
        total.add_(flat.gather(2, index).mul_(float(weights[tap])))
    quantum = total.mul_(257.0).add_(0.5).floor_()
    return quantum.div_(257.0).floor_().reshape(images.shape)


def _box_taps(length: int, size: int) -> tuple[Tensor, Tensor]:
    """Source positions and weights ``[taps, size]``; weights have 22 fractional bits, as Pillow's."""
    scale = length / size
    reach = 0.5 * max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale
    first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    stop = np.minimum((centres + reach + 0.5).astype(np.int64), length)
    taps = int((stop - first).max())
    positions = first[None, :] + np.arange(taps)[:, None]
    distance = (positions - centres + 0.5) / max(scale, 1.0)
    inside = (positions < stop) & (distance > -0.5) & (distance <= 0.5)
    weights = inside / inside.sum(axis=0, keepdims=True)
    fixed_point = (weights * (1 << 22) + 0.5).astype(np.int32)
    return torch.from_numpy(np.minimum(positions, length - 1)), torch.from_numpy(fixed_point)


def box_resize(images: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 images with Pillow's BOX filter: columns first, each pass rounded to 8 bits."""
    for axis, size in ((3, width), (2, height)):
        total = torch.tensor(1 << 21, dtype=torch.int32, device=images.device)
        for position, weight in zip(*_box_taps(images.shape[axis], size), strict=True):
            taken = images.index_select(axis, position.to(images.device)).to(torch.int32)
            total = total + taken * weight.to(images.device).reshape((-1, 1) if axis == 2 else (-1,))
        images = (total >> 22).to(torch.uint8)
    return images
