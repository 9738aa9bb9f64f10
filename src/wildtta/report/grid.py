"""Tables of any journal: methods against scenarios, each scenario by corruption, calibration and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev

from wildtta.bench import MULTI_DOMAIN, Row
from wildtta.report.names import SHORT_CORRUPTIONS
from wildtta.report.order import in_order, stream_order
from wildtta.report.runs import Run, collapsed, grouped, look_up, runs_in
from wildtta.report.table import Better, Column, Number, Table, TableRow, sentence, with_best

Summary = Callable[[Sequence[Run]], Number]
"""How some runs become one number."""

_ACCURACY = "metrics/accuracy"


def grid_tables(rows: Sequence[Row]) -> list[Table]:
    """Overviews, one table per scenario, calibration and cost; per data set."""
    found, shared = runs_in(rows)
    tables: list[Table] = []
    for data, runs in grouped(found, lambda run: run.data).items():
        streams = grouped(sorted(runs, key=lambda run: stream_order(run.cell, run.stream)), lambda run: run.stream)
        made = [*_overviews(runs, list(streams)), *(_by_corruption(*item) for item in streams.items()), _costs(runs)]
        tables += [replace(table, subtitle=f"{data}, {shared}" if shared else data) for table in made]
    return [replace(table, name=f"grid-{place}") for place, table in enumerate(tables, 1)]


def _values(runs: Sequence[Run], path: str) -> list[float]:
    """What the runs recorded; ``... per sample`` divides by the length of the stream."""
    place, per_sample, _ = path.partition(" per sample")
    found = [(look_up(run.row, place), run.row["metrics"].get("samples") if per_sample else 1) for run in runs]
    return [float(value) / samples for value, samples in found if value is not None]


def _over_seeds(runs: Sequence[Run], path: str) -> Number:
    """Mean over corruptions within a seed, then over seeds; only seeds with every corruption count."""
    whole = {run.cell.corruptions for run in runs}
    seeds = grouped(runs, lambda run: run.cell.seed).values()
    complete = [part for part in seeds if {run.cell.corruptions for run in part} == whole]
    numbers = [fmean(values) for part in complete if len(values := _values(part, path)) == len(part)]
    if not numbers:
        return Number(missing="not recorded" if complete else "not run")
    return Number(
        mean=fmean(numbers),
        std=stdev(numbers) if len(numbers) > 1 else None,
        seeds=len(numbers),
        keys=tuple(run.row["key"] for part in complete for run in part),
        collapsed=len(whole) == 1 and any(collapsed(run.row) for run in runs),
    )


def _over_runs(runs: Sequence[Run], path: str, summary: Callable[[Sequence[float]], float] = fmean) -> Number:
    """One value of all runs, whatever their corruption and seed."""
    values = _values(runs, path)
    if not values:
        return Number(missing="not recorded" if runs else "not run")
    seeds = len({run.cell.seed for run in runs})
    return Number(mean=summary(values), seeds=seeds, keys=tuple(run.row["key"] for run in runs))


def _largest(runs: Sequence[Run], path: str) -> Number:
    return replace(_over_runs(runs, path, max), collapsed=any(collapsed(run.row) for run in runs))


def _table(
    title: str, runs: Sequence[Run], columns: Sequence[tuple[Column, Summary]], unit: str, note: str | None = None
) -> Table:
    """A row per model and method; without a note of its own, what was measured less often is told."""
    rows = [
        TableRow(labels=labels, numbers=tuple(summary(part) for _, summary in columns))
        for labels, part in grouped(runs, lambda run: run.labels).items()
    ]
    if note is None:
        rows = _with_partial(rows, runs)
        seeds = {number.seeds for row in rows for number in row.numbers if number.mean is not None}
        note = f"numbers are over {min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else ""
    heads = tuple(column for column, _ in columns)
    best = with_best(rows, heads, grouped=True)
    names = ("model", "method")
    return Table(name="", title=title, subtitle="", row_names=names, columns=heads, rows=best, unit=unit, note=note)


def _with_partial(rows: Sequence[TableRow], runs: Sequence[Run]) -> list[TableRow]:
    """Say of each number that covers fewer corruptions than its column: over how many of how many."""
    names = {run.row["key"]: run.corruptions for run in runs}

    def covered(number: Number) -> set[str]:
        return {name for key in number.keys for name in names[key]}

    def told(number: Number, every: set[str]) -> Number:
        part = covered(number)
        lacks = number.mean is not None and part != every
        return replace(number, partial=f"{len(part)} of {len(every)}") if lacks else number

    whole = [set().union(*map(covered, column)) for column in zip(*(row.numbers for row in rows), strict=True)]
    return [replace(row, numbers=tuple(map(told, row.numbers, whole))) for row in rows]


def _overviews(runs: Sequence[Run], streams: Sequence[str]) -> list[Table]:
    """Methods against streams: accuracy if there are several streams, the rest if there are several methods."""

    def overview(title: str, unit: str, better: Better, path: str, summary: Callable[..., Number]) -> Table:
        def of(stream: str) -> Summary:
            return lambda part: summary([run for run in part if run.stream == stream], path)

        return _table(title, runs, [(Column(label=stream, better=better), of(stream)) for stream in streams], unit)

    wanted = []
    if len(streams) > 1:
        wanted.append(overview("Overview: mean over corruptions", "accuracy, %", "high", _ACCURACY, _over_seeds))
    if len({run.method for run in runs}) > 1:
        ece, share = "Calibration error (ECE): mean over corruptions", "share of predictions, %, lower is better"
        most = "Most predicted class in the last fifth of the stream: largest share over all runs"
        wanted.append(overview(ece, "ECE, %, lower is better", "low", "metrics/ece", _over_seeds))
        wanted.append(overview(most, share, "low", "metrics/top_class_share", _largest))
    return [table for table in wanted if table.has_numbers]


def _by_corruption(stream: str, runs: Sequence[Run]) -> Table:
    """A column per corruption (a multi-domain stream has them all in one run), and their mean."""
    names = in_order(name for run in runs for name in run.corruptions)
    together = any(run.cell.scenario in MULTI_DOMAIN for run in runs)

    def of(name: str) -> Summary:
        path = f"metrics/per_corruption/{name}" if together else _ACCURACY
        return lambda part: _over_seeds([run for run in part if name in run.corruptions], path)

    columns = [(Column(label=SHORT_CORRUPTIONS.get(name, name)), of(name)) for name in names]
    if len(names) > 1:
        columns.append((Column(label="Avg"), partial(_over_seeds, path=_ACCURACY)))
    return _table(sentence(stream)[:-1], runs, columns, "accuracy, %")


_COSTS: dict[str, Column] = {
    _ACCURACY: Column(label="accuracy %"),
    "metrics/top5": Column(label="top-5 %"),
    "metrics/ece": Column(label="ECE %", better="low"),
    "metrics/nll": Column(label="NLL", better="low", digits=2),
    "metrics/top_class_share": Column(label="top class %", better="none"),
    "cost/forwards per sample": Column(label="forwards / image", better="none", digits=2),
    "cost/backwards per sample": Column(label="backwards / image", better="none", digits=2),
    "cost/ms_per_batch": Column(label="ms / batch", better="low"),
    "cost/peak_mb": Column(label="peak MB", better="low", digits=0),
}


def _costs(runs: Sequence[Run]) -> Table:
    """Means over everything a method ran; no number is called best where a model's methods ran different streams."""
    ran = {
        labels: frozenset((run.stream, run.corruptions, run.cell.seed) for run in part)
        for labels, part in grouped(runs, lambda run: run.labels).items()
    }
    alike = len({(model, streams) for (model, _), streams in ran.items()}) == len({model for model, _ in ran})
    columns: list[tuple[Column, Summary]] = [
        (column if alike else replace(column, better="none"), partial(_over_runs, path=path))
        for path, column in _COSTS.items()
    ]
    columns.append(
        (
            Column(label="runs", better="none", digits=0),
            lambda part: Number(mean=len(part), seeds=1, keys=tuple(run.row["key"] for run in part)),
        )
    )
    note = "" if alike else "methods ran different streams or seeds: compare only those that ran the same"
    return _table("Calibration and cost: mean over all runs", runs, columns, "", note)
