"""Cells on a Ray cluster: the same :func:`wildtta.bench.execute.execute`, called by Ray's workers.

Each cell is a task that asks for one CPU, or for a share of a GPU; the driver receives the rows and writes the journal.
A task whose worker or node is lost is submitted again. Data and models of the user's own must lie at the same paths on
every node.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError
from wildtta.bench.execute import Conditions, execute, failed_row
from wildtta.bench.journal import Row
from wildtta.bench.pool import ATTEMPTS, Event, Finished, Notice, OnProgress


def ray_module() -> Any:
    """The library, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise BenchError("running on a cluster needs Ray: pip install 'wildtta[ray]'") from error
    return ray


class RayPool:
    """Cells as Ray tasks.

    Args:
        address: ``auto`` (the running cluster, or a new one on this machine where there is none) or ``HOST:PORT``.
        conditions: of every cell.
        gpu: use GPUs, ``per_device`` cells on each, or CPUs, ``conditions.threads`` for each cell; None: GPUs where the
            cluster has any.
    """

    def __init__(self, address: str, conditions: Conditions, *, gpu: bool | None, per_device: int = 1) -> None:
        self._ray = ray_module()
        self._conditions = conditions
        if not self._ray.is_initialized():
            _connect(self._ray, address)
        total = self._ray.cluster_resources()
        self._gpu = gpu = bool(total.get("GPU")) if gpu is None else gpu
        self._wanted: dict[str, float] = (
            {"num_cpus": 0, "num_gpus": 1 / per_device} if gpu else {"num_cpus": conditions.threads, "num_gpus": 0}
        )
        if gpu and not total.get("GPU"):
            raise BenchError(f"the Ray cluster at {address!r} has no GPU; use --device cpu")
        available = total.get("GPU", 0) * per_device if gpu else total.get("CPU", 0) // conditions.threads
        self.workers = max(1, int(available))

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Generator[Event, None, None]:
        """See :class:`wildtta.bench.pool.Pool`."""
        ray = self._ray
        # Ray's own retries would run a lost cell again without a word; the driver does it and says so.
        task = ray.remote(max_retries=0, **self._wanted)(_run_on_worker)
        waiting = deque(cells)
        attempts: dict[str, int] = {}
        in_hand: dict[Any, Cell] = {}
        try:
            while waiting or in_hand:
                while waiting and len(in_hand) < 2 * self.workers:
                    cell = waiting.popleft()
                    in_hand[task.remote(cell.to_json(), self._conditions.to_json(), self._gpu, os.getcwd())] = cell
                    on_progress(cell, 0.0)
                done, _ = ray.wait(list(in_hand), num_returns=1)
                cell = in_hand.pop(done[0])
                try:
                    yield Finished(ray.get(done[0]))
                except (ray.exceptions.RayError, OSError) as error:
                    attempts[cell.key] = attempts.get(cell.key, 0) + 1
                    cause = str(error).strip().splitlines()[0]
                    if attempts[cell.key] >= ATTEMPTS:
                        yield Finished(failed_row(cell, f"its worker was lost {ATTEMPTS} times: {cause}", device="ray"))
                    else:
                        yield Notice(f"a worker was lost ({cause}); trying again: {cell.describe()}")
                        waiting.appendleft(cell)
        finally:
            for reference in in_hand:
                ray.cancel(reference, force=True)


def _connect(ray: Any, address: str) -> None:
    try:
        try:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(logging_level="ERROR", log_to_driver=False)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise BenchError(f"no Ray cluster at {address!r}: {reason[0] if reason else type(error).__name__}") from error


def _run_on_worker(cell: dict[str, Any], conditions: dict[str, Any], gpu: bool, folder: str) -> Row:
    """In a Ray worker: relative paths as in the driver; the GPU that Ray assigned is the only one visible."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return execute(Cell.from_json(cell), Conditions(**conditions), "cuda:0" if gpu else "cpu")
