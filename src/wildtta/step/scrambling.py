"""Images without content: cut into tiles that are laid out anew. Colours, contrast and noise stay, objects go.

For methods that ask what a network says to the images of a stream beside the same images scrambled.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

ARRANGEMENT = "arrangement"
"""Name of the state, of a method that asks, that tells which way of laying out the tiles comes next."""
SIDE = 8
"""Tiles that an image is cut into along each side, at the most."""
SIZES = (1, 2, 4)
"""Sides of what is moved as one, in such tiles."""
NUMBER = 240
"""Ways to lay out the tiles; each image takes the next one. The sizes take turns."""


@functools.cache
def arrangements(device: torch.device) -> Tensor:
    """[240, 64]: which tile lies where. No tile stays in its place."""
    draws = torch.Generator().manual_seed(0)
    rows = []
    for number in range(NUMBER):
        size = SIZES[number % len(SIZES)]
        order = torch.randperm((SIDE // size) ** 2, generator=draws)
        takes = torch.empty_like(order)
        takes[order] = order.roll(1)
        blocks = (
            torch.arange(SIDE**2).view(SIDE // size, size, SIDE // size, size).transpose(1, 2).reshape(len(order), -1)
        )
        rows.append(blocks[takes].view(SIDE // size, SIDE // size, size, size).transpose(1, 2).reshape(-1))
    return torch.stack(rows).to(device)


def are_pictures(images: Tensor) -> bool:
    """Whether ``images`` can be cut into tiles: real numbers with two sides, [N, channels, height, width]."""
    return images.dim() == 4 and images.is_floating_point() and min(images.shape[2:]) >= SIDE


def arrangements_at(first: Tensor, places: Tensor) -> Tensor:
    """Ways to lay out the samples at these ``places``, where that at place 0 has the ``first``."""
    return (first.long() + places) % NUMBER


def next_arrangements(arrangement: Tensor, samples: int) -> Tensor:
    """Ways to lay out the next so many ``samples``, [samples]."""
    return arrangements_at(arrangement, torch.arange(samples, device=arrangement.device))


def size_of(numbers: Tensor) -> Tensor:
    """Which of the sizes the arrangements ``numbers`` have."""
    return numbers % len(SIZES)


def scrambled(images: Tensor, numbers: Tensor) -> Tensor:
    """``images`` [N, channels, height, width] with their tiles laid out in the ways ``numbers`` [N].

    What a side leaves over, divided by 8, stays where it is, half of it at either edge.
    """
    height, width = images.shape[2] // SIDE, images.shape[3] // SIDE
    top, left = (images.shape[2] - SIDE * height) // 2, (images.shape[3] - SIDE * width) // 2
    cut = (..., slice(top, top + SIDE * height), slice(left, left + SIDE * width))
    shape = images.shape[:2]
    tiles = images[cut].reshape(*shape, SIDE, height, SIDE, width).transpose(3, 4).reshape(*shape, -1, height, width)
    takes = arrangements(images.device)[numbers]
    laid_out = tiles.gather(2, takes[:, None, :, None, None].expand_as(tiles))
    laid_out = laid_out.reshape(*shape, SIDE, SIDE, height, width).transpose(3, 4)
    whole = images.clone()
    whole[cut] = laid_out.reshape(*shape, SIDE * height, SIDE * width)
    return whole
