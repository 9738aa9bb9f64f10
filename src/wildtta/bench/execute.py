"""One cell in, one row out, whatever happens: what every kind of worker runs."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row

Progress = Callable[[float], None]
"""Receives the share of a cell's stream that is done."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Where and how cells are run; nothing here is part of a cell's identity.

    Attributes:
        root: folder of the data (``--data``).
        source: folder of clean source images, for methods that want them (EATA's Fisher, ReCAP's variance).
        threads: CPU threads of one worker. It decides the order of float32 sums, so journals that are to agree to the
            last digit use the same number; it is recorded.
        loaders: processes that read and decode images for one cell, where they don't fit into memory.
    """

    root: str | None = None
    source: str | None = None
    threads: int = 1
    loaders: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values for a worker in another process."""
        return asdict(self)


def execute(cell: Cell, conditions: Conditions, device: str, *, progress: Progress | None = None) -> Row:
    """Run a cell; a failure becomes a row that tells its reason."""
    from wildtta.bench.runner import run_cell

    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # Operations without a deterministic form on a GPU say so once per call.
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            return run_cell(cell, conditions, device, progress=progress)
    except Exception as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return failed_row(
            cell, reason_of(error), device=device, wall_s=time.perf_counter() - began, trace=_trace(error)
        )


def failed_row(cell: Cell, reason: str, *, device: str, wall_s: float = 0.0, trace: str = "") -> Row:
    """The row of a cell that has no numbers."""
    return {
        "key": cell.key,
        "cell": cell.to_json(),
        "status": "failed",
        "reason": reason,
        "device": device,
        "wall_s": round(wall_s, 3),
        **({"trace": trace} if trace else {}),
    }


def reason_of(error: BaseException) -> str:
    """One line that tells what went wrong."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"out of memory: {text}"
    if isinstance(error, BenchError | ValueError | FileNotFoundError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _trace(error: BaseException) -> str:
    """Where it happened, for what is not the user's mistake; the last frames are enough."""
    if isinstance(error, BenchError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
