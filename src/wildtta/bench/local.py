"""Cells on this machine: in this process, or in worker processes, several to a device if wished."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

from wildtta.bench.cell import Cell
from wildtta.bench.execute import Conditions, execute, failed_row
from wildtta.bench.pool import ATTEMPTS, Event, Finished, Notice, OnProgress, Throttled


class InProcess:
    """One cell after the other, here."""

    workers = 1

    def __init__(self, device: str, conditions: Conditions) -> None:
        self._device = device
        self._conditions = conditions

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Generator[Event, None, None]:
        """See :class:`wildtta.bench.pool.Pool`."""
        for cell in cells:
            on_progress(cell, 0.0)
            yield Finished(
                execute(cell, self._conditions, self._device, progress=Throttled(partial(on_progress, cell)))
            )


class Processes:
    """A worker process per entry of ``devices`` (the same device several times: several cells at a time on it)."""

    def __init__(self, devices: Sequence[str], conditions: Conditions) -> None:
        if not devices:
            raise ValueError("no devices to run on")
        self._devices = list(devices)
        self._conditions = conditions

    @property
    def workers(self) -> int:
        """How many cells run at a time."""
        return len(self._devices)

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> Generator[Event, None, None]:
        """See :class:`wildtta.bench.pool.Pool`. A worker that dies is replaced and its cell tried again."""
        waiting = deque(cells)
        attempts: dict[str, int] = {}
        with selectors.DefaultSelector() as selector:
            try:
                for device in self._devices[: len(cells)]:
                    _start(device, self._conditions, waiting, selector)
                while selector.get_map():
                    for entry, _ in selector.select():
                        worker: _Worker = entry.data
                        messages = worker.read()
                        if messages is None:
                            selector.unregister(entry.fileobj)
                            yield from _bury(worker, waiting, attempts)
                            if waiting:
                                _start(worker.device, self._conditions, waiting, selector)
                            continue
                        for message in messages:
                            if "progress" in message and worker.cell is not None:
                                on_progress(worker.cell, message["progress"])
                            elif "row" in message:
                                yield Finished(message["row"])
                                worker.take(waiting)
            finally:
                for entry in list(selector.get_map().values()):
                    entry.data.end()


class _Worker:
    """A process, its pipe and the cell that it has in hand."""

    def __init__(self, device: str, conditions: Conditions) -> None:
        self.device = device
        self.cell: Cell | None = None
        self._rest = b""
        threads = str(conditions.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wildtta.bench.worker", device, json.dumps(conditions.to_json())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def take(self, waiting: deque[Cell]) -> None:
        """Begin the next cell, or end where there is none."""
        assert self.process.stdin is not None
        self.cell = waiting.popleft() if waiting else None
        if self.cell is None:
            self.process.stdin.close()
            return
        try:
            self.process.stdin.write(json.dumps(self.cell.to_json()).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # it died between two cells; reading from it will tell, and the cell is still in hand

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that are complete, or None where the process has ended."""
        assert self.process.stdout is not None
        received = self.process.stdout.read()
        if received == b"":
            return None
        *lines, self._rest = (self._rest + (received or b"")).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def end(self) -> None:
        """Stop it now."""
        self.process.kill()
        self.process.wait()


def _start(device: str, conditions: Conditions, waiting: deque[Cell], selector: selectors.BaseSelector) -> None:
    worker = _Worker(device, conditions)
    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
    worker.take(waiting)


def _bury(worker: _Worker, waiting: deque[Cell], attempts: dict[str, int]) -> Iterator[Event]:
    """After a worker's end: put the cell that it had back in front, or record it as failed after too many deaths."""
    code = worker.process.wait()
    cell = worker.cell
    if cell is None:
        return
    attempts[cell.key] = attempts.get(cell.key, 0) + 1
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    if attempts[cell.key] >= ATTEMPTS:
        reason = f"its worker died {ATTEMPTS} times ({ending}); out of memory is the usual cause"
        yield Finished(failed_row(cell, reason, device=worker.device))
        return
    yield Notice(f"a worker on {worker.device} died ({ending}); trying again: {cell.describe()}")
    waiting.appendleft(cell)
    time.sleep(0.1 * attempts[cell.key])
