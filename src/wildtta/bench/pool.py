"""What the benchmark asks of whatever runs its cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
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


class Throttled:
    """Passes on how far a cell is, twice a second at most: batches of one come faster than anybody reads."""

    def __init__(self, tell: Callable[[float], None], every_s: float = 0.5) -> None:
        self._tell = tell
        self._every_s = every_s
        self._last = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            self._tell(share)


class Pool(Protocol):
    """Runs cells somewhere."""

    @property
    def workers(self) -> int:
        """How many cells run at a time."""

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Generator[Event, None, None]:
        """Run all of them, each exactly once to its end; rows come as they are finished. Closing it ends what runs."""
