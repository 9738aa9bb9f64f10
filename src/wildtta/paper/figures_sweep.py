"""Figures made of accuracies: 1 (three wild streams), 4 (batch size), 5 (mixture), 6 (label shift)."""

from __future__ import annotations

from collections.abc import Sequence

from wildtta.paper.experiment import Experiment, NotRun, Spot, Value, View
from wildtta.paper.settings import BN, GN, VIT, Setting
from wildtta.paper.spots import LABEL_SHIFT, MILD, MIXED, RECIPES, cells_for, mean_spot, stand_in
from wildtta.report.chart import BarChart, Chart, Line, LineChart

_NETWORKS = (BN, GN, VIT)
_GAUSSIAN = ("gaussian_noise",)


def _shown(view: View, *where: str) -> Value | None:
    try:
        return view.value(*where)
    except NotRun:
        return None


def _figure_1(setting: Setting) -> list[Spot]:
    network, name = stand_in(setting, BN)
    row = (name, "Tent")
    tent = RECIPES["Tent"]
    spots = [
        mean_spot(setting, network, tent, row=row, column="one corruption at a time", scenario=MILD),
        mean_spot(setting, network, tent, row=row, column="mixture", scenario=MIXED),
    ]
    for size in sorted(setting.scale.batch_sizes, reverse=True):
        cells, missing = cells_for(setting, network, tent, scenario=MILD, corruptions=_GAUSSIAN, batch_size=size)
        spots.append(Spot(row=row, column=f"batch {size}", cells=cells, missing=missing))
    cells, missing = cells_for(setting, network, tent, scenario=LABEL_SHIFT, corruptions=_GAUSSIAN)
    spots.append(Spot(row=row, column="class-ordered", cells=cells, missing=missing))
    return spots


def _draw_1(view: View) -> list[Chart]:
    name = view.row_labels[0][0]
    sizes = [column for column in view.columns if column.startswith("batch ")]
    panels = (
        ("(a) mixed shifts", ["one corruption at a time", "mixture"]),
        ("(b) shrinking batch, Gaussian noise", sizes),
        ("(c) label shift, Gaussian noise", ["batch 64", "class-ordered"]),
    )
    charts: list[Chart] = []
    for title, columns in panels:
        values = [_shown(view, name, "Tent", column) for column in columns]
        groups = [{"batch 64": "shuffled"}.get(column, column) if title[1] == "c" else column for column in columns]
        charts.append(
            BarChart(
                title=title,
                y_label="accuracy, %",
                groups=groups,
                series=[f"Tent, {name}"],
                values=[[value.mean if value else None for value in values]],
                stds=[[value.std if value else None for value in values]],
            )
        )
    return charts


def _figure_4(setting: Setting) -> list[Spot]:
    spots = []
    for severity in (5, 3):
        for network in _NETWORKS:
            cells, missing = cells_for(
                setting, network, RECIPES["NoAdapt"], scenario=MILD, corruptions=_GAUSSIAN, severity=severity
            )
            spots.append(Spot(row=("NoAdapt", network, f"level {severity}"), column="na", cells=cells, missing=missing))
            for label in ("TTT", "Tent"):
                for size in setting.scale.batch_sizes:
                    if label == "TTT" and size > 16:
                        continue  # the paper stops there: 20 augmented copies per sample
                    cells, missing = cells_for(
                        setting,
                        network,
                        RECIPES[label],
                        scenario=MILD,
                        corruptions=_GAUSSIAN,
                        severity=severity,
                        batch_size=size,
                    )
                    row = (label, network, f"level {severity}")
                    spots.append(Spot(row=row, column=str(size), cells=cells, missing=missing))
    return spots


def _draw_4(view: View) -> list[Chart]:
    return _curves(view, "batch size", [str(size) for size in view.setting.scale.batch_sizes])


def _figure_5(setting: Setting) -> list[Spot]:
    spots = []
    for severity in (5, 3):
        for label in ("TTT", "Tent"):
            for network in _NETWORKS:
                row = (label, network, f"level {severity}")
                bars = (
                    ("no adapt", "NoAdapt", MILD),
                    ("avg adapt", label, MILD),
                    ("mix adapt", label, MIXED),
                )
                for column, recipe, scenario in bars:
                    spots.append(
                        mean_spot(
                            setting,
                            network,
                            RECIPES[recipe],
                            row=row,
                            column=column,
                            scenario=scenario,
                            severity=severity,
                            # TTT learns from one image at a time; leaving a network alone needs no batch either.
                            batch_size=1 if recipe == "TTT" else 64,
                        )
                    )
    return spots


def _draw_5(view: View) -> list[Chart]:
    charts: list[Chart] = []
    columns = ("no adapt", "avg adapt", "mix adapt")
    for label in ("Tent", "TTT"):
        for level in ("level 5", "level 3"):
            values = [[_shown(view, label, network, level, column) for network in _NETWORKS] for column in columns]
            if not any(value for bars in values[1:] for value in bars):
                continue
            charts.append(
                BarChart(
                    title=f"{label}, {level}",
                    y_label="accuracy, %",
                    groups=_NETWORKS,
                    series=columns,
                    values=[[value.mean if value else None for value in bars] for bars in values],
                    stds=[[value.std if value else None for value in bars] for bars in values],
                )
            )
    return charts


def _figure_6(setting: Setting) -> list[Spot]:
    spots = []
    for severity in (5, 3):
        for network in _NETWORKS:
            cells, missing = cells_for(
                setting, network, RECIPES["NoAdapt"], scenario=MILD, corruptions=_GAUSSIAN, severity=severity
            )
            spots.append(Spot(row=("NoAdapt", network, f"level {severity}"), column="na", cells=cells, missing=missing))
            for label in ("TTT", "Tent"):
                for ratio in setting.scale.ratios:
                    # The last ratio stands for ∞, the pure class order, and is the stream of table 1.
                    endless = ratio == setting.scale.ratios[-1]
                    cells, missing = cells_for(
                        setting,
                        network,
                        RECIPES[label],
                        scenario=LABEL_SHIFT,
                        corruptions=_GAUSSIAN,
                        severity=severity,
                        ratio=None if endless else ratio,
                        batch_size=1 if label == "TTT" else 64,
                    )
                    row = (label, network, f"level {severity}")
                    spots.append(Spot(row=row, column=f"{ratio:g}", cells=cells, missing=missing))
    return spots


def _draw_6(view: View) -> list[Chart]:
    return _curves(
        view, "imbalance ratio (the last stands for ∞)", [f"{ratio:g}" for ratio in view.setting.scale.ratios]
    )


def _curves(view: View, x_label: str, columns: Sequence[str]) -> list[Chart]:
    """One panel per method and level: a curve per network, and its accuracy without adaptation as a dashed line."""
    charts: list[Chart] = []
    for label in ("Tent", "TTT"):
        for level in ("level 5", "level 3"):
            lines = []
            for network in _NETWORKS:
                shown = {column: _shown(view, label, network, level, column) for column in columns}
                points = [(float(column), value) for column, value in shown.items() if value]
                if not points:
                    continue
                x = [place for place, _ in points]
                lines.append(
                    Line(
                        label=network,
                        x=x,
                        y=[value.mean for _, value in points],
                        std=[value.std for _, value in points],
                    )
                )
                alone = _shown(view, "NoAdapt", network, level, "na")
                if alone:
                    lines.append(Line(label=f"{network}, na", x=[x[0], x[-1]], y=[alone.mean] * 2, dashed=True))
            if lines:
                charts.append(
                    LineChart(
                        title=f"{label}, {level}",
                        x_label=x_label,
                        y_label="accuracy, %",
                        lines=lines,
                        log_x=True,
                        marks=True,
                    )
                )
    return charts


FIGURES: tuple[Experiment, ...] = (
    Experiment(
        name="figure-1",
        title="Tent in three wild streams",
        needs="ImageNet-C severity 5, ResNet50-BN",
        plan=_figure_1,
        draw=_draw_1,
    ),
    Experiment(
        name="figure-4",
        title="Accuracy over the batch size, Gaussian noise",
        needs="ImageNet-C gaussian_noise 5 and 3, 3 networks; rotation heads for TTT",
        plan=_figure_4,
        row_names=("method", "model", "severity"),
        draw=_draw_4,
        note="'na' is the network without adaptation",
    ),
    Experiment(
        name="figure-5",
        title="Mixture of 15 corruptions against one at a time",
        needs="ImageNet-C severities 5 and 3, 3 networks; rotation heads for TTT",
        plan=_figure_5,
        row_names=("method", "model", "severity"),
        draw=_draw_5,
    ),
    Experiment(
        name="figure-6",
        title="Accuracy over the imbalance ratio, Gaussian noise",
        needs="ImageNet-C gaussian_noise 5 and 3, 3 networks; rotation heads for TTT",
        plan=_figure_6,
        row_names=("method", "model", "severity"),
        draw=_draw_6,
        note="the paper does not print its ratios",
    ),
)
