"""Where cells run: in this process, in worker processes (one or several to a device), or on a Ray cluster."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Generator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError, first_line
from wildtta.bench.journal import Row
from wildtta.bench.running import Conditions, execute, failed_row

ATTEMPTS = 3
"""How often a cell is given to a worker before a dying worker counts as the cell's fault."""

AHEAD = 64
"""How far a cell may come before its turn, to a worker that has its images already."""

OnProgress = Callable[[Cell, float], None]
"""Told how far a running cell is, as a share of its stream."""


Events = Generator[Row | str, None, None]
"""Rows as they are finished, each cell run exactly once to its end, and texts that people should know (a
worker died and its cell is tried again); closing it ends what runs."""


def in_process(
    device: str, conditions: Conditions, cells: Sequence[Cell], on_progress: OnProgress, *, until: float = math.inf
) -> Events:
    """One cell after the other, here; none begins after ``until`` (a time of :func:`time.monotonic`)."""
    waiting = _Waiting(cells, until)
    while waiting:
        cell = waiting.popleft()
        on_progress(cell, 0.0)
        yield execute(cell, conditions, device, progress=partial(on_progress, cell))


class _Waiting(deque[Cell]):
    """Cells that wait for a worker; false when there is none, or no time to begin one."""

    def __init__(self, cells: Sequence[Cell], until: float) -> None:
        super().__init__(cells)
        self._until = until
        self._deaths: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return len(self) > 0 and time.monotonic() < self._until

    def next_for(self, made: set[tuple[object, ...]]) -> Cell:
        """The next cell for a worker that has ``made`` these images; its own are added."""
        place = place_of_next(self, made)
        cell = self[place]
        del self[place]
        made.add(images_of(cell))
        return cell

    def put_back(self, cell: Cell, cause: str, device: str) -> Row | str:
        """After its worker's end a cell is the next one again, or has failed after too many deaths."""
        self._deaths[cell.key] += 1
        if self._deaths[cell.key] >= ATTEMPTS:
            reason = f"its worker died {ATTEMPTS} times ({cause}); out of memory is the usual cause"
            return failed_row(cell, reason, device=device)
        self.appendleft(cell)
        time.sleep(0.1 * self._deaths[cell.key])
        return f"a worker on {device} died ({cause}); trying again: {cell.describe()}"


def images_of(cell: Cell) -> tuple[object, ...]:
    """What a worker keeps of a cell: its images, corrupted once per process."""
    return cell.data, cell.corruptions, cell.severity, cell.protocol, json.dumps(cell.data_options, sort_keys=True)


def place_of_next(waiting: Sequence[Cell], made: Container[tuple[object, ...]]) -> int:
    """Where in the queue a worker's next cell stands: the first, or within :data:`AHEAD` one whose images it has made."""
    return next((place for place, cell in zip(range(AHEAD), waiting, strict=False) if images_of(cell) in made), 0)


def in_processes(
    devices: Sequence[str],
    conditions: Conditions,
    cells: Sequence[Cell],
    on_progress: OnProgress,
    *,
    until: float = math.inf,
) -> Events:
    """A worker process per entry of ``devices``; a device named twice runs two cells at a time.

    A worker that dies is replaced and its cell tried again. None begins a cell after ``until``. Workers keep images, so
    that cells go to one that has theirs, within :data:`AHEAD` of their turn; no row depends on where it was made.
    """
    waiting = _Waiting(cells, until)
    running: dict[Connection, _Worker] = {}

    def start(device: str) -> None:
        worker = _Worker(device, conditions)
        running[worker.connection] = worker
        worker.take(waiting.next_for(worker.made))

    try:
        for device in devices[: len(cells)]:
            if waiting:
                start(device)
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                worker = running[connection]
                try:
                    message: float | Row = connection.recv()
                except (EOFError, OSError):
                    del running[connection]
                    yield waiting.put_back(worker.cell, worker.ending(), worker.device)
                    if waiting:
                        start(worker.device)
                    continue
                if isinstance(message, float):
                    on_progress(worker.cell, message)
                    continue
                yield message
                if waiting:
                    worker.take(waiting.next_for(worker.made))
                else:
                    del running[connection]
                    connection.close()
                    worker.ending()
    finally:
        for worker in running.values():
            worker.process.kill()
            worker.ending()


class _Worker:
    """A process (:mod:`wildtta.bench.worker`), the pipe to it and the cell that it has in hand."""

    cell: Cell

    def __init__(self, device: str, conditions: Conditions) -> None:
        self.device = device
        self.made: set[tuple[object, ...]] = set()
        self.connection, other_end = Pipe()
        channel, threads = other_end.fileno(), str(conditions.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wildtta.bench.worker", str(channel), device, json.dumps(asdict(conditions))],
            pass_fds=[channel],
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        other_end.close()

    def take(self, cell: Cell) -> None:
        self.cell = cell
        # Where it died between two cells, reading from it will tell, and the cell is still in hand.
        with suppress(OSError):
            self.connection.send(cell.to_json())

    def ending(self) -> str:
        """Wait for the process and tell how it ended."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def on_ray(
    address: str, conditions: Conditions, *, gpu: bool | None, per_device: int
) -> tuple[int, Callable[..., Events]]:
    """Cells as Ray tasks: how many run at a time, and what runs them.

    Each task asks for ``conditions.threads`` CPUs or, with ``gpu``, for its share of a GPU (None: GPUs where
    the cluster has any). A task whose worker or node is lost is submitted again. Data and models of the
    user's own must lie at the same paths on every node. The address ``auto`` is the running cluster, or a new
    one on this machine where there is none.
    """
    try:
        import ray
    except ImportError as error:
        raise BenchError("running on a cluster needs Ray: pip install 'wildtta[ray]'") from error
    if not ray.is_initialized():
        _connect(ray, address)
    total = ray.cluster_resources()
    gpus, cpus = total.get("GPU", 0), total.get("CPU", 0)
    gpu = bool(gpus) if gpu is None else gpu
    if gpu and not gpus:
        raise BenchError(f"the Ray cluster at {address!r} has no GPU; use --device cpu")
    wanted = (0, 1 / per_device) if gpu else (conditions.threads, 0)
    workers = max(1, int(gpus * per_device if gpu else cpus // conditions.threads))
    # Ray's own retries would run a lost cell again without a word; the driver does it and says so.
    task = ray.remote(max_retries=0, num_cpus=wanted[0], num_gpus=wanted[1])(_run_on_worker)

    def run(cells: Sequence[Cell], on_progress: OnProgress, *, until: float = math.inf) -> Events:
        waiting = _Waiting(cells, until)
        in_hand: dict[Any, Cell] = {}
        try:
            while waiting or in_hand:
                while waiting and len(in_hand) < 2 * workers:
                    cell = waiting.popleft()
                    in_hand[task.remote(cell.to_json(), asdict(conditions), gpu, os.getcwd())] = cell
                    on_progress(cell, 0.0)
                done, _ = ray.wait(list(in_hand), num_returns=1)
                cell = in_hand.pop(done[0])
                try:
                    yield ray.get(done[0])
                except (ray.exceptions.RayError, OSError) as error:
                    yield waiting.put_back(cell, first_line(error), "Ray")
        finally:
            for reference in in_hand:
                ray.cancel(reference, force=True)

    return workers, run


def _connect(ray: Any, address: str) -> None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(address="local", **quiet)
    except Exception as error:
        raise BenchError(f"no Ray cluster at {address!r}: {first_line(error)}") from error


def _run_on_worker(cell: dict[str, Any], conditions: dict[str, Any], gpu: bool, folder: str) -> Row:
    """In a Ray worker: relative paths as in the driver; the GPU that Ray assigned is the only one visible."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return execute(Cell.from_json(cell), Conditions(**conditions), "cuda:0" if gpu else "cpu")
