"""Accuracy along the streams of any journal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from wildtta.bench import Row
from wildtta.report.chart import Line, LineChart
from wildtta.report.figure import Figure
from wildtta.report.runs import Run, grouped, runs_in


def grid_figures(rows: Sequence[Row], *, most: int) -> list[Figure]:
    """Accuracy so far along each stream, a curve per method (mean over seeds); at most so many drawings."""
    runs, shared = runs_in(rows)
    several = len({run.data for run in runs}) > 1
    groups: dict[tuple[str, str, str], list[LineChart]] = {}
    worlds = grouped(runs, lambda run: (run.data, _title(run))).values()
    for part in sorted(worlds, key=lambda part: part[0].world):
        first, lines = part[0], _lines(part)
        if len(lines) > 1:
            title = f"{first.data} · {_title(first)}" if several else _title(first)
            chart = LineChart(title=title, x_label="images so far", y_label="accuracy so far, %", lines=lines)
            groups.setdefault((first.data, first.cell.model_title, first.stream), []).append(chart)
    drawable = sum(map(len, groups.values()))
    shown = _spread(list(groups.values()), most)
    if not shown:
        return []
    note = f"{len(shown)} of {drawable} streams are drawn" if len(shown) < drawable else ""
    title = "Accuracy along the stream"
    return [Figure(name="grid-running", title=title, subtitle=shared, charts=shown, note=note)]


def _lines(runs: Sequence[Run]) -> list[Line]:
    lines = []
    for method, part in grouped(runs, lambda run: run.method).items():
        curves = [run.row["metrics"].get("running") or [] for run in part]
        length = min(map(len, curves))
        if length > 1:
            x = [point[0] for point in curves[0][:length]]
            y = [statistics.fmean(curve[i][1] for curve in curves) for i in range(length)]
            lines.append(Line(label=method, x=x, y=y, dashed=part[0].cell.method == "none"))
    return lines


def _spread(groups: Sequence[Sequence[LineChart]], most: int) -> list[LineChart]:
    """So many charts at most: the first of every group, then the second of every group, and so on."""
    turns = sorted((turn, place) for place, group in enumerate(groups) for turn in range(len(group)))
    return [groups[place][turn] for place, turn in sorted((place, turn) for turn, place in turns[:most])]


def _title(run: Run) -> str:
    names = run.cell.corruptions
    shift = names[0].replace("_", " ") if len(names) == 1 else f"{len(names)} corruptions" if names else "clean"
    return f"{run.cell.model_title} · {run.stream} · {shift}"
