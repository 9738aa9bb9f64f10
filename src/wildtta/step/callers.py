"""What belongs to one caller of an adapter that several share: a pause, and the report of the last call."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Pause:
    """One ``with model.paused():``; ``of`` is the adapter, None once the block is left."""

    __slots__ = ("of",)

    def __init__(self, of: object) -> None:
        self.of: object | None = of


_pauses: ContextVar[tuple[_Pause, ...]] = ContextVar("wildtta_pauses", default=())


@contextlib.contextmanager
def pausing(adapter: object) -> Iterator[None]:
    """``adapter`` is paused for this caller: its thread or task, and those that it starts with a copy of its context.

    (asyncio copies it for tasks and ``to_thread``.) The pause ends with the block for all of them, also where the block is
    left in another context than it was entered in, as web frameworks do.
    """
    mine = _Pause(adapter)
    _pauses.set((*_pauses.get(), mine))
    try:
        yield
    finally:
        mine.of = None
        _pauses.set(tuple(pause for pause in _pauses.get() if pause.of is not None))


def is_paused(adapter: object) -> bool:
    """Whether this caller paused ``adapter``."""
    return any(pause.of is adapter for pause in _pauses.get())


class PerCaller(Generic[T]):
    """One value for every thread and, where an event loop runs, for every asyncio task; it goes when they end.

    A task without a value of its own sees what the last task of its thread left that has ended: a notebook runs each of its
    cells as a task.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], T] = weakref.WeakKeyDictionary()

    def set(self, value: T) -> None:
        task = _current_task()
        self._threads.latest = value, None if task is None else weakref.ref(task)
        if task is not None:
            self._tasks[task] = value

    def get(self) -> T | None:
        task = _current_task()
        if task is not None and task in self._tasks:
            return self._tasks[task]
        value: T | None
        value, reference = getattr(self._threads, "latest", (None, None))
        by = None if reference is None else reference()
        return value if by is None or by.done() else None


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None
