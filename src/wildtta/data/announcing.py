"""A word on the terminal while a long list of files is being read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

SILENT_SECONDS = 3.0
"""Nothing is said before this time has passed, and not more often than this."""


def announced(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items one after the other; when it takes long, a line on stderr says how far it has come.

    On a terminal the line is rewritten in place, elsewhere there is one line each time.
    """
    start = last = time.monotonic()
    end = "\r" if sys.stderr.isatty() else "\n"
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - last >= SILENT_SECONDS:
            last = now
            left = (now - start) / done * (len(items) - done) if done else 0.0
            print(f"{what}: {done} of {len(items)}, about {left:.0f} s left", end=end, file=sys.stderr, flush=True)
        yield item
    if last > start and end == "\r":
        print(file=sys.stderr)
