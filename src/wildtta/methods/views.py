"""Random views of network inputs: the jitter of CoTTA, RoTTA and ROID, and the way from inputs to pixels and back.

Every sample draws its own numbers (the authors' code draws once per batch); the order of the colour changes is drawn
once. Ranges are those of the authors' code, https://github.com/qinenergy/cotta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Level = float | Sequence[float] | None
Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Makes views of network inputs: as many out as in."""
MEAN_HELP = "pixel mean of the preprocessing, for views; None: the network's own, or the range of each image"
STD_HELP = "pixel std of the preprocessing"

BRIGHTNESS = (0.6, 1.4)
CONTRAST = (0.7, 1.3)
SATURATION = (0.5, 1.5)
HUE = (-0.06, 0.06)
GAMMA = (0.7, 1.3)
DEGREES = 15.0
SHIFT = 1 / 16
SCALE = (0.9, 1.1)
BLUR_SIGMA = (0.001, 0.5)
NOISE = 0.005
_GREY = (0.299, 0.587, 0.114)
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def random_view(
    network: nn.Module, images: Tensor, generator: torch.Generator, augment: Augment | None, mean: Level, std: Level
) -> Tensor:
    """A view of each network input: by ``augment``, or jittered as pixels."""
    if augment is not None:
        view = augment(images, generator)
        if not isinstance(view, Tensor) or view.dim() != images.dim() or len(view) != len(images):
            raise ValueError(
                f"augment= must give as many inputs as it gets, here {tuple(images.shape)}, gave {told(view)}"
            )
        return view
    scale = pixel_scale(network, images, mean, std)
    return scale.inputs(jitter(scale.pixels(images), generator))


def told(made: Any) -> str:
    """What a function of the user gave, for an error."""
    return f"{made.dtype} {tuple(made.shape)}" if isinstance(made, Tensor) else repr(made)[:80]


def jitter(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """A random view of each image; ``pixels`` [B, C, H, W] in [0, 1], and so is what comes back."""
    pixels = pixels.clamp(0, 1)
    changes = [_brightness, _contrast, _gamma]
    if pixels.shape[1] == 3:
        changes += [_saturation, _hue]
    for number in torch.randperm(len(changes), generator=generator, device=pixels.device).tolist():
        pixels = changes[number](pixels, generator)
    pixels = _blur(_move(pixels, generator), generator)
    mirrored = _uniform(pixels, generator, 0.0, 1.0) < 0.5
    pixels = torch.where(mirrored, pixels.flip(-1), pixels)
    noise = torch.randn(pixels.shape, generator=generator, device=pixels.device, dtype=pixels.dtype)
    return (pixels + NOISE * noise).clamp(0, 1)


def _uniform(pixels: Tensor, generator: torch.Generator, low: float, high: float) -> Tensor:
    draw = torch.rand(len(pixels), generator=generator, device=pixels.device, dtype=pixels.dtype)
    return (low + (high - low) * draw).view(-1, 1, 1, 1)


def _grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    return (pixels * pixels.new_tensor(_GREY).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _brightness(pixels: Tensor, generator: torch.Generator) -> Tensor:
    return (pixels * _uniform(pixels, generator, *BRIGHTNESS)).clamp(0, 1)


def _contrast(pixels: Tensor, generator: torch.Generator) -> Tensor:
    factor = _uniform(pixels, generator, *CONTRAST)
    return (factor * pixels + (1 - factor) * _grey(pixels).mean((1, 2, 3), keepdim=True)).clamp(0, 1)


def _saturation(pixels: Tensor, generator: torch.Generator) -> Tensor:
    factor = _uniform(pixels, generator, *SATURATION)
    return (factor * pixels + (1 - factor) * _grey(pixels)).clamp(0, 1)


def _gamma(pixels: Tensor, generator: torch.Generator) -> Tensor:
    return pixels.clamp(min=1e-8) ** _uniform(pixels, generator, *GAMMA)


def _hue(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """A turn of the chroma plane (YIQ) by a share of the full circle."""
    angle = 2 * math.pi * _uniform(pixels, generator, *HUE).view(-1)
    to_yiq = pixels.new_tensor(_YIQ)
    turn = torch.zeros(len(pixels), 3, 3, dtype=pixels.dtype, device=pixels.device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = angle.cos()
    turn[:, 1, 2], turn[:, 2, 1] = -angle.sin(), angle.sin()
    matrix = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    return torch.einsum("bij,bjhw->bihw", matrix, pixels).clamp(0, 1)


def _move(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Rotation, shift and scaling about the centre; what lies outside repeats the border."""
    angle = math.radians(DEGREES) * _uniform(pixels, generator, -1, 1).view(-1)
    scale = _uniform(pixels, generator, *SCALE).view(-1)
    right = 2 * SHIFT * _uniform(pixels, generator, -1, 1).view(-1)
    down = 2 * SHIFT * _uniform(pixels, generator, -1, 1).view(-1)
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    rows = torch.stack([torch.stack([cosine, sine, -right], 1), torch.stack([-sine, cosine, -down], 1)], 1)
    grid = F.affine_grid(rows, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def _blur(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """A 5 × 5 Gaussian, its width drawn per image."""
    sigma = _uniform(pixels, generator, *BLUR_SIGMA).view(-1, 1)
    steps = torch.arange(-2, 3, device=pixels.device, dtype=pixels.dtype)
    weights = F.softmax(-steps.square() / (2 * sigma.square()), dim=1)
    number, channels, height, width = pixels.shape
    kernel = weights.repeat_interleave(channels, 0)
    flat = F.pad(pixels.reshape(1, -1, height, width), (2, 2, 2, 2), mode="replicate")
    flat = F.conv2d(flat, kernel.view(-1, 1, 1, 5), groups=number * channels)
    flat = F.conv2d(flat, kernel.view(-1, 1, 5, 1), groups=number * channels)
    return flat.view(number, channels, height, width)


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
