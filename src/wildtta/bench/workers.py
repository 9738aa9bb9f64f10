"""Where cells run: in this process, in worker processes (one or several to a device), or on a Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
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

OnProgress = Callable[[Cell, float], None]
"""Told how far a running cell is, as a share of its stream."""


@dataclass(frozen=True)
class Notice:
    """Something people should know (a worker died and its cell is tried again)."""

    text: str


Events = Generator[Row | Notice, None, None]
"""Rows as they are finished, each cell run exactly once to its end; closing it ends what runs."""


class InProcess:
    """One cell after the other, here."""

    workers = 1

    def __init__(self, device: str, conditions: Conditions) -> None:
        self._device = device
        self._conditions = conditions

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Events:
        for cell in cells:
            on_progress(cell, 0.0)
            yield execute(cell, self._conditions, self._device, progress=partial(on_progress, cell))


class _Waiting(deque[Cell]):
    """Cells that wait for a worker."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(cells)
        self._deaths: Counter[str] = Counter()

    def put_back(self, cell: Cell, cause: str, device: str) -> Row | Notice:
        """After its worker's end a cell is the next one again, or has failed after too many deaths."""
        self._deaths[cell.key] += 1
        if self._deaths[cell.key] >= ATTEMPTS:
            reason = f"its worker died {ATTEMPTS} times ({cause}); out of memory is the usual cause"
            return failed_row(cell, reason, device=device)
        self.appendleft(cell)
        time.sleep(0.1 * self._deaths[cell.key])
        return Notice(f"a worker on {device} died ({cause}); trying again: {cell.describe()}")


class Processes:
    """A worker process per entry of ``devices``; a device named twice runs two cells at a time."""

    def __init__(self, devices: Sequence[str], conditions: Conditions) -> None:
        if not devices:
            raise ValueError("no devices to run on")
        self._devices = list(devices)
        self._conditions = conditions
        self.workers = len(devices)

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Events:
        """A worker that dies is replaced and its cell tried again."""
        waiting = _Waiting(cells)
        running: dict[Connection, _Worker] = {}

        def start(device: str) -> None:
            worker = _Worker(device, self._conditions)
            running[worker.connection] = worker
            worker.take(waiting.popleft())

        try:
            for device in self._devices[: len(cells)]:
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
                        worker.take(waiting.popleft())
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
        self.connection, other_end = Pipe()
        channel, threads = other_end.fileno(), str(conditions.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wildtta.bench.worker", str(channel), device, json.dumps(asdict(conditions))],
            pass_fds=[channel],
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        other_end.close()

    def take(self, cell: Cell) -> None:
        """Begin a cell."""
        self.cell = cell
        try:
            self.connection.send(cell.to_json())
        except OSError:
            return  # it died between two cells; reading from it will tell, and the cell is still in hand

    def ending(self) -> str:
        """Wait for the process and tell how it ended."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class RayPool:
    """Cells as Ray tasks: :func:`wildtta.bench.running.execute`, called by Ray's workers.

    Each task asks for one CPU, or for a share of a GPU; the driver receives the rows and writes the journal.
    A task whose worker or node is lost is submitted again. Data and models of the user's own must lie at the
    same paths on every node.

    Args:
        address: ``auto`` (the running cluster, or a new one on this machine where there is none) or
            ``HOST:PORT``.
        conditions: of every cell.
        gpu: use GPUs, ``per_device`` cells on each, or CPUs, ``conditions.threads`` for each cell; None: GPUs
            where the cluster has any.
    """

    def __init__(self, address: str, conditions: Conditions, *, gpu: bool | None, per_device: int = 1) -> None:
        try:
            import ray
        except ImportError as error:
            raise BenchError("running on a cluster needs Ray: pip install 'wildtta[ray]'") from error
        self._ray: Any = ray
        self._conditions = conditions
        if not ray.is_initialized():
            _connect(ray, address)
        total = ray.cluster_resources()
        self._gpu = gpu = bool(total.get("GPU")) if gpu is None else gpu
        self._wanted: dict[str, float] = (
            {"num_cpus": 0, "num_gpus": 1 / per_device} if gpu else {"num_cpus": conditions.threads, "num_gpus": 0}
        )
        if gpu and not total.get("GPU"):
            raise BenchError(f"the Ray cluster at {address!r} has no GPU; use --device cpu")
        available = total.get("GPU", 0) * per_device if gpu else total.get("CPU", 0) // conditions.threads
        self.workers = max(1, int(available))

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Events:
        ray = self._ray
        # Ray's own retries would run a lost cell again without a word; the driver does it and says so.
        task = ray.remote(max_retries=0, **self._wanted)(_run_on_worker)
        waiting = _Waiting(cells)
        in_hand: dict[Any, Cell] = {}
        try:
            while waiting or in_hand:
                while waiting and len(in_hand) < 2 * self.workers:
                    cell = waiting.popleft()
                    in_hand[task.remote(cell.to_json(), asdict(self._conditions), self._gpu, os.getcwd())] = cell
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


def _connect(ray: Any, address: str) -> None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(**quiet)
    except Exception as error:
        raise BenchError(f"no Ray cluster at {address!r}: {first_line(error)}") from error


def _run_on_worker(cell: dict[str, Any], conditions: dict[str, Any], gpu: bool, folder: str) -> Row:
    """In a Ray worker: relative paths as in the driver; the GPU that Ray assigned is the only one visible."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return execute(Cell.from_json(cell), Conditions(**conditions), "cuda:0" if gpu else "cpu")


Pool = InProcess | Processes | RayPool
