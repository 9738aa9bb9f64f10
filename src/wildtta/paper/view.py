"""An experiment filled from a journal's rows: its numbers, and whether its claims hold."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wildtta.bench import Cell, Row
from wildtta.paper.experiment import AVERAGE, Claim, Experiment, Spot
from wildtta.paper.settings import EPISODIC, Setting
from wildtta.report.outcome import Outcome, Status
from wildtta.report.runs import look_up

#: Numbers that a row holds only implicitly: the class predicted most, and the seconds that predicting and learning
#: took (without reading images and building the network).
TOP_CLASS, STREAM_SECONDS = "top class", "stream seconds"
#: Behind a metric: as much for as many images as the paper's streams have, so that streams of any length compare.
PER_STREAM = " per 50,000 images"
_STREAM = 50_000
_OF_COST = ("cost/", STREAM_SECONDS)

#: A claim is not decided by numbers over fewer images: their standard error is up to 3.5 points.
LEAST_IMAGES = 200
#: Nor, where it is about what was learned, by runs with fewer updates: the paper's streams have at least 780.
LEAST_UPDATES = 20
#: Nor by a run with a bank that took fewer backward passes per image: its stream was over when it began to learn.
_LEAST_LEARNED = 0.2


class NotRun(Exception):
    """A number that the journal does not have; the message says why."""


class TooShort(NotRun):
    """A run at a scale that leaves out what is asked of it: short streams, few corruptions, one seed."""


class NotHere(NotRun):
    """Something that only the paper's own data or networks can tell."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """Mean and standard deviation over the seeds (0 where there is one)."""

    mean: float
    std: float
    seeds: int


class View:
    """An experiment's spots with a journal's numbers; asking for a missing one raises :class:`NotRun`."""

    def __init__(self, experiment: Experiment, setting: Setting, rows: Mapping[str, Row]) -> None:
        self.experiment = experiment
        self.setting = setting
        self.spots = experiment.plan(setting)
        self.fewest: int | None = None
        """The fewest images behind any number that was asked for."""
        self.fewest_updates: int | None = None
        """The fewest updates of any run behind what was asked for, but for its cost."""
        self.waiting: str = ""
        """A run behind such a number that was over before, or soon after, its bank was full."""
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

    @property
    def keys(self) -> set[str]:
        """Of the rows that the experiment uses."""
        return {cell.key for spot in self.spots for cell in spot.cells if cell.key in self._rows}

    @property
    def chance(self) -> float:
        """Accuracy (percent) of guessing, by the classes that the runs counted."""
        counted = (look_up(self._rows[key], "metrics/histogram") for key in sorted(self.keys))
        return next((100 / len(counts) for counts in counted if counts), self.setting.chance)

    def spot(self, *where: str) -> Spot:
        """The spot of these row labels and, last, the column."""
        spot = self._places.get((where[:-1], where[-1]))
        if spot is None:
            raise TooShort(f"{' / '.join(where)} is not part of {self.setting.scale.name} runs")
        return spot

    def of(self, experiment: Experiment) -> View:
        """Another experiment in the same setting, with the same rows."""
        return View(experiment, self.setting, self._rows)

    def by_seed(self, spot: Spot) -> dict[int, float]:
        """The spot's number for each complete seed: the mean over its parts, or over its cells (one per corruption).

        A journal that was cut short gives the seeds that it has; :class:`NotRun` where there is none.
        """
        if spot.parts:
            columns = [self.by_seed(part) for part in spot.parts]
            shared = set.intersection(*(set(column) for column in columns))
            if not shared:
                raise NotRun("no seed is complete")
            return {seed: statistics.fmean(column[seed] for column in columns) for seed in sorted(shared)}
        lacks = [self._lack(cell, spot) for cell in spot.cells]
        incomplete = {cell.seed for cell, lack in zip(spot.cells, lacks, strict=True) if lack}
        found: dict[int, list[Row]] = {}
        for cell in spot.cells:
            if cell.seed not in incomplete:
                found.setdefault(cell.seed, []).append(self._rows[cell.key])
        if not found:
            where = " / ".join((*spot.row, spot.column))
            raise NotRun(spot.missing or next(filter(None, lacks), f"{where} has nothing to run here"))
        for rows in found.values():
            self._count(rows, updates=not spot.metric.startswith(_OF_COST))
        return {seed: statistics.fmean(value_of(row, spot.metric) for row in rows) for seed, rows in found.items()}

    def _count(self, rows: Sequence[Row], *, updates: bool = True) -> None:
        images = [look_up(row, "metrics/samples") for row in rows]
        if None not in images:
            self.fewest = min(sum(images), sum(images) if self.fewest is None else self.fewest)
        if updates:
            online = (row for row in rows if row["cell"]["method"] not in {"none", *EPISODIC})
            counts = [look_up(row, "cost/batches") for row in online]
            self.fewest_updates = min((n for n in (*counts, self.fewest_updates) if n is not None), default=None)
        for row in rows:
            needed, learned = look_up(row, "resolved/warmup"), look_up(row, "cost/backwards")
            if needed and learned is not None and learned < _LEAST_LEARNED * (look_up(row, "metrics/samples") or 0):
                name = Cell.from_row(row).describe()
                self.waiting = f"{name} learned from hardly any image, since its bank waits for {needed} classes"

    def _lack(self, cell: Cell, spot: Spot) -> str:
        """Why a cell has no number for a spot; empty where it has."""
        row = self._rows.get(cell.key)
        if row is None:
            return f"{cell.describe()} has not been run"
        if row["status"] != "ok":
            return f"{cell.describe()} failed: {row.get('reason')}"
        return "" if value_of(row, spot.metric) is not None else f"{cell.describe()} recorded no {spot.metric}"

    def value_at(self, spot: Spot) -> Value:
        """Mean and standard deviation of :meth:`by_seed`."""
        numbers = list(self.by_seed(spot).values())
        std = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
        return Value(mean=statistics.fmean(numbers), std=std, seeds=len(numbers))

    def value(self, *where: str) -> Value:
        """The number at these row labels and, last, the column."""
        return self.value_at(self.spot(*where))

    def mean(self, *where: str) -> float:
        """Its mean over the seeds."""
        return self.value(*where).mean

    def means(self, rows: Sequence[Sequence[str]], *column: str) -> list[float]:
        """The means of several rows in one column."""
        return [self.mean(*row, *column) for row in rows]

    def line(self, *row: str) -> dict[str, float]:
        """The means of one row by its columns."""
        columns = [spot.column for spot in self.spots if spot.row == row]
        if not columns:
            raise TooShort(f"{' / '.join(row)} is not part of {self.setting.scale.name} runs")
        return {column: self.mean(*row, column) for column in columns}

    def known_line(self, *row: str) -> dict[str, Value]:
        """The numbers of one row by its columns, as many as there are."""
        found = {spot.column: self.known(*row, spot.column) for spot in self.spots if spot.row == row}
        return {column: value for column, value in found.items() if value is not None}

    def known(self, *where: str) -> Value | None:
        """The number, or None where there is none."""
        with suppress(NotRun):
            return self.value(*where)
        return None

    def row(self, *where: str) -> Row:
        """The first seed's journal row behind a spot: where curves and diagnostics live."""
        spot = self.spot(*where)
        if not spot.cells:
            raise NotRun(spot.missing or f"{' / '.join(where)} has nothing to run here")
        row = self._rows.get(spot.cells[0].key)
        if row is None or row["status"] != "ok":
            raise NotRun(self._lack(spot.cells[0], spot))
        self._count([row])
        return row

    def total(self, path: str, *where: str) -> float:
        """The sum over all runs behind a spot of something that each recorded."""
        spot = self.spot(*where)
        self.by_seed(spot)
        rows = self.finished(spot)
        found = [look_up(row, path) for row in rows]
        if None in found:
            raise NotRun(f"a run recorded no {path}")
        return float(sum(found))

    def record(self, path: str, *where: str) -> Any:
        """Something that the row behind a spot recorded; :class:`NotRun` where it did not."""
        found = look_up(self.row(*where), path)
        if found is None:
            raise NotRun(f"the run recorded no {path}")
        return found

    def recorded(self, path: str, *where: str) -> Any | None:
        """The same, or None where there is nothing."""
        with suppress(NotRun):
            return self.record(path, *where)
        return None

    def finished(self, spot: Spot) -> list[Row]:
        """The finished rows behind a spot, as many as there are."""
        rows = (self._rows.get(cell.key) for cell in spot.cells)
        return [row for row in rows if row is not None and row["status"] == "ok"]

    @property
    def corruptions(self) -> list[str]:
        """The columns that are corruptions: all but the average."""
        return [column for column in self.columns if column != AVERAGE]


def decide(claim: Claim, view: View) -> Outcome:
    """Evaluate one claim of the view's experiment."""
    seen = copy.copy(view)
    seen.fewest, seen.fewest_updates, seen.waiting = None, None, ""
    status: Status
    try:
        parts = list(claim.check(seen))
        status = "holds" if all(holds for holds, _ in parts) else "fails"
        numbers = "; ".join(text for _, text in parts)
        if seen.fewest is not None and seen.fewest < LEAST_IMAGES:
            raise TooShort(f"{numbers}: over {seen.fewest} images only")
        if seen.fewest_updates is not None and seen.fewest_updates < LEAST_UPDATES:
            raise TooShort(f"{numbers}: after {seen.fewest_updates} updates only")
        if seen.waiting:
            raise TooShort(f"{numbers}: {seen.waiting}")
    except TooShort as reason:
        status, numbers = "too short to tell", str(reason)
    except NotRun as reason:
        status, numbers = "not run", str(reason)
    numbers = view.setting.renamed(numbers).replace("SAR2", "SAR²")
    setting = view.setting
    return Outcome(
        name=claim.name, text=claim.text, status=status, numbers=numbers, data=setting.label, scaled=setting.scaled
    )


def value_of(row: Row, metric: str) -> Any:
    """What a row says of a spot's metric; None where it says nothing."""
    if metric.endswith(PER_STREAM):
        value, samples = value_of(row, metric.removesuffix(PER_STREAM)), look_up(row, "metrics/samples")
        return None if value is None or not samples else value * _STREAM / samples
    if metric == TOP_CLASS:
        counts = look_up(row, "metrics/histogram")
        return max(range(len(counts)), key=counts.__getitem__) if counts else None
    if metric == STREAM_SECONDS:
        # The median: what is paid once in a stream, as the recording of a graph, would weigh in one of 60 batches as
        # much as all the rest, and in the paper's of 780 next to nothing.
        batches, mean = look_up(row, "cost/batches"), look_up(row, "cost/ms_per_batch")
        median = look_up(row, "cost/ms_per_batch_median")
        milliseconds = mean if median is None else median
        return None if milliseconds is None or batches is None else milliseconds * batches / 1000
    return look_up(row, metric)
