"""How far something is that takes a while: a bar on a terminal (with rich), a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")

QUIET_S = 3.0
"""What is over within this time says nothing."""
EVERY_S = 10.0
"""Time between two lines where there is no terminal."""
TELLING_SHARE, TELLING_AT_ONCE = 0.02, 0.2
"""Below this share of the work, what it took says little about the rest: no time left is told. The second is for a first sign
of progress, which starting up has made late."""


class Progress:
    """How much is done, how fast it goes and how long it will take, on stderr.

    Args:
        what: what goes on.
        unit: what is counted; empty: the rate is not told.
    """

    def __init__(self, what: str, unit: str = "") -> None:
        self._what, self._unit = what, unit
        self._bar = _bar() if sys.stderr.isatty() and find_spec("rich") is not None else None
        self.begin(None)

    def begin(self, total: float | None, done: float = 0.0) -> None:
        """So much in all, so much of it done before."""
        self.total, self.done, self.found = total, done, done
        self._began = time.monotonic()
        self._speak_at = self._began + QUIET_S
        self._first: tuple[float, float] | None = None

    def update(
        self, done: float, current: str = "", line: str = "", style: str = "", *, share: float | None = None
    ) -> None:
        """So much is done; ``current`` tells what is being done, ``line`` what was finished: it stays.

        ``share`` is the part of all the work that is done, where what is counted differs in size.
        """
        self.done, now = done, time.monotonic()
        if share is None and self.total is not None:
            share = (done - self.found) / max(self.total - self.found, 1e-9)
        pace = ", ".join(filter(None, (self._speed(now), self._left(now, share))))
        count = f"{self._what}: {int(done)}{'' if self.total is None else f' of {self.total:.0f}'}"
        text = ", ".join(filter(None, (count, pace, current)))
        if line or (self._bar is None and now >= self._speak_at):
            self.say(", ".join(filter(None, (line, pace))) if line else text, style)
            self._speak_at = now + EVERY_S
        if self._bar is not None:
            if not self._bar.task_ids:
                self._bar.add_task("")
                self._bar.start()
            self._bar.update(self._bar.task_ids[0], completed=done, total=self.total, description=text)

    def _speed(self, now: float) -> str:
        """``3.1 cells/min`` by what was done so far; empty before there is anything."""
        done, elapsed = self.done - self.found, now - self._began
        if done <= 0 or elapsed <= 0 or not self._unit:
            return ""
        rate = done / elapsed
        return f"{rate:.0f} {self._unit}/s" if rate >= 10 else f"{60 * rate:.1f} {self._unit}/min"

    def _left(self, now: float, share: float | None) -> str:
        """``about 2 min left``, once enough has been done to tell.

        Reckoned from the first sign of progress, where there was a later one: what comes before (processes start, data are
        opened) will not come again.
        """
        if share is None or share <= 0:
            return ""
        self._first = self._first or (now, share)
        since, before, least = *self._first, TELLING_SHARE
        if now <= since or share <= before:
            since, before, least = self._began, 0.0, TELLING_AT_ONCE
        if share < least or now <= since:
            return ""
        return f"about {duration((1 - share) * (now - since) / (share - before))} left"

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, style=style, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def shown(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """``items`` one by one, while stderr tells how far they are."""
    progress = Progress(what)
    progress.begin(total)
    try:
        for done, item in enumerate(items):
            progress.update(done)
            yield item
    finally:
        progress.end()


def duration(seconds: float) -> str:
    """``40 s``, ``3 min`` or ``1.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=Console(stderr=True), transient=True)
