"""The images of a batch by stream: rows of the batch in a table [streams, images of the largest], and back."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from wildtta.fleet.transfers import sent


class Grouping:
    """``owner`` says for each row of a batch to which of ``streams`` streams it belongs.

    A stream with fewer images than the largest has its first row again in the places that are left over: ``valid`` is
    False there. (The row of another stream would let what is not finite pass from one to the other.)
    """

    def __init__(self, owner: Sequence[int], streams: int, device: torch.device) -> None:
        self.rows: list[list[int]] = [[] for _ in range(streams)]
        """The rows of each stream."""
        rank = []
        for row, stream in enumerate(owner):
            rank.append(len(self.rows[stream]))
            self.rows[stream].append(row)
        self.sizes = [len(own) for own in self.rows]
        self.widest = max(self.sizes)
        table = [own + [own[0]] * (self.widest - len(own)) for own in self.rows]
        # One transfer for all of it.
        packed = torch.tensor([*(row for own in table for row in own), *owner, *rank, *self.sizes])
        self.packed = sent(packed, device)

    def within(self, buffer: Tensor) -> Grouping:
        """The same grouping, with its numbers in ``buffer``, where a recorded step reads them."""
        twin = copy.copy(self)
        twin.packed = buffer.copy_(self.packed)
        return twin

    @property
    def table(self) -> Tensor:
        """Rows of the batch, [streams, widest]."""
        return self.packed[: len(self.rows) * self.widest].view(len(self.rows), self.widest)

    @property
    def owner(self) -> Tensor:
        """The stream of each row."""
        return self._behind_table(0)

    @property
    def rank(self) -> Tensor:
        """The place of each row among those of its stream."""
        return self._behind_table(1)

    @property
    def numbers(self) -> Tensor:
        """Images of each stream."""
        return self.packed[-len(self.rows) :]

    @property
    def valid(self) -> Tensor:
        """Which places of the table hold an image of their stream, [streams, widest]."""
        return torch.arange(self.widest, device=self.packed.device) < self.numbers[:, None]

    def _behind_table(self, part: int) -> Tensor:
        start, rows = len(self.rows) * self.widest, sum(self.sizes)
        return self.packed[start + part * rows : start + (part + 1) * rows]

    def padded(self, rows: Tensor) -> Tensor:
        """[rows, …] to [streams, widest, …]."""
        return rows[self.table]

    def flat(self, table: Tensor) -> Tensor:
        """[streams, widest, …] to [rows, …]."""
        return table[self.owner, self.rank]
