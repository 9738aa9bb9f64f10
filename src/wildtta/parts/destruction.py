"""Transformations that destroy an object's shape and keep its colours and textures: patches, pixels, occlusion (DeYO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Destruction = Literal["patch", "pixel", "occlusion"]
Destroyer = Callable[[Tensor, torch.Generator], Tensor]


def permute_patches(images: Tensor, order: Tensor, grid: int = 4) -> Tensor:
    """Cut each image into ``grid`` × ``grid`` patches and put patch ``order[b, j]`` at place j (row by row).

    ``order`` is [B, grid²]. A side that is no multiple of the grid is resized to one and back, as DeYO's authors do.
    Signals [B, C, L] and vectors [B, L] are cut along their length, into as many pieces as ``order`` has; a rest stays.
    """
    if images.dim() in (2, 3):
        return _permute_pieces(images, order)
    if images.dim() != 4:
        raise ValueError(
            f"patches are cut from images [B, C, H, W], signals [B, C, L] or vectors [B, L], got {tuple(images.shape)}; "
            "give a transformation of your own as destruction="
        )
    batch, channels, height, width = images.shape
    high, wide = height // grid, width // grid
    if high == 0 or wide == 0:
        raise ValueError(f"images of {height} × {width} cannot be cut into {grid} × {grid} patches; use a smaller grid")
    exact = (high * grid, wide * grid)
    whole = images if exact == (height, width) else _resize(images, exact)
    patches = whole.reshape(batch, channels, grid, high, grid, wide).permute(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(batch, grid * grid, channels, high, wide)
    patches = patches[torch.arange(batch, device=images.device)[:, None], order]
    patches = patches.reshape(batch, grid, grid, channels, high, wide).permute(0, 3, 1, 4, 2, 5)
    shuffled = patches.reshape(batch, channels, *exact)
    return shuffled if exact == (height, width) else _resize(shuffled, (height, width))


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def _permute_pieces(signals: Tensor, order: Tensor) -> Tensor:
    pieces, length = order.shape[1], signals.shape[-1]
    long = length // pieces
    if long == 0:
        raise ValueError(f"a length of {length} cannot be cut into {pieces} pieces; use a smaller grid")
    within = torch.arange(long, device=signals.device)
    places = (order[:, :, None] * long + within).flatten(1)
    rest = torch.arange(pieces * long, length, device=signals.device).expand(len(signals), -1)
    places = torch.cat([places, rest], dim=1)
    if signals.dim() == 3:
        places = places[:, None].expand_as(signals)
    return signals.gather(-1, places)


def permute_pixels(images: Tensor, order: Tensor) -> Tensor:
    """Pixel ``order[j]`` (row by row) at place j, the same in all images and channels; ``order`` is [H·W]."""
    if images.dim() == 2:
        return images[:, order]
    return images.flatten(2)[:, :, order].reshape(images.shape)


def occlude(images: Tensor) -> Tensor:
    """The middle half of each side (a quarter of an image) replaced by the channel's mean."""
    first = 2 if images.dim() > 2 else 1
    hidden = images
    inside = torch.ones((), dtype=torch.bool, device=images.device)
    for dim in range(first, images.dim()):
        side = images.shape[dim]
        place = torch.arange(side, device=images.device)
        middle = (place >= side // 4) & (place < side // 4 + max(1, side // 2))
        inside = inside & middle.view(-1, *(1,) * (images.dim() - dim - 1))
        hidden = hidden.mean(dim, keepdim=True)
    return torch.where(inside, hidden, images)


def destroyer(kind: Destruction, grid: int) -> Destroyer:
    """The transformation by name; what is random in it is drawn from the generator that it is given."""

    def patch(images: Tensor, generator: torch.Generator) -> Tensor:
        pieces = grid * grid if images.dim() == 4 else min(grid * grid, images.shape[-1])
        order = torch.rand(len(images), pieces, generator=generator).argsort(-1)
        return permute_patches(images, order.to(images.device), grid)

    def pixel(images: Tensor, generator: torch.Generator) -> Tensor:
        places = images[0, 0].numel() if images.dim() > 2 else images.shape[1]
        return permute_pixels(images, torch.randperm(places, generator=generator).to(images.device))

    def occlusion(images: Tensor, generator: torch.Generator) -> Tensor:
        return occlude(images)

    return {"patch": patch, "pixel": pixel, "occlusion": occlusion}[kind]
