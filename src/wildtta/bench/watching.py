"""Watching a launch: on stderr as it goes, and as curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wildtta.bench.cell import Cell, told_apart
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row
from wildtta.bench.unadapted import beside_unadapted
from wildtta.bench.workload import relative_cost
from wildtta.metrics import row_collapsed
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
        self.notice, self.end = self._progress.say, self._progress.end
        self._begun: dict[str, float] = {}
        self._finished = 0
        self._unadapted: list[Row] = []
        self._costs = {cell.key: relative_cost(cell) for cell in cells}
        self._spent = self._to_spend = 0.0

    def begin(self, total: int, done: int, workers: int) -> None:
        at_a_time = f", {workers} at a time" if workers > 1 else ""
        self.notice(f"{total} {'cell' if total == 1 else 'cells'}, {done} finished before, {total - done} to run{at_a_time}")
        self._progress.begin(total, done)
        self._finished = done
        # Which cells were found is not told; the others cost their share of the whole.
        self._to_spend = sum(self._costs.values()) * (1 - done / max(1, total))

    def _share(self) -> float:
        """The part of the work that is done, by what cells should cost."""
        spent = self._spent + sum(self._costs[key] * share for key, share in self._begun.items())
        return min(1.0, spent / max(self._to_spend, 1e-9))

    def running(self, cell: Cell, share: float) -> None:
        self._begun[cell.key] = share
        done = self._finished + sum(self._begun.values())
        self._progress.update(done, f"{self._lines[cell.key]}: {share:.0%}", share=self._share())

    def finished(self, row: Row) -> None:
        self._begun.pop(row["key"], None)
        self._finished += 1
        self._spent += self._costs[row["key"]]
        good, count = row["status"] == "ok", f"[{self._finished}/{self._progress.total:.0f}]"
        if good and row["cell"]["method"] == "none":
            self._unadapted.append(row)
        told = _result(*beside_unadapted([row], among=self._unadapted)) if good else row["reason"]
        line = f"{count} {'' if good else 'FAILED '}{self._lines[row['key']]}: {told}"
        done = self._finished + sum(self._begun.values())
        self._progress.update(done, line=line, style="" if good else "bold red", share=self._share())


def _result(row: Row) -> str:
    metrics, cost = row["metrics"], row["cost"]
    # Beside the unadapted network where that is finished by now; a report has all of them.
    fell = "top_class_share" in metrics and row_collapsed(metrics, adapts=row["cell"]["method"] != "none")
    collapsed = ", collapsed" if fell else ""
    speed = f"{cost['ms_per_batch']:.1f} ms/batch, " if "ms_per_batch" in cost else ""
    return f"{metrics['accuracy']:.1f} %{collapsed} ({speed}{row['wall_s']:.1f} s)"


def tensorboard_writer() -> Any:
    """TensorBoard's writer of one run."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BenchError("--tensorboard needs tensorboard: pip install 'wildtta[track]'") from error
    return SummaryWriter


def write_curves(row: Row, folder: str) -> None:
    """Running accuracy and per-batch series of a finished cell as a TensorBoard run."""
    title = Cell.from_row(row).describe().translate(str.maketrans(" /:", "_--"))
    with tensorboard_writer()(log_dir=f"{folder}/{title}-{row['key'][:6]}") as writer:
        for samples, accuracy in row["metrics"]["running"]:
            writer.add_scalar("accuracy so far", accuracy, samples)
        batches = row["series"].get("batch", [])
        for name, values in row["series"].items():
            for batch, value in zip(batches, values, strict=True):
                if name != "batch" and value is not None:
                    writer.add_scalar(f"batch/{name}", value, batch)
