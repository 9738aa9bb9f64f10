"""Noise: Gaussian, shot, impulse and speckle. Each value of each channel is disturbed on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from wildtta.corruptions.constants import Level
from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit


def gaussian_noise(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """``clip(x + sigma * n, 0, 1)``; level: (sigma,)."""
    (sigma,) = level
    noise = draws.normal(tuple(images.shape[1:])).mul_(sigma)
    return to_levels(to_unit(images).add_(noise))


def speckle_noise(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """``clip(x + x * sigma * n, 0, 1)``; level: (sigma,)."""
    (sigma,) = level
    clean = to_unit(images)
    noise = draws.normal(tuple(images.shape[1:])).mul_(sigma)
    return to_levels(clean + clean * noise)


def shot_noise(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """``clip(Poisson(c * x) / c, 0, 1)``; level: (c,), the photons of a white pixel."""
    (scale,) = level
    return to_levels(draws.poisson(images, scale).div_(scale))


def impulse_noise(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """Salt and pepper in equal parts, per channel value; level: (share of the values that are replaced,)."""
    (amount,) = level
    shape = tuple(images.shape[1:])
    replaced = draws.uniform(shape) <= amount
    salt = draws.uniform(shape) <= 0.5
    extremes = salt.to(torch.uint8).mul_(255)
    return torch.where(replaced, extremes, images)
