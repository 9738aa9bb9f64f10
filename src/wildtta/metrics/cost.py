"""Time per batch and peak memory, measured without slowing the stream down."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_MOST_EVENTS = 1000


class Stopwatch:
    """Milliseconds per batch of what lies between :meth:`start` and :meth:`stop`.

    On a GPU pairs of events are recorded in the stream of work and read once at the end; in long streams only
    every k-th batch gets a pair. On the CPU the clock is read.
    """

    def __init__(self, device: torch.device, batches: int) -> None:
        self._cuda = device.type == "cuda"
        self._every = max(1, -(-batches // _MOST_EVENTS)) if self._cuda else 1
        self._batch = 0
        self._marks: list[Any] = []

    def start(self) -> None:
        """Just before the batch's work is handed to the device."""
        if not self._cuda:
            self._marks.append(1e3 * time.perf_counter())
        elif self._batch % self._every == 0:
            event: Any = torch.cuda.Event
            self._marks.append(event(enable_timing=True))
            self._marks[-1].record()

    def stop(self) -> None:
        """Just after it."""
        self.start()
        self._batch += 1

    def summary(self) -> dict[str, float]:
        """Mean and median without the first batch, which pays for set-up (alone where there is no other)."""
        if self._cuda:
            torch.cuda.synchronize()
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        spans = [before.elapsed_time(after) if self._cuda else after - before for before, after in pairs]
        if not spans:
            return {}
        steady = torch.tensor(spans[1:] or spans, dtype=torch.float64)
        return {"ms_per_batch": float(steady.mean()), "ms_per_batch_median": float(steady.median())}


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of the peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # Linux forgets the process's peak when told to; elsewhere it is the peak since its start
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> float:
    """Peak MiB since :func:`reset_peak_memory`: of tensors on the GPU, or of the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
