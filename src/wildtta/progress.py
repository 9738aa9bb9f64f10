"""Progress of something that takes a while: a bar on a terminal (with rich), a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TypeVar

T = TypeVar("T")

QUIET_S = 3.0
EVERY_S = 10.0


def shown(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """``items`` one by one, while stderr tells how far they are; what is over within 3 seconds says nothing."""
    if sys.stderr.isatty() and find_spec("rich") is not None:
        yield from _with_bar(items, what, total)
    else:
        yield from _with_lines(items, what, total)


def _with_bar(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=what)


def _with_lines(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    speak_at = time.monotonic() + QUIET_S
    for done, item in enumerate(items):
        if time.monotonic() >= speak_at:
            print(f"{what}: {done}{'' if total is None else f' of {total}'}", file=sys.stderr, flush=True)
            speak_at = time.monotonic() + EVERY_S
        yield item
