"""A random sample of the stream, with the answers of the source network: what both networks are compared on.

The images are drawn by the guard itself, so that a comparison holds for any stream, one in class order or one that an
attacker wrote: the chance is the guard's own. They stay on the network's device and are never written anywhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Queued:
    """Images that wait for the source network, with what the adapter answered, [n, C] probabilities."""

    images: Tensor
    answered: Tensor


@dataclass
class Compared:
    """Images with the source network's probabilities for them."""

    images: Tensor
    source: Tensor


class Queue:
    """A share of the images of every batch, until there are enough for one pass of the source network."""

    def __init__(self, share: float, draw: random.Random) -> None:
        self.share = share
        self._draw = draw
        self._waiting: list[Queued] = []

    def __len__(self) -> int:
        return sum(len(part.images) for part in self._waiting)

    def add(self, images: Tensor, answered: Tensor) -> None:
        """Every image has the same chance; images of another shape start the queue again."""
        chosen = [place for place in range(len(images)) if self._draw.random() < self.share]
        if not chosen:
            return
        if self._waiting and self._waiting[0].images.shape[1:] != images.shape[1:]:
            self.clear()
        places = torch.tensor(chosen).to(images.device, non_blocking=True)
        self._waiting.append(Queued(images[places], answered[places]))

    def take(self, number: int) -> Queued:
        """So many of those that wait, in random order; the others are dropped. (One shape suits the kernels.)"""
        images = torch.cat([part.images for part in self._waiting])
        answered = torch.cat([part.answered for part in self._waiting])
        self.clear()
        places = torch.tensor(self._draw.sample(range(len(images)), number)).to(images.device, non_blocking=True)
        return Queued(images[places], answered[places])

    def clear(self) -> None:
        self._waiting.clear()


class Memory:
    """Up to ``size`` earlier images; a newcomer takes the place of a random one, so that old images fade out slowly."""

    def __init__(self, size: int, draw: random.Random) -> None:
        self.size = size
        self._draw = draw
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def remember(self, new: Compared) -> None:
        """Take images in; images of another shape replace everything."""
        if self._kept and self._kept[0][0].shape != new.images.shape[1:]:
            self.clear()
        for image, source in zip(new.images, new.source, strict=True):
            row = image.clone(), source.clone()  # a view would keep the whole batch alive that it came with
            if len(self._kept) < self.size:
                self._kept.append(row)
            else:
                self._kept[self._draw.randrange(self.size)] = row

    def draw(self, number: int) -> Compared:
        """A random part of it, in random order."""
        chosen = self._draw.sample(self._kept, number)
        return Compared(torch.stack([image for image, _ in chosen]), torch.stack([source for _, source in chosen]))

    def clear(self) -> None:
        self._kept.clear()
