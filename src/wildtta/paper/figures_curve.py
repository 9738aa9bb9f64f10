"""Figures that follow a stream: 2, 3 (collapse from inside), 7 (clipping), B, E (gradient norm, R, I), and D (levels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wildtta.bench import Row
from wildtta.paper.experiment import Experiment, NotRun, Spot, View, look_up
from wildtta.paper.settings import GN, VIT, Setting
from wildtta.paper.spots import LABEL_SHIFT, MILD, RECIPES, Recipe, cells_for
from wildtta.report.chart import Chart, Line, LineChart, ScatterChart

LEVELS = ("level 5", "level 3")
#: One run of Tent serves figures 2 and 3.
_COLLAPSE_MEASURES = ("predictions", "representation", "scatter")


def series(row: Row, name: str) -> tuple[list[float], list[float]]:
    """A recorded curve as (batches, values), without its gaps."""
    batches: Sequence[float] = look_up(row, "series/batch") or []
    values: Sequence[float | None] = look_up(row, f"series/{name}") or []
    pairs = [(float(x), float(y)) for x, y in zip(batches, values, strict=False) if y is not None]
    if not pairs:
        raise NotRun(f"the run recorded no series {name!r}")
    return [x for x, _ in pairs], [y for _, y in pairs]


def entropy_threshold(row: Row) -> float:
    """SAR's E₀ = 0.4 ln C, with C as many classes as the run's histogram counts."""
    histogram = look_up(row, "metrics/histogram")
    if not histogram:
        raise NotRun("the run recorded no histogram, so the number of classes is unknown")
    return 0.4 * math.log(len(histogram))


def _tent_at_two_levels(setting: Setting, network: str, corruption: str, measure: Sequence[str]) -> list[Spot]:
    spots = []
    for level in LEVELS:
        cells, missing = cells_for(
            setting,
            network,
            RECIPES["Tent"],
            scenario=MILD,
            corruptions=(corruption,),
            severity=int(level[-1]),
            measure=measure,
        )
        spots.append(Spot(row=(network, "Tent"), column=level, cells=cells[:1], missing=missing))
    return spots


def _figure_2(setting: Setting) -> list[Spot]:
    return _tent_at_two_levels(setting, GN, "gaussian_noise", _COLLAPSE_MEASURES)


def _level_lines(view: View, name: str) -> list[Line]:
    lines = []
    network = view.row_labels[0][0]
    for level in LEVELS:
        try:
            x, y = series(view.row(network, "Tent", level), name)
        except NotRun:
            continue
        lines.append(Line(label=level, x=x, y=y))
    return lines


def _over_time(title: str, y_label: str, lines: list[Line]) -> list[Chart]:
    return [LineChart(title=title, x_label="batch", y_label=y_label, lines=lines)] if lines else []


def _draw_2(view: View) -> list[Chart]:
    charts: list[Chart] = []
    for panel, level in zip("ab", LEVELS, strict=True):
        try:
            found: dict[str, Any] | None = look_up(view.row(GN, "Tent", level), "diagnostics/predictions")
        except NotRun:
            continue
        if found:
            charts.append(
                ScatterChart(
                    title=f"({panel}) predictions, {level}",
                    x_label="image of the stream",
                    y_label="predicted class",
                    x=found["position"],
                    y=found["predicted"],
                )
            )
    return [*charts, *_over_time("(c) gradient norm", "‖∇E‖₂", _level_lines(view, "gradient_norm"))]


def _figure_3(setting: Setting) -> list[Spot]:
    return _tent_at_two_levels(setting, GN, "gaussian_noise", _COLLAPSE_MEASURES)


def _draw_3(view: View) -> list[Chart]:
    charts = [
        *_over_time("(a) redundancy of the batch", "R", _level_lines(view, "feature_redundancy")),
        *_over_time("(b) inequity of the batch", "I", _level_lines(view, "feature_inequity")),
    ]
    try:
        row = view.row(GN, "Tent", "level 5")
    except NotRun:
        return charts
    found: dict[str, Any] | None = look_up(row, "diagnostics/scatter")
    if found:
        charts.append(
            ScatterChart(
                title="(c) entropy and gradient norm per sample",
                x_label="entropy",
                y_label="‖∇E‖₂",
                x=found["entropy"],
                y=found["gradient_norm"],
                vertical=[(entropy_threshold(row), "E₀")],
            )
        )
    return charts


_CLIPPINGS = (
    ("NoAdapt", RECIPES["NoAdapt"]),
    ("value 0.001", Recipe(method="tent", options={"clip_value": 0.001})),
    ("value 0.005", Recipe(method="tent", options={"clip_value": 0.005})),
    ("norm 0.1", Recipe(method="tent", options={"clip_norm": 0.1})),
    ("norm 1.0", Recipe(method="tent", options={"clip_norm": 1.0})),
    ("SAR", RECIPES["SAR"]),
)


def _shot_streams(setting: Setting, recipes: Sequence[tuple[str, Recipe]]) -> list[Spot]:
    spots = []
    for label, recipe in recipes:
        cells, missing = cells_for(setting, VIT, recipe, scenario=LABEL_SHIFT, corruptions=("shot_noise",))
        spots.append(Spot(row=(VIT, label), column="accuracy", cells=cells, missing=missing))
    return spots


def _figure_7(setting: Setting) -> list[Spot]:
    return _shot_streams(setting, _CLIPPINGS)


def _draw_7(view: View) -> list[Chart]:
    lines = []
    for label, _ in _CLIPPINGS:
        try:
            running: list[list[float]] = look_up(view.row(VIT, label, "accuracy"), "metrics/running") or []
        except NotRun:
            continue
        if running:
            lines.append(
                Line(
                    label=label,
                    x=[point[0] for point in running],
                    y=[point[1] for point in running],
                    dashed=label == "NoAdapt",
                )
            )
    if not lines:
        return []
    return [
        LineChart(title="gradient clipping and SAR", x_label="images so far", y_label="accuracy so far, %", lines=lines)
    ]


_NORM_CURVES = ("Tent (entropy only)", "reliable", "sa", "reliable+sa")
_NORM_LABELS = {"Tent (entropy only)": "entropy", "sa": "sharpness-aware (sa)"}


def _figure_b(setting: Setting) -> list[Spot]:
    return _shot_streams(setting, [(label, RECIPES[label]) for label in _NORM_CURVES])


def _draw_b(view: View) -> list[Chart]:
    lines = []
    for label in _NORM_CURVES:
        try:
            x, y = series(view.row(VIT, label, "accuracy"), "gradient_norm")
        except NotRun:
            continue
        lines.append(Line(label=_NORM_LABELS.get(label, label), x=x, y=y))
    return _over_time("gradient norm", "‖∇‖₂", lines)


def _figure_d(setting: Setting) -> list[Spot]:
    spots = []
    for network in (GN, VIT):
        for level in range(6):
            cells, missing = cells_for(
                setting,
                network,
                RECIPES["NoAdapt"],
                scenario=MILD,
                corruptions=("gaussian_noise",) if level else (),
                severity=level,
                data="imagenet" if not level and setting.where == "imagenet-c" else None,
                measure=("health",),
            )
            spots += [
                Spot(
                    row=(network, name),
                    column=f"level {level}" if level else "clean",
                    cells=cells,
                    metric=f"diagnostics/health/{name}",
                    missing=missing,
                )
                for name in ("redundancy", "inequity")
            ]
    return spots


def _draw_d(view: View) -> list[Chart]:
    charts: list[Chart] = []
    for name, symbol in (("redundancy", "R"), ("inequity", "I")):
        lines = []
        for network in (GN, VIT):
            known = [
                (float(place), view.mean(network, name, column))
                for place, column in enumerate(view.columns)
                if view.has(network, name, column)
            ]
            if known:
                lines.append(Line(label=network, x=[x for x, _ in known], y=[y for _, y in known]))
        if lines:
            charts.append(
                LineChart(
                    title=f"{name} without adaptation",
                    x_label="severity (0: clean)",
                    y_label=symbol,
                    lines=lines,
                    marks=True,
                )
            )
    return charts


def _figure_e(setting: Setting) -> list[Spot]:
    return _tent_at_two_levels(setting, VIT, "shot_noise", ("representation",))


def _draw_e(view: View) -> list[Chart]:
    return [
        *_over_time("(a) redundancy of the batch", "R", _level_lines(view, "feature_redundancy")),
        *_over_time("(b) inequity of the batch", "I", _level_lines(view, "feature_inequity")),
    ]


_FLOOR = "a batch's R sits on a floor of about D / (B − 1): compare it only at one batch size and width"

FIGURES: tuple[Experiment, ...] = (
    Experiment(
        name="figure-2",
        title="Tent from inside: predictions and gradient norm, Gaussian noise",
        needs="ImageNet-C gaussian_noise 5 and 3, ResNet50-GN",
        plan=_figure_2,
        draw=_draw_2,
    ),
    Experiment(
        name="figure-3",
        title="Tent from inside: redundancy, inequity, entropy against gradient norm",
        needs="ImageNet-C gaussian_noise 5 and 3, ResNet50-GN",
        plan=_figure_3,
        draw=_draw_3,
        note=_FLOOR,
    ),
    Experiment(
        name="figure-7",
        title="Gradient clipping against SAR, shot noise, class-ordered",
        needs="ImageNet-C shot_noise 5, ViT",
        plan=_figure_7,
        draw=_draw_7,
    ),
    Experiment(
        name="figure-b",
        title="Gradient norm under SAR's components, shot noise, class-ordered",
        needs="ImageNet-C shot_noise 5, ViT",
        plan=_figure_b,
        draw=_draw_b,
    ),
    Experiment(
        name="figure-d",
        title="Redundancy and inequity of the unadapted network over severities",
        needs="ImageNet-C gaussian_noise 1-5 and the clean validation set, 2 networks",
        plan=_figure_d,
        row_names=("model", "measure"),
        unit="R and I",
        draw=_draw_d,
    ),
    Experiment(
        name="figure-e",
        title="Redundancy and inequity under Tent, shot noise",
        needs="ImageNet-C shot_noise 5 and 3, ViT",
        plan=_figure_e,
        draw=_draw_e,
        note=_FLOOR,
    ),
)
