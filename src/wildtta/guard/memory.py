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
class Sample:
    """Some images and two networks' probabilities for them."""

    images: Tensor
    answered: Tensor
    """What the adapter answered when the images came, [n, C] probabilities."""
    source: Tensor | None = None
    """What the source network answers."""

    def __len__(self) -> int:
        return len(self.images)

    def first(self, number: int) -> Sample:
        """The first ones: a random part, where the order is random."""
        source = None if self.source is None else self.source[:number]
        return Sample(self.images[:number], self.answered[:number], source)


class Queue:
    """A share of the images of every batch, until there are enough for one pass of the source network."""

    def __init__(self, share: float, draw: random.Random) -> None:
        self.share = share
        self._draw = draw
        self._images: list[Tensor] = []
        self._answered: list[Tensor] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, images: Tensor, answered: Tensor) -> None:
        """Every image has the same chance; images of another shape start the queue again."""
        chosen = [place for place in range(len(images)) if self._draw.random() < self.share]
        if not chosen:
            return
        if self._images and self._images[0].shape[1:] != images.shape[1:]:
            self.clear()
        places = torch.tensor(chosen).to(images.device, non_blocking=True)
        self._images.append(images[places])
        self._answered.append(answered[places])
        self._waiting += len(chosen)

    def take(self) -> Sample:
        """Everything that waits, in random order."""
        order = list(range(self._waiting))
        self._draw.shuffle(order)
        images, answered = torch.cat(self._images), torch.cat(self._answered)
        places = torch.tensor(order).to(images.device, non_blocking=True)
        self.clear()
        return Sample(images[places], answered[places])

    def clear(self) -> None:
        self._images.clear()
        self._answered.clear()
        self._waiting = 0


class Memory:
    """Up to ``size`` earlier images; a newcomer takes the place of a random one, so that old images fade out slowly."""

    def __init__(self, size: int, draw: random.Random) -> None:
        self.size = size
        self._draw = draw
        self._kept: Sample | None = None

    def __len__(self) -> int:
        return 0 if self._kept is None else len(self._kept)

    def remember(self, new: Sample) -> None:
        kept = self._kept
        if kept is None or kept.images.shape[1:] != new.images.shape[1:]:
            kept = new.first(self.size)
            self._kept = Sample(kept.images.clone(), kept.answered.clone(), _source(kept).clone())
            return
        room = min(self.size - len(kept), len(new))
        if room:
            self._kept = kept = Sample(
                torch.cat([kept.images, new.images[:room]]),
                torch.cat([kept.answered, new.answered[:room]]),
                torch.cat([_source(kept), _source(new)[:room]]),
            )
        rest = min(len(new) - room, len(kept))
        if rest:
            places = torch.tensor(self._draw.sample(range(len(kept)), rest)).to(kept.images.device, non_blocking=True)
            end = room + rest
            kept.images[places] = new.images[room:end]
            kept.answered[places] = new.answered[room:end]
            _source(kept)[places] = _source(new)[room:end]

    def draw(self, number: int) -> Sample:
        """A random part of it, in random order."""
        kept = self._kept
        assert kept is not None
        chosen = self._draw.sample(range(len(kept)), min(number, len(kept)))
        places = torch.tensor(chosen).to(kept.images.device, non_blocking=True)
        return Sample(kept.images[places], kept.answered[places], _source(kept)[places])

    def clear(self) -> None:
        self._kept = None


def _source(sample: Sample) -> Tensor:
    assert sample.source is not None
    return sample.source
