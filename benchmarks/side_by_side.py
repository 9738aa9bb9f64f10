"""Many streams on one machine: worker processes take them one after another.

On one GPU start NVIDIA's multi-process service first (studies/tiny-imagenet/README.md): kernels of several processes then
run at the same time, and small networks leave the device mostly idle alone.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")
_work: Callable[[Any], Any] | None = None


def results(
    tasks: Sequence[Task],
    make_work: Callable[..., Callable[[Task], Result]],
    arguments: tuple[Any, ...],
    *,
    processes: int,
    seconds: float | None = None,
) -> Iterator[Result]:
    """``make_work(*arguments)(task)`` for every task, in the order in which they are finished.

    Args:
        tasks: what is to be done.
        make_work: called once in every process; with what it returns the tasks are done there.
        arguments: for it, to be sent to the processes.
        processes: how many; 1 does everything in this one.
        seconds: after which nothing more is begun and what is unfinished is left; None: all is done.
    """
    began = time.monotonic()
    if processes == 1:
        work = make_work(*arguments)
        for task in tasks:
            if seconds is not None and time.monotonic() - began > seconds:
                return
            yield work(task)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _start, (make_work, arguments)) as pool:
        found = pool.imap_unordered(_do, tasks)
        for _ in tasks:
            left = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
            try:
                yield found.next(left)
            except multiprocessing.TimeoutError:
                return


def _start(make_work: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    global _work
    torch.set_num_threads(1)
    _work = make_work(*arguments)


def _do(task: Any) -> Any:
    assert _work is not None
    return _work(task)
