"""Blur: defocus, glass, motion, zoom and Gaussian."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.corruptions import filters
from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit


def gaussian_blur(images: Tensor, draws: Draws, sigma: float) -> Tensor:
    """Gaussian filter; ``sigma`` in pixels."""
    return to_levels(filters.gaussian_blur(to_unit(images), sigma))


@functools.lru_cache(maxsize=32)
def disk_kernel(radius: float, alias_sigma: float) -> npt.NDArray[np.float64]:
    """A disk, normalised, then smoothed by a small Gaussian that mirrors at the kernel's own border.

    Smoothing comes after normalisation and a disk that touches the border gains mass by the mirror, so the
    sum exceeds 1 for the two largest disks: a property of the published data that is kept.
    """
    half, reach = (8, 1) if radius <= 8 else (int(radius), 2)
    axis = np.arange(-half, half + 1)
    disk = (axis[None, :] ** 2 + axis[:, None] ** 2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    taps = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2.0 * alias_sigma**2))
    taps = (taps / taps.sum()).astype(np.float32).astype(np.float64)
    kernel = disk.astype(np.float64)
    for _ in range(2):
        mirrored = np.pad(kernel, ((reach, reach), (0, 0)), mode="reflect")
        kernel = sum(tap * mirrored[row : row + 2 * half + 1] for row, tap in enumerate(taps)).T
    return kernel.astype(np.float32).astype(np.float64)


def defocus_blur(images: Tensor, draws: Draws, radius: float, alias_sigma: float) -> Tensor:
    """Correlation with a smoothed disk, mirrored borders.

    The kernel is symmetric in both axes, so columns at equal distance are added first and rows at equal
    distance last: a quarter of the multiplications.
    """
    kernel = disk_kernel(radius, alias_sigma)
    half = kernel.shape[0] // 2
    # Weights of 1e-9 and less (the tails of a narrow smoothing) move no value by 1e-6 grey levels.
    quarter = np.where(kernel[half:, half:] > 1e-9, kernel[half:, half:], 0.0)
    reach = int(np.flatnonzero(quarter.any(axis=0))[-1])
    height, width = images.shape[2:]
    padded = filters.pad(images, reach, "mirror").to(torch.float64)
    columns = [padded.narrow(3, reach, width)]
    sides = ((padded.narrow(3, reach - i, width), padded.narrow(3, reach + i, width)) for i in range(1, reach + 1))
    columns.extend(left + right for left, right in sides)
    total = torch.zeros(images.shape, dtype=torch.float64, device=images.device)
    for offset, weights in enumerate(quarter[: reach + 1].tolist()):
        row = columns[0] * weights[0]
        for column, weight in zip(columns[1:], weights[1 : reach + 1], strict=True):
            if weight:
                row.add_(column * weight)
        total.add_(row.narrow(2, reach - offset, height))
        if offset:
            total.add_(row.narrow(2, reach + offset, height))
    return total.clamp_(0.0, 255.0)


def glass_blur(images: Tensor, draws: Draws, sigma: float, reach: float, iterations: float) -> Tensor:
    """Gaussian filter, local shuffling by copies, Gaussian filter."""
    count, channels, height, width = images.shape
    blurred = filters.gaussian_blur(to_unit(images), sigma)
    flat = blurred.mul_(255.0).to(torch.uint8).reshape(count, channels, -1)
    for _ in range(int(iterations)):
        source = copy_sources(draws, int(reach), height, width)
        flat = flat.gather(2, source.unsqueeze(1).expand(-1, channels, -1))
    return to_levels(filters.gaussian_blur(to_unit(flat.reshape(images.shape)), sigma))


def copy_sources(draws: Draws, reach: int, height: int, width: int) -> Tensor:
    """For every pixel, the pixel whose old value it holds after one pass of copies; int64 ``[N, H * W]``.

    The pass visits rows and columns from ``side - reach`` down to ``reach + 1`` and overwrites each pixel by
    the *current* value of a neighbour, at offsets in ``[-reach, reach - 1]``. A neighbour that was visited
    before (a later position) already holds what it copied, so its own source must be followed; any other
    neighbour still holds its old value. Following is a walk along strictly increasing positions, resolved for
    all pixels at once by pointer doubling.
    """
    rows = torch.arange(height - reach, reach, -1)
    columns = torch.arange(width - reach, reach, -1)
    visited = (rows[:, None] * width + columns[None, :]).reshape(-1)
    offsets = draws.integers(-reach, reach, (visited.numel(), 2))
    device = offsets.device
    visited = visited.to(device)
    neighbour = visited + offsets[:, :, 1] * width + offsets[:, :, 0]

    pixels = height * width
    is_visited = torch.zeros(pixels, dtype=torch.bool, device=device)
    is_visited[visited] = True
    holds_copy = is_visited[neighbour] & (neighbour > visited)
    # Nodes 0 .. pixels-1 are pixels after the pass, the others their old values, where walks end.
    old_values = torch.arange(pixels, 2 * pixels, device=device)
    following = old_values.repeat(offsets.shape[0], 1)
    following[:, visited] = torch.where(holds_copy, neighbour, neighbour + pixels)
    end = old_values.expand(offsets.shape[0], -1)
    while bool((following < pixels).any()):
        following = torch.cat((following, end), dim=1).gather(1, following)
    return following - pixels


def motion_blur(images: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """Motion at a random angle between -45 and 45 degrees."""
    degrees = draws.uniform(()).mul_(90.0).sub_(45.0)
    return filters.motion_blur(images.to(torch.float64), int(radius), sigma, degrees)


def zoom_blur(images: Tensor, draws: Draws, end: float, step: float) -> Tensor:
    """Mean of the image and its enlargements by factors from 1 to ``end``, float32.

    The factor 1 is among them, so the clean image counts twice.
    """
    clean = to_unit(images, torch.float32)
    factors = np.arange(1.0, end, step)
    total = torch.zeros_like(clean)
    for factor in factors:
        total.add_(filters.clipped_zoom(clean, float(factor)).to(torch.float32))
    return to_levels(total.add_(clean).div_(len(factors) + 1))
