"""AugMix (Hendrycks et al., ICLR 2020): many mixed views of one image, batched in torch.

A view is m·x + (1 − m)·Σ_i w_i · chain_i(x) with w ~ Dirichlet(1, 1, 1), m ~ Beta(1, 1) and chains of one to three operations;
x is a random crop of the image, mirrored half of the time. All chains of all views run side by side. Numbers are drawn on
the host, so that nothing has to be read from the device to know which image gets which operation.
Paper: https://arxiv.org/abs/1912.02781.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 3
DEEPEST = 3
POINTWISE = ("autocontrast", "equalize", "posterize", "solarize")
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = (*POINTWISE, *GEOMETRIC)
_SMALL_SIDE = 64


def augmix(pixels: Tensor, number: int, generator: torch.Generator, severity: float = 1.0) -> Tensor:
    """``number`` views [number, C, H, W] of one image [C, H, W] in [0, 1]; ``generator`` lives on the host."""
    base = random_crops(pixels.expand(number, *pixels.shape), generator)
    base = torch.where(_on(_rand(number, generator) < 0.5, base), base.flip(-1), base)
    shares = -_rand(number, generator, WIDTH).clamp(min=1e-12).log()
    shares = shares / shares.sum(1, keepdim=True)
    kept = _on(_rand(number, generator), base)
    depths = torch.randint(1, DEEPEST + 1, (number * WIDTH,), generator=generator)
    chains = base.repeat_interleave(WIDTH, 0)
    for depth in range(DEEPEST):
        which = torch.randint(len(OPERATIONS), (number * WIDTH,), generator=generator)
        levels = 0.1 + (severity - 0.1) * _rand(number * WIDTH, generator)
        signs = torch.where(_rand(number * WIDTH, generator) < 0.5, -1.0, 1.0)
        chains = _one_operation(chains, torch.where(depths > depth, which, -1), levels, signs)
    mixed = (chains.view(number, WIDTH, *pixels.shape) * shares.to(chains)[..., None, None, None]).sum(1)
    return kept * base + (1 - kept) * mixed


def _rand(number: int, generator: torch.Generator, columns: int | None = None) -> Tensor:
    return torch.rand((number,) if columns is None else (number, columns), generator=generator)


def _on(values: Tensor, images: Tensor) -> Tensor:
    moved = values.to(images.device) if values.dtype == torch.bool else values.to(images)
    return moved.view(-1, 1, 1, 1)


def _one_operation(images: Tensor, which: Tensor, levels: Tensor, signs: Tensor) -> Tensor:
    """Operation number ``which`` on each image (−1: none); levels go from 0 to 10, as in AugMix."""
    images = images.clone()
    for number, name in enumerate(POINTWISE):
        rows = (which == number).nonzero().squeeze(1)
        if len(rows):
            here = rows.to(images.device)
            images[here] = _pointwise(name, images[here], levels[rows])
    rows = (which >= len(POINTWISE)).nonzero().squeeze(1)
    if len(rows):
        here = rows.to(images.device)
        names = [OPERATIONS[number] for number in which[rows].tolist()]
        images[here] = _warped(images[here], names, levels[rows], signs[rows])
    return images


def _pointwise(name: str, images: Tensor, levels: Tensor) -> Tensor:
    if name == "autocontrast":
        return autocontrast(images)
    if name == "equalize":
        return equalize(images)
    if name == "posterize":
        return posterize(images, 4 - (levels * 4 / 10).int())
    return solarize(images, (256 - (levels * 256 / 10).int()) / 255)


def autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched to [0, 1]; a constant channel stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    width = high - low
    return torch.where(width > 0, (images - low) / torch.where(width > 0, width, 1.0), images)


def equalize(images: Tensor) -> Tensor:
    """Histogram equalisation of each channel over 256 levels, with Pillow's integer rule."""
    number, channels, height, width = images.shape
    levels = (images.clamp(0, 1) * 255).round().long().view(number * channels, -1)
    offsets = 256 * torch.arange(len(levels), device=images.device)[:, None]
    counts = torch.bincount((levels + offsets).flatten(), minlength=256 * len(levels)).view(-1, 256)
    last = counts.gather(1, levels.amax(1, keepdim=True))
    step = (height * width - last) // 255
    safe = step.clamp(min=1)
    table = ((safe // 2 + counts.cumsum(1) - counts) // safe).clamp(max=255)
    result = torch.where(step > 0, table.gather(1, levels), levels)
    return (result.to(images.dtype) / 255).view(images.shape)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Only the highest ``bits`` [B] of eight."""
    step = _on(2.0 ** (8 - bits), images)
    return ((images.clamp(0, 1) * 255).round() / step).floor() * step / 255


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Inverted from ``threshold`` [B] on."""
    return torch.where(images < _on(threshold, images), images, 1 - images)


def _warped(images: Tensor, names: list[str], levels: Tensor, signs: Tensor) -> Tensor:
    """Rotations, shears and shifts in one resampling; what comes from outside is black."""
    rows = torch.eye(2, 3).repeat(len(names), 1, 1)
    for row, name in enumerate(names):
        amount = float(levels[row] * signs[row]) / 10
        if name == "rotate":
            angle = math.radians(30 * amount)
            rows[row, :, :2] = torch.tensor(
                [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
            )
        elif name == "shear_x":
            rows[row, 0, 1] = 0.3 * amount
        elif name == "shear_y":
            rows[row, 1, 0] = 0.3 * amount
        else:
            rows[row, 0 if name == "translate_x" else 1, 2] = 2 / 3 * amount
    grid = F.affine_grid(rows.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def random_crops(images: Tensor, generator: torch.Generator) -> Tensor:
    """A crop per image, at the images' size: padded by an eighth for small ones, a resized part for large ones.

    (The authors of MEMO crop 32-pixel images with a padding of 4 and ImageNet's by 8 to 100 % of the area.)
    """
    number, _, height, width = images.shape
    if min(height, width) <= _SMALL_SIDE:
        pad = max(1, min(height, width) // 8)
        shifts = torch.randint(-pad, pad + 1, (number, 2), generator=generator).float()
        scale = torch.ones(number, 2)
        centre = shifts * 2 / torch.tensor([width, height])
    else:
        area = 0.08 + 0.92 * _rand(number, generator)
        ratio = torch.exp((2 * _rand(number, generator) - 1) * math.log(4 / 3))
        scale = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1.0)
        centre = (2 * _rand(number, generator, 2) - 1) * (1 - scale)
    rows = torch.cat([torch.diag_embed(scale), centre[:, :, None]], 2)
    grid = F.affine_grid(rows.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
