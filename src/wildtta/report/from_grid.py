"""Tables and charts of any journal: methods against scenarios, then each scenario by corruption, calibration and cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wildtta.bench import MULTI_DOMAIN, Cell, Row
from wildtta.report.chart import Figure, Line, LineChart
from wildtta.report.names import SCENARIOS, SHORT_CORRUPTIONS, method_name
from wildtta.report.table import Column, Number, Table, TableRow, with_best

_MOST_CURVES = 12


@dataclass(frozen=True)
class Run:
    """A finished row with its cell."""

    cell: Cell
    row: Row

    @property
    def labels(self) -> tuple[str, str]:
        """Model and method as a table names them."""
        return self.cell.model_title, self.cell.name or method_name(self.cell.method, self.cell.options)

    @property
    def stream(self) -> str:
        """The scenario in words, with what sets it apart."""
        cell = self.cell
        parts = [SCENARIOS.get(cell.scenario, cell.scenario)]
        if cell.corruptions:
            parts.append(f"level {cell.severity}")
        if cell.scenario != "single" and cell.batch_size != 64:
            parts.append(f"batch {cell.batch_size}")
        parts += [f"{name} {value}" for name, value in sorted(cell.scenario_options.items())]
        if "split" in cell.data_options:
            parts.append(str(cell.data_options["split"]))
        return ", ".join(parts)


def runs_in(rows: Iterable[Row]) -> list[Run]:
    """The finished rows."""
    return [Run(Cell.from_json(row["cell"]), row) for row in rows if row["status"] == "ok"]


def grid_tables(rows: Sequence[Row]) -> list[Table]:
    """Overview, one table per scenario, calibration and cost; per data set."""
    tables: list[Table] = []
    for data, runs in _grouped(runs_in(rows), _data_of).items():
        streams = _grouped(runs, lambda run: run.stream)
        if len(streams) > 1:
            tables.append(_overview(data, runs, list(streams)))
        tables += [_by_corruption(data, stream, part) for stream, part in streams.items()]
        tables.append(_quality_and_cost(data, runs))
    return [_numbered(place, table) for place, table in enumerate(tables, 1)]


def _data_of(run: Run) -> str:
    protocol = "" if run.cell.protocol == "auto" else f", preprocessing {run.cell.protocol}"
    return run.cell.data + protocol


def _numbered(place: int, table: Table) -> Table:
    return replace(table, name=f"grid-{place}")


def _grouped(runs: Iterable[Run], name: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(name(run), []).append(run)
    return groups


def _number(runs: Sequence[Run], value: Callable[[Run], float | None]) -> Number:
    """Mean over corruptions within a seed, then mean ± deviation over seeds; only seeds with every corruption count."""
    seeds = _grouped(runs, lambda run: run.cell.seed)
    whole = {run.cell.corruptions for run in runs}
    complete = [part for part in seeds.values() if {run.cell.corruptions for run in part} == whole]
    numbers = []
    for part in complete:
        values = [number for run in part if (number := value(run)) is not None]
        if len(values) == len(part):
            numbers.append(statistics.fmean(values))
    if not numbers:
        return Number(missing="not run")
    return Number(
        mean=statistics.fmean(numbers),
        std=statistics.stdev(numbers) if len(numbers) > 1 else None,
        seeds=len(numbers),
        keys=tuple(run.row["key"] for part in complete for run in part),
        collapsed=len(whole) == 1 and any(run.row["metrics"].get("collapsed") for run in runs),
    )


def _accuracy(run: Run) -> float | None:
    value = run.row["metrics"].get("accuracy")
    return None if value is None else float(value)


def _table(
    data: str,
    title: str,
    runs: Sequence[Run],
    columns: Sequence[Column],
    number: Callable[[Sequence[Run], int], Number],
    unit: str,
) -> Table:
    rows = [
        TableRow(labels=labels, numbers=tuple(number(part, place) for place in range(len(columns))))
        for labels, part in _grouped(runs, lambda run: run.labels).items()
    ]
    rows.sort(key=lambda row: row.labels[0])
    return Table(
        name="",
        title=title,
        subtitle=data,
        row_names=("model", "method"),
        columns=tuple(columns),
        rows=with_best(rows, columns, grouped=True),
        unit=unit,
    )


def _overview(data: str, runs: Sequence[Run], streams: Sequence[str]) -> Table:
    columns = [Column(label=stream) for stream in streams]

    def number(part: Sequence[Run], place: int) -> Number:
        return _number([run for run in part if run.stream == streams[place]], _accuracy)

    return _table(data, "Overview: mean over corruptions", runs, columns, number, "accuracy, %")


def _by_corruption(data: str, stream: str, runs: Sequence[Run]) -> Table:
    """A column per corruption (a multi-domain stream has them all in one run), and their mean."""
    names = list(dict.fromkeys(name for run in runs for name in (run.cell.corruptions or ("clean",))))
    together = any(run.cell.scenario in MULTI_DOMAIN for run in runs)
    columns = [Column(label=SHORT_CORRUPTIONS.get(name, name)) for name in names]
    if len(names) > 1:
        columns.append(Column(label="Avg"))

    def of_corruption(name: str) -> Callable[[Run], float | None]:
        def value(run: Run) -> float | None:
            if not together:
                return _accuracy(run)
            found = run.row["metrics"].get("per_corruption", {}).get(name)
            return None if found is None else float(found)

        return value

    def number(part: Sequence[Run], place: int) -> Number:
        if place == len(names):
            return _number(part, _accuracy)
        name = names[place]
        return _number([run for run in part if name in (run.cell.corruptions or ("clean",))], of_corruption(name))

    return _table(data, stream[0].upper() + stream[1:], runs, columns, number, "accuracy, %")


def _metric(*path: str, per_sample: bool = False) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        place: Any = run.row
        for name in path:
            place = place.get(name) if isinstance(place, dict) else None
        if place is None:
            return None
        return float(place) / run.row["metrics"]["samples"] if per_sample else float(place)

    return value


_QUALITIES: tuple[tuple[Column, Callable[[Run], float | None]], ...] = (
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


def _quality_and_cost(data: str, runs: Sequence[Run]) -> Table:
    """Means over everything a method ran; comparable between methods that ran the same streams."""

    def number(part: Sequence[Run], place: int) -> Number:
        value = _QUALITIES[place][1]
        values = [found for run in part if (found := value(run)) is not None]
        if not values:
            return Number(missing="not recorded")
        return Number(mean=statistics.fmean(values), seeds=1, keys=tuple(run.row["key"] for run in part))

    columns = [column for column, _ in _QUALITIES]
    return _table(data, "Calibration and cost: mean over all runs", runs, columns, number, "")


def grid_figures(rows: Sequence[Row]) -> list[Figure]:
    """Accuracy so far along each stream, a curve per method (mean over seeds)."""
    charts = []
    for place, runs in _grouped(runs_in(rows), _place).items():
        lines = []
        for method, part in _grouped(runs, lambda run: run.labels[1]).items():
            curves = [run.row["metrics"].get("running") or [] for run in part]
            length = min(map(len, curves))
            if length > 1:
                x = [point[0] for point in curves[0][:length]]
                y = [statistics.fmean(curve[i][1] for curve in curves) for i in range(length)]
                lines.append(Line(label=method, x=x, y=y, dashed=part[0].cell.method == "none"))
        if len(lines) > 1:
            charts.append(LineChart(title=place, x_label="images so far", y_label="accuracy so far, %", lines=lines))
    if not charts:
        return []
    shown = charts[:_MOST_CURVES]
    note = f"the first {len(shown)} of {len(charts)} streams" if len(shown) < len(charts) else ""
    return [Figure(name="grid-running", title="Accuracy along the stream", charts=shown, note=note)]


def _place(run: Run) -> str:
    names = run.cell.corruptions
    shift = names[0].replace("_", " ") if len(names) == 1 else f"{len(names)} corruptions" if names else "clean"
    return f"{run.cell.model_title} · {run.stream} · {shift}"
