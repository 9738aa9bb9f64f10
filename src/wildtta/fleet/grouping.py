"""The images of a batch by stream: rows of the batch in a table [streams, images of the largest], and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
        widest = max(self.sizes)
        table = [own + [own[0]] * (widest - len(own)) for own in self.rows]
        # One transfer for all of it.
        packed = torch.tensor([*(row for own in table for row in own), *owner, *rank, *self.sizes]).to(device)
        number = streams * widest
        self.table = packed[:number].view(streams, widest)
        self.owner, self.rank, self.numbers = torch.split(packed[number:], [len(owner), len(owner), streams])
        self.valid = torch.arange(widest, device=device) < self.numbers[:, None]

    def padded(self, rows: Tensor) -> Tensor:
        """[rows, …] to [streams, widest, …]."""
        return rows[self.table]

    def flat(self, table: Tensor) -> Tensor:
        """[streams, widest, …] to [rows, …]."""
        return table[self.owner, self.rank]
