"""Watching a launch: on stderr as it goes, and as curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wildtta.bench.cell import Cell, told_apart
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row
from wildtta.progress import Progress


class Observer(Protocol):
    """Is told what happens in a launch; ``end`` comes also where it is interrupted."""

    def begin(self, total: int, done: int, workers: int) -> None: ...
    def running(self, cell: Cell, share: float) -> None: ...
    def finished(self, row: Row) -> None: ...
    def notice(self, text: str) -> None: ...
    def end(self) -> None: ...


class Display:
    """A line per finished cell on stderr; a bar below on a terminal, a line now and then elsewhere."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._lines = told_apart(cells)
        self._progress = Progress("cells", "cells")
        self._begun: dict[str, float] = {}
        self._finished = 0

    def begin(self, total: int, done: int, workers: int) -> None:
        at_a_time = f", {workers} at a time" if workers > 1 else ""
        self.notice(f"{total} cells, {done} finished before, {total - done} to run{at_a_time}")
        self._progress.begin(total, done)
        self._finished = done

    def running(self, cell: Cell, share: float) -> None:
        self._begun[cell.key] = share
        self._progress.update(self._finished + sum(self._begun.values()), f"{self._lines[cell.key]}: {share:.0%}")

    def finished(self, row: Row) -> None:
        self._begun.pop(row["key"], None)
        self._finished += 1
        good, count = row["status"] == "ok", f"[{self._finished}/{self._progress.total:.0f}]"
        told = _result(row) if good else row["reason"]
        line = f"{count} {'' if good else 'FAILED '}{self._lines[row['key']]}: {told}"
        done = self._finished + sum(self._begun.values())
        self._progress.update(done, line=line, style="" if good else "bold red")

    def notice(self, text: str) -> None:
        self._progress.say(text)

    def end(self) -> None:
        self._progress.end()


def _result(row: Row) -> str:
    metrics, cost = row["metrics"], row["cost"]
    collapsed = ", collapsed" if metrics["collapsed"] else ""
    speed = f"{cost['ms_per_batch']:.1f} ms/batch, " if "ms_per_batch" in cost else ""
    return f"{metrics['accuracy']:.1f} %{collapsed} ({speed}{row['wall_s']:.1f} s)"


class TensorBoard:
    """Running accuracy and per-batch series of every finished cell, one TensorBoard run each."""

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise BenchError("--tensorboard needs tensorboard: pip install 'wildtta[track]'") from error
        self._writer: Any = SummaryWriter
        self._folder = folder

    def write(self, row: Row) -> None:
        """The curves of a row; nothing where it has no numbers."""
        if row["status"] != "ok":
            return
        title = Cell.from_row(row).describe().replace(" ", "_").replace("/", "-").replace(":", "-")
        with self._writer(log_dir=f"{self._folder}/{title}-{row['key'][:6]}") as writer:
            for samples, accuracy in row["metrics"]["running"]:
                writer.add_scalar("accuracy so far", accuracy, samples)
            batches = row["series"].get("batch", [])
            for name, values in row["series"].items():
                for batch, value in zip(batches, values, strict=True):
                    if name != "batch" and value is not None:
                        writer.add_scalar(f"batch/{name}", value, batch)
