"""Noise: Gaussian, shot, impulse and speckle. Each value of each channel is disturbed on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import to_levels, to_unit


def gaussian_noise(images: Tensor, draws: Draws, sigma: float) -> Tensor:
    """``clip(x + sigma * n, 0, 1)``."""
    noise = draws.normal(tuple(images.shape[1:])).mul_(sigma)
    return to_levels(to_unit(images).add_(noise))


def speckle_noise(images: Tensor, draws: Draws, sigma: float) -> Tensor:
    """``clip(x + x * sigma * n, 0, 1)``."""
    clean = to_unit(images)
    noise = draws.normal(tuple(images.shape[1:])).mul_(sigma)
    return to_levels(clean + clean * noise)


def shot_noise(images: Tensor, draws: Draws, scale: float) -> Tensor:
    """``clip(Poisson(scale * x) / scale, 0, 1)``; ``scale`` is the photons of a white pixel."""
    return to_levels(draws.poisson(images, scale).div_(scale))


def impulse_noise(images: Tensor, draws: Draws, share: float) -> Tensor:
    """Salt and pepper in equal parts instead of this share of the channel values."""
    shape = tuple(images.shape[1:])
    replaced = draws.uniform(shape) <= share
    salt = draws.uniform(shape) <= 0.5
    return torch.where(replaced, salt.to(torch.uint8).mul_(255), images)
