"""Showing a campaign: a live bar on a terminal, plain lines elsewhere, TensorBoard if wished."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from wildtta.bench.campaign import Observer
from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row


def summary_line(row: Row) -> str:
    """A finished row in one line."""
    cell = Cell.from_json(row["cell"])
    if row["status"] != "ok":
        return f"FAILED {cell.describe()}: {row['reason']}"
    metrics, cost = row["metrics"], row["cost"]
    collapsed = ", collapsed" if metrics["collapsed"] else ""
    speed = f"{cost['ms_per_batch']:.1f} ms/batch, " if "ms_per_batch" in cost else ""
    return f"{cell.describe()}: {metrics['accuracy']:.1f} %{collapsed} ({speed}{row['wall_s']:.1f} s)"


def time_left(done_here: float, remaining: float, elapsed_s: float) -> str:
    """``about 3 min left`` by the rate so far; empty before there is one."""
    if done_here <= 0 or elapsed_s <= 0:
        return ""
    seconds = remaining / done_here * elapsed_s
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


class _Tally:
    """How much is done, counting the begun part of running cells."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done, self.found = total, done, done
        self.begun: dict[str, float] = {}
        self.started = time.monotonic()

    def finish(self, key: str) -> None:
        self.done += 1
        self.begun.pop(key, None)

    @property
    def progress(self) -> float:
        return self.done + sum(self.begun.values())

    @property
    def left(self) -> str:
        here = self.progress - self.found
        return time_left(here, self.total - self.progress, time.monotonic() - self.started)

    @property
    def rate(self) -> str:
        minutes = (time.monotonic() - self.started) / 60
        here = self.done - self.found
        return f"{here / minutes:.1f} cells/min" if here and minutes > 0 else ""


class Lines:
    """A line per finished cell, and one now and then while a long cell runs."""

    def __init__(self, write: Callable[[str], None] | None = None, *, every_s: float = 20.0) -> None:
        self._write = write or _to_stderr
        self._every_s = every_s
        self._spoke = time.monotonic()
        self._tally = _Tally(0, 0)

    def begin(self, total: int, done: int, workers: int) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._tally = _Tally(total, done)
        at_a_time = f", {workers} at a time" if workers > 1 else ""
        self._say(f"{total} cells, {done} finished before, {total - done} to run{at_a_time}")

    def running(self, cell: Cell, share: float) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._tally.begun[cell.key] = share
        if time.monotonic() - self._spoke > self._every_s:
            self._say(f"[{self._tally.done}/{self._tally.total}] {cell.describe()}: {share:.0%} {self._tally.left}")

    def finished(self, row: Row) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._tally.finish(row["key"])
        facts = " · ".join(fact for fact in (self._tally.rate, self._tally.left) if fact)
        self._say(f"[{self._tally.done}/{self._tally.total}] {summary_line(row)}{' · ' if facts else ''}{facts}")

    def notice(self, text: str) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._say(text)

    def end(self) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        self._write(text)


class Bar:
    """A live bar with rate and time left (rich); finished cells scroll by above it."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:.1f}/{task.total:.0f} cells"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[current]}"),
            console=console,
        )
        self._task: Any = None
        self._tally = _Tally(0, 0)

    def begin(self, total: int, done: int, workers: int) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._tally = _Tally(total, done)
        self._progress.start()
        self._task = self._progress.add_task("cells", total=total, completed=done, facts="", current="")
        if done:
            self.notice(f"{done} of {total} cells were finished before")

    def running(self, cell: Cell, share: float) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._tally.begun[cell.key] = share
        self._show(cell.describe())

    def finished(self, row: Row) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._tally.finish(row["key"])
        style = "" if row["status"] == "ok" else "bold red"
        self._progress.console.print(summary_line(row), style=style, highlight=False, markup=False)
        self._show("")

    def _show(self, current: str) -> None:
        facts = " · ".join(fact for fact in (self._tally.rate, self._tally.left) if fact)
        self._progress.update(self._task, completed=self._tally.progress, facts=facts, current=current)

    def notice(self, text: str) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._progress.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        self._progress.stop()


class TensorBoard:
    """Running accuracy and per-batch series of every finished cell, one TensorBoard run each."""

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise BenchError("--tensorboard needs tensorboard: pip install 'wildtta[track]'") from error
        self._writer: Any = SummaryWriter
        self._folder = folder

    def begin(self, total: int, done: int, workers: int) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""

    def running(self, cell: Cell, share: float) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""

    def finished(self, row: Row) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        if row["status"] != "ok":
            return
        cell = Cell.from_json(row["cell"])
        title = cell.describe().replace(" ", "_").replace("/", "-").replace(":", "-")
        with self._writer(log_dir=f"{self._folder}/{title}-{row['key'][:6]}") as writer:
            for samples, accuracy in row["metrics"]["running"]:
                writer.add_scalar("accuracy so far", accuracy, samples)
            batches = row["series"].get("batch", [])
            for name, values in row["series"].items():
                for batch, value in zip(batches, values, strict=True):
                    if name != "batch" and value is not None:
                        writer.add_scalar(f"batch/{name}", value, batch)

    def notice(self, text: str) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""

    def end(self) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""


class Several:
    """All of these observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def begin(self, total: int, done: int, workers: int) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        for observer in self._observers:
            observer.begin(total, done, workers)

    def running(self, cell: Cell, share: float) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        for observer in self._observers:
            observer.running(cell, share)

    def finished(self, row: Row) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        for observer in self._observers:
            observer.finished(row)

    def notice(self, text: str) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        for observer in self._observers:
            observer.notice(text)

    def end(self) -> None:
        """See :class:`wildtta.bench.campaign.Observer`."""
        for observer in self._observers:
            observer.end()


def observer_for(console: Any | None = None, *, tensorboard: str | None = None) -> Observer:
    """A bar on a terminal where rich is installed, plain lines otherwise; TensorBoard beside it if a folder is named."""
    shown: Observer
    try:
        from rich.console import Console

        screen = console or Console(stderr=True)
        shown = Bar(screen) if screen.is_terminal else Lines()
    except ImportError:
        shown = Lines()
    return Several([shown, TensorBoard(tensorboard)]) if tensorboard else shown


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
