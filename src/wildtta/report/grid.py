"""Tables of any journal: methods against scenarios, then each scenario by corruption, calibration and cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wildtta.bench import MULTI_DOMAIN, Row
from wildtta.report.names import SHORT_CORRUPTIONS
from wildtta.report.order import in_order
from wildtta.report.runs import Run, collapsed, grouped, runs_in, streams_of
from wildtta.report.table import Better, Column, Number, Table, TableRow, with_best

Value = Callable[[Run], float | None]


def grid_tables(rows: Sequence[Row]) -> list[Table]:
    """Overviews, one table per scenario, calibration and cost; per data set."""
    found = runs_in(rows)
    tables: list[Table] = []
    for data, runs in grouped(found.runs, lambda run: run.data).items():
        subtitle = f"{data}, {found.told}" if found.told else data
        streams = streams_of(runs)
        tables += _overviews(subtitle, runs, list(streams))
        tables += [_by_corruption(subtitle, stream, part) for stream, part in streams.items()]
        tables.append(_quality_and_cost(subtitle, runs))
    return [replace(table, name=f"grid-{place}") for place, table in enumerate(tables, 1)]


def _number(runs: Sequence[Run], value: Value) -> Number:
    """Mean over corruptions within a seed, then mean ± deviation over seeds; only seeds with every corruption count."""
    seeds = grouped(runs, lambda run: run.cell.seed)
    whole = {run.cell.corruptions for run in runs}
    complete = [part for part in seeds.values() if {run.cell.corruptions for run in part} == whole]
    numbers = []
    for part in complete:
        values = [number for run in part if (number := value(run)) is not None]
        if len(values) == len(part):
            numbers.append(statistics.fmean(values))
    if not numbers:
        return Number(missing="not recorded" if complete else "not run")
    return Number(
        mean=statistics.fmean(numbers),
        std=statistics.stdev(numbers) if len(numbers) > 1 else None,
        seeds=len(numbers),
        keys=tuple(run.row["key"] for part in complete for run in part),
        collapsed=len(whole) == 1 and any(collapsed(run.row) for run in runs),
    )


def _largest(runs: Sequence[Run], value: Value) -> Number:
    """The largest value of all runs, whatever their corruption and seed."""
    values = [number for run in runs if (number := value(run)) is not None]
    if not values:
        return Number(missing="not recorded" if runs else "not run")
    return Number(
        mean=max(values),
        seeds=len({run.cell.seed for run in runs}),
        keys=tuple(run.row["key"] for run in runs),
        collapsed=any(collapsed(run.row) for run in runs),
    )


def _metric(*path: str, per_sample: bool = False) -> Value:
    def value(run: Run) -> float | None:
        place: Any = run.row
        for name in path:
            place = place.get(name) if isinstance(place, dict) else None
        if place is None:
            return None
        return float(place) / run.row["metrics"]["samples"] if per_sample else float(place)

    return value


_accuracy = _metric("metrics", "accuracy")


def _table(
    subtitle: str,
    title: str,
    runs: Sequence[Run],
    columns: Sequence[Column],
    number: Callable[[Sequence[Run], int], Number],
    unit: str,
    note: str | None = None,
) -> Table:
    """A row per model and method; without a note of its own, what was measured less often is told."""
    rows = [
        TableRow(labels=labels, numbers=tuple(number(part, place) for place in range(len(columns))))
        for labels, part in grouped(runs, lambda run: run.labels).items()
    ]
    if note is None:
        rows, note = _with_partial(rows, runs), _seeds_told(rows)
    return Table(
        name="",
        title=title,
        subtitle=subtitle,
        row_names=("model", "method"),
        columns=tuple(columns),
        rows=with_best(rows, columns, grouped=True),
        unit=unit,
        note=note,
    )


def _with_partial(rows: Sequence[TableRow], runs: Sequence[Run]) -> list[TableRow]:
    """Say of each number that covers fewer corruptions than its column: over how many of how many."""
    names = {run.row["key"]: run.corruptions for run in runs}

    def covered(number: Number) -> set[str]:
        return {name for key in number.keys for name in names[key]}

    whole = [set().union(*map(covered, column)) for column in zip(*(row.numbers for row in rows), strict=True)]
    return [
        replace(
            row,
            numbers=tuple(
                replace(number, partial=f"{len(part)} of {len(every)}")
                if number.mean is not None and (part := covered(number)) != every
                else number
                for number, every in zip(row.numbers, whole, strict=True)
            ),
        )
        for row in rows
    ]


def _seeds_told(rows: Sequence[TableRow]) -> str:
    """Where numbers have different numbers of seeds: how many."""
    seeds = {number.seeds for row in rows for number in row.numbers if number.mean is not None}
    return f"numbers are over {min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else ""


@dataclass(frozen=True, kw_only=True)
class _Overview:
    """A table of methods against streams: what it shows, and how a stream's runs become one number."""

    title: str
    unit: str
    better: Better
    summary: Callable[[Sequence[Run], Value], Number]
    value: Value


_OVERVIEWS = (
    _Overview(title="Overview: mean over corruptions", unit="accuracy, %", better="high", summary=_number, value=_accuracy),
    _Overview(
        title="Calibration error (ECE): mean over corruptions", unit="ECE, %, lower is better", better="low",
        summary=_number, value=_metric("metrics", "ece"),
    ),
    _Overview(
        title="Most predicted class in the last fifth of the stream: largest share over all runs",
        unit="share of predictions, %, lower is better", better="low",
        summary=_largest, value=_metric("metrics", "top_class_share"),
    ),
)  # fmt: skip


def _overviews(subtitle: str, runs: Sequence[Run], streams: Sequence[str]) -> list[Table]:
    """Accuracy where there are several streams; calibration and collapse where there are several methods."""
    accuracy, *others = _OVERVIEWS
    several = len({run.method for run in runs}) > 1
    wanted = [*([accuracy] if len(streams) > 1 else []), *(others if several else [])]
    tables = [_overview(subtitle, runs, streams, what) for what in wanted]
    return [table for table in tables if table.has_numbers]


def _overview(subtitle: str, runs: Sequence[Run], streams: Sequence[str], what: _Overview) -> Table:
    columns = [Column(label=stream, better=what.better) for stream in streams]

    def number(part: Sequence[Run], place: int) -> Number:
        return what.summary([run for run in part if run.stream == streams[place]], what.value)

    return _table(subtitle, what.title, runs, columns, number, what.unit)


def _by_corruption(subtitle: str, stream: str, runs: Sequence[Run]) -> Table:
    """A column per corruption (a multi-domain stream has them all in one run), and their mean."""
    names = in_order(name for run in runs for name in run.corruptions)
    together = any(run.cell.scenario in MULTI_DOMAIN for run in runs)
    columns = [Column(label=SHORT_CORRUPTIONS.get(name, name)) for name in names]
    if len(names) > 1:
        columns.append(Column(label="Avg"))

    def number(part: Sequence[Run], place: int) -> Number:
        if place == len(names):
            return _number(part, _accuracy)
        name = names[place]
        value = _metric("metrics", "per_corruption", name) if together else _accuracy
        return _number([run for run in part if name in run.corruptions], value)

    return _table(subtitle, stream[0].upper() + stream[1:], runs, columns, number, "accuracy, %")


_QUALITIES: tuple[tuple[Column, Value], ...] = (
    (Column(label="accuracy %"), _accuracy),
    (Column(label="top-5 %"), _metric("metrics", "top5")),
    (Column(label="ECE %", better="low"), _metric("metrics", "ece")),
    (Column(label="NLL", better="low", digits=2), _metric("metrics", "nll")),
    (Column(label="top class %", better="none"), _metric("metrics", "top_class_share")),
    (Column(label="forwards / image", better="none", digits=2), _metric("cost", "forwards", per_sample=True)),
    (Column(label="backwards / image", better="none", digits=2), _metric("cost", "backwards", per_sample=True)),
    (Column(label="ms / batch", better="low"), _metric("cost", "ms_per_batch")),
    (Column(label="peak MB", better="low", digits=0), _metric("cost", "peak_mb")),
)


def _quality_and_cost(subtitle: str, runs: Sequence[Run]) -> Table:
    """Means over everything a method ran; no number is called best where a model's methods ran different streams."""

    def number(part: Sequence[Run], place: int) -> Number:
        if place == len(_QUALITIES):
            return Number(mean=len(part), seeds=1, keys=tuple(run.row["key"] for run in part))
        value = _QUALITIES[place][1]
        values = [found for run in part if (found := value(run)) is not None]
        if not values:
            return Number(missing="not recorded")
        return Number(mean=statistics.fmean(values), seeds=1, keys=tuple(run.row["key"] for run in part))

    alike = _ran_the_same(runs)
    columns = [column if alike else replace(column, better="none") for column, _ in _QUALITIES]
    columns.append(Column(label="runs", better="none", digits=0))
    note = "" if alike else "methods ran different streams or seeds: compare only those that ran the same"
    return _table(subtitle, "Calibration and cost: mean over all runs", runs, columns, number, "", note)


def _ran_the_same(runs: Sequence[Run]) -> bool:
    """Whether all methods of each model ran the same streams, corruptions and seeds."""
    return all(
        len(
            {
                frozenset((run.stream, run.corruptions, run.cell.seed) for run in part)
                for part in grouped(same_model, lambda run: run.method).values()
            }
        )
        == 1
        for same_model in grouped(runs, lambda run: run.cell.model_title).values()
    )
