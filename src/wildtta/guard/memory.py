"""A random sample of the stream, with the answers of the source network: what both networks are compared on.

The samples are drawn by the guard itself, so that a comparison holds for any stream, one in class order or one that an
attacker wrote: the chance is the guard's own. They stay on the network's device and are never written anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from wildtta.guard.samples import Call, Sample, taken


@dataclass(frozen=True)
class Answered:
    """A sample with probabilities for it, [C]: the adapter's while it waits, the source network's once remembered."""

    sample: Sample
    probabilities: Tensor
    looks: tuple[Tensor, Tensor] | None = None
    """Kind and thumbnail, [F] each, once remembered."""


class Queue:
    """A share of the samples of every batch, until there are enough for one look."""

    def __init__(self, share: float, draw: random.Random) -> None:
        self.share = share
        self._draw = draw
        self._waiting: list[Answered] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Call, probabilities: Tensor) -> None:
        """Every sample of a call has the same chance."""
        chosen = [place for place in range(len(probabilities)) if self._draw.random() < self.share]
        for place, sample in zip(chosen, taken(call, chosen), strict=True):
            self._waiting.append(Answered(sample, probabilities[place].clone()))

    def take(self, number: int) -> list[Answered]:
        """So many of those that wait, in random order; the others wait on."""
        self._draw.shuffle(self._waiting)
        chosen, self._waiting = self._waiting[:number], self._waiting[number:]
        return chosen

    def clear(self) -> None:
        self._waiting.clear()


_TURNOVER = 32
"""Images of the stream of which one is taken in: the memory has been replaced once after 8,192 with the default."""


class Memory:
    """Up to ``size`` earlier samples; a newcomer takes the place of a random one, so that old ones fade out slowly.

    Slowly, so that a flood of a few thousand images does not become what everything is judged by. At the start it is quicker:
    the first images alone, in class order, are no picture of the stream.
    """

    def __init__(self, size: int, draw: random.Random) -> None:
        self.size = size
        self._draw = draw
        self._kept: list[Answered] = []
        self._taken_in: list[int] = []
        """When each was, as a number that grows."""
        self._newest = 0
        self._followed = 0

    def __len__(self) -> int:
        return len(self._kept)

    def newcomers(self, images: int, at_hand: int) -> int:
        """How many to take in of a look over the last ``images`` of the stream, of which so many are ``at_hand``."""
        self._followed += images
        missing = self.size - len(self._kept)
        rate = max(1 / _TURNOVER, (self.size / self._followed) ** 2)
        wanted = images * rate
        rounded = int(wanted) + (self._draw.random() < wanted % 1)
        return min(at_hand, max(missing, rounded))

    def remember(self, new: Sequence[Answered]) -> None:
        """Take samples in."""
        for answered in new:
            self._newest += 1
            if len(self._kept) < self.size:
                self._kept.append(answered)
                self._taken_in.append(self._newest)
            else:
                place = self._draw.randrange(self.size)
                self._kept[place], self._taken_in[place] = answered, self._newest

    def __iter__(self) -> Iterator[Answered]:
        return iter(self._kept)

    def elders(self) -> list[Answered]:
        """Three quarters of them, those that have been here longest.

        Two thousand images of a flood become a fifth of a memory that has turned over to their pace; among these they are none.
        """
        order = sorted(range(len(self._kept)), key=self._taken_in.__getitem__)
        return [self._kept[place] for place in order[: -(-3 * len(order) // 4)]]

    def draw(self, number: int) -> list[Answered]:
        """A random part of it, in random order."""
        return self._draw.sample(self._kept, number)

    def clear(self) -> None:
        self._kept.clear()
        self._taken_in.clear()
        self._followed = 0
