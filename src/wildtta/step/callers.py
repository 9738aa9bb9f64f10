"""What belongs to one caller of an adapter that several share: a pause, and the report of the last call."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")
M = TypeVar("M")


class Block(Generic[M]):
    """``with Block(owner, value, shown) as shown:``: within, ``value`` is what this caller says to ``owner``.

    The caller is a thread or task, with those that it starts with a copy of its context (asyncio copies it for tasks and
    ``to_thread``). The block's end holds for all of them, also where it is left in another context than it was entered in,
    as web frameworks do.

    An exception of a signal handler can arrive just before a block begins or ends. So nothing counts before the last
    instruction of entering, and a block whose end never ran is over when nobody holds its object any more.

    One that is entered again before its end is refused: its first end would end it for both.
    """

    def __init__(self, owner: object, value: Any, shown: M) -> None:
        self.owner, self.value = owner, value
        self.active = False
        self._shown = shown

    def __enter__(self) -> M:
        if self.active:
            raise RuntimeError(
                "this block is entered already, here or by another caller; make a new one for each with, such as "
                "with model.paused():"
            )
        _blocks.set((*filter(_is_active, _blocks.get()), weakref.ref(self)))
        self.active = True
        return self._shown

    def __exit__(self, *_: object) -> None:
        self.active = False
        _blocks.set(tuple(filter(_is_active, _blocks.get())))


_blocks: ContextVar[tuple[weakref.ref[Block[Any]], ...]] = ContextVar("wildtta_blocks", default=())
"""Those entered by this caller, the innermost last."""


def _is_active(reference: weakref.ref[Block[Any]]) -> bool:
    block = reference()
    return block is not None and block.active


def said_to(owner: object) -> Block[Any] | None:
    """The innermost block in which this caller says something to ``owner``; None: it is in none."""
    blocks = (reference() for reference in reversed(_blocks.get()))
    return next((block for block in blocks if block is not None and block.active and block.owner is owner), None)


def is_paused(adapter: object) -> bool:
    """Whether this caller paused ``adapter``."""
    return said_to(adapter) is not None


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
