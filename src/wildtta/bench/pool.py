"""What the benchmark asks of whatever runs its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from wildtta.bench.cell import Cell
from wildtta.bench.journal import Row

ATTEMPTS = 3
"""How often a cell is given to a worker before a dying worker counts as the cell's fault."""


@dataclass(frozen=True)
class Finished:
    """A cell's row: ok or failed."""

    row: Row


@dataclass(frozen=True)
class Notice:
    """Something people should know (a worker died and its cell is tried again)."""

    text: str


Event = Finished | Notice

OnProgress = Callable[[Cell, float], None]
"""Told how far a running cell is, as a share of its stream."""


class Pool(Protocol):
    """Runs cells somewhere."""

    @property
    def workers(self) -> int:
        """How many cells run at a time."""

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Iterator[Event]:
        """Run all of them, each exactly once to its end; rows come as they are finished."""
