"""What an experiment of the paper is: spots (one number or one curve each), where they stand, and what they show."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wildtta.bench import Cell, Row
from wildtta.paper.settings import Setting
from wildtta.report.chart import Chart

ACCURACY = "metrics/accuracy"
ECE = "metrics/ece"
AVERAGE = "Avg"


class NotRun(Exception):
    """A number that the journal does not have; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One place of a table or figure.

    Attributes:
        row: labels of its row, one per entry of the experiment's ``row_names``.
        column: label of its column.
        cells: the runs behind it: one per seed, and per corruption where the number is a mean over corruptions.
        parts: where the number is a mean of other spots with equal weights, those spots (``cells`` are then all theirs).
        metric: path into a journal row, such as ``metrics/accuracy`` or ``metrics/per_corruption/fog``, or one of
            :data:`DERIVED`.
        printed: the paper's number at this place, and ``printed_std`` its standard deviation.
        missing: why it cannot be run in this setting; empty where it can.
    """

    row: tuple[str, ...]
    column: str
    cells: tuple[Cell, ...] = ()
    parts: tuple[Spot, ...] = ()
    metric: str = ACCURACY
    printed: float | None = None
    printed_std: float | None = None
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Value:
    """Mean and standard deviation over the seeds (0 where there is one)."""

    mean: float
    std: float
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper: ``plan`` says what to run, ``draw`` (figures) how to show it."""

    name: str
    title: str
    needs: str
    plan: Callable[[Setting], list[Spot]]
    row_names: tuple[str, ...] = ("model", "method")
    unit: str = "accuracy, %"
    draw: Callable[[View], list[Chart]] | None = None
    note: str = ""

    @property
    def kind(self) -> Literal["table", "figure"]:
        """``table`` or ``figure``."""
        return "figure" if self.name.startswith("figure") else "table"

    @property
    def heading(self) -> str:
        """As the paper names it: ``Table 1``, ``Figure E``."""
        kind, _, number = self.name.partition("-")
        return f"{kind.title()} {number.upper()}"

    def cells(self, setting: Setting) -> list[Cell]:
        """Every cell of the experiment once, in order of first use."""
        return unique(cell for spot in self.plan(setting) for cell in spot.cells)


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once (tables share many), in order of first use."""
    return list({cell.key: cell for cell in cells}.values())


class View:
    """An experiment's spots filled from journal rows; what is missing raises :class:`NotRun` when asked for."""

    def __init__(self, experiment: Experiment, setting: Setting, rows: Mapping[str, Row]) -> None:
        self.experiment = experiment
        self.setting = setting
        self.spots = experiment.plan(setting)
        self._rows = rows
        self._places = {(spot.row, spot.column): spot for spot in self.spots}

    @property
    def row_labels(self) -> list[tuple[str, ...]]:
        """Row labels in order of first use."""
        return list(dict.fromkeys(spot.row for spot in self.spots))

    @property
    def columns(self) -> list[str]:
        """Column labels in order of first use."""
        return list(dict.fromkeys(spot.column for spot in self.spots))

    def spot(self, *where: str) -> Spot:
        """The spot of these row labels and, last, the column."""
        spot = self._places.get((where[:-1], where[-1]))
        if spot is None:
            raise NotRun(f"{' / '.join(where)} is not part of this run")
        return spot

    def by_seed(self, spot: Spot) -> dict[int, float]:
        """The spot's number for each seed that is complete: the mean over its parts, or its cells (one per corruption).

        A journal that was cut short gives the seeds that it has; :class:`NotRun` where there is none.
        """
        if spot.parts:
            columns = [self.by_seed(part) for part in spot.parts]
            shared = set.intersection(*(set(column) for column in columns))
            if not shared:
                raise NotRun("no seed is complete")
            return {seed: statistics.fmean(column[seed] for column in columns) for seed in sorted(shared)}
        by_seed: dict[int, list[Cell]] = {}
        for cell in spot.cells:
            by_seed.setdefault(cell.seed, []).append(cell)
        complete = {seed: cells for seed, cells in by_seed.items() if not any(self._lack(cell, spot) for cell in cells)}
        if not complete:
            lacking = (self._lack(cell, spot) for cell in spot.cells)
            where = " / ".join((*spot.row, spot.column))
            raise NotRun(spot.missing or next(filter(None, lacking), f"{where} has nothing to run here"))
        return {
            seed: statistics.fmean(float(look_up(self._rows[cell.key], spot.metric)) for cell in cells)
            for seed, cells in complete.items()
        }

    def _lack(self, cell: Cell, spot: Spot) -> str:
        """Why a cell has no number for a spot; empty where it has."""
        row = self._rows.get(cell.key)
        if row is None:
            return f"{cell.describe()} has not been run"
        if row["status"] != "ok":
            return f"{cell.describe()} failed: {row.get('reason')}"
        return "" if look_up(row, spot.metric) is not None else f"{cell.describe()} recorded no {spot.metric}"

    def value_at(self, spot: Spot) -> Value:
        """Mean and standard deviation of :meth:`by_seed`."""
        return summarise(list(self.by_seed(spot).values()))

    def value(self, *where: str) -> Value:
        """The number at these row labels and, last, the column."""
        return self.value_at(self.spot(*where))

    def mean(self, *where: str) -> float:
        """Its mean over the seeds."""
        return self.value(*where).mean

    def row(self, *where: str) -> Row:
        """The first seed's journal row behind a spot: where curves and diagnostics live."""
        spot = self.spot(*where)
        if not spot.cells:
            raise NotRun(spot.missing or f"{' / '.join(where)} has nothing to run here")
        row = self._rows.get(spot.cells[0].key)
        if row is None or row["status"] != "ok":
            raise NotRun(self._lack(spot.cells[0], spot))
        return row

    def finished(self, spot: Spot) -> list[Row]:
        """The finished rows behind a spot, as many as there are."""
        rows = (self._rows.get(cell.key) for cell in spot.cells)
        return [row for row in rows if row is not None and row["status"] == "ok"]

    def has(self, *where: str) -> bool:
        """Whether that number is there."""
        try:
            self.value(*where)
        except NotRun:
            return False
        return True

    @property
    def found(self) -> int:
        """How many of the experiment's cells the journal holds as finished."""
        cells = unique(cell for spot in self.spots for cell in spot.cells)
        return sum(1 for cell in cells if self._rows.get(cell.key, {}).get("status") == "ok")


def summarise(numbers: Sequence[float]) -> Value:
    """Mean and sample standard deviation of one number per seed."""
    return Value(
        mean=statistics.fmean(numbers),
        std=statistics.stdev(numbers) if len(numbers) > 1 else 0.0,
        seeds=len(numbers),
    )


def look_up(row: Row, path: str) -> Any:
    """Follow a path such as ``metrics/accuracy`` into a journal row; None where it leads nowhere."""
    if path in DERIVED:
        return DERIVED[path](row)
    place: Any = row
    for name in path.split("/"):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def _top_class(row: Row) -> int | None:
    counts = look_up(row, "metrics/histogram")
    return max(range(len(counts)), key=counts.__getitem__) if counts else None


def _stream_seconds(row: Row) -> float | None:
    milliseconds, batches = look_up(row, "cost/ms_per_batch"), look_up(row, "cost/batches")
    return None if milliseconds is None or batches is None else milliseconds * batches / 1000


#: Numbers that a journal row holds only implicitly: the class predicted most at the stream's end, and the seconds that
#: predicting and learning took (without reading images and building the network).
TOP_CLASS, STREAM_SECONDS = "top class", "stream seconds"
DERIVED: dict[str, Callable[[Row], Any]] = {TOP_CLASS: _top_class, STREAM_SECONDS: _stream_seconds}
