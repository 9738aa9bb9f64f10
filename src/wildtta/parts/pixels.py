"""From normalised network inputs to pixels in [0, 1] and back, for augmentations and diffusion models that need pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Level = float | Sequence[float] | None


@dataclass(frozen=True)
class PixelScale:
    """x = (pixels − mean) / std, with mean and std that broadcast over [B, C, H, W]."""

    mean: Tensor
    std: Tensor

    def pixels(self, images: Tensor) -> Tensor:
        return images * self.std + self.mean

    def inputs(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std


def pixel_scale(network: nn.Module, images: Tensor, mean: Level, std: Level) -> PixelScale:
    """The scale of ``images``: ``mean`` and ``std`` as given; else the network's own (timm's ``pretrained_cfg``);

    else each image's smallest value counts as 0 and its largest as 1.
    """
    if images.dim() != 4:
        raise ValueError(
            f"pixels are changed in images [batch, channels, height, width], got inputs of shape {tuple(images.shape)}; "
            "for other inputs give the method an augment= of your own, where it has one"
        )
    if (mean is None) != (std is None):
        raise ValueError("give mean and std together (or neither: then the network's configuration tells, or the range)")
    if mean is None:
        for name in ("pretrained_cfg", "default_cfg"):
            config = getattr(network, name, None)
            if isinstance(config, Mapping) and config.get("mean") and config.get("std"):
                mean, std = config["mean"], config["std"]
                break
    if mean is not None and std is not None:
        return PixelScale(_levels(mean, images), _levels(std, images))
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    width = high - low
    width = torch.where(width > 0, width, torch.ones_like(width))
    return PixelScale(-low / width, 1 / width)


def _levels(level: float | Sequence[float], images: Tensor) -> Tensor:
    values = torch.as_tensor(level, dtype=images.dtype, device=images.device).reshape(-1)
    if len(values) not in (1, images.shape[1]):
        raise ValueError(f"mean and std need 1 value or one per channel ({images.shape[1]}), got {len(values)}")
    return values.view(1, -1, 1, 1)
