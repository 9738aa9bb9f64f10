"""Collapse from inside: curves (figures 2, 3, B, E), severities (D), classes and features (tables L, M).

The paper prints no numbers for its figures; its words are turned into checks here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from wildtta.paper.checks import all_of, arrow, close, rising
from wildtta.paper.experiment import Claim, Draw, Experiment, Part, Spot, later
from wildtta.paper.plan import BOTH, LEVELS, SHOT_NOISE, Stream, one_stream, place
from wildtta.paper.recipes import RECIPES
from wildtta.paper.settings import BN, GN, VIT, Setting
from wildtta.paper.view import TOP_CLASS, NotRun, TooShort, View
from wildtta.report.chart import Chart, Line, LineChart, ScatterChart

#: "One predicted class": this share (percent) of the last fifth of the stream.
_ONE_CLASS = 90.0
#: Curves by their symbols; R is recorded twice (:func:`_curve`).
_CURVES = {"R": "feature_redundancy", "I": "feature_inequity", "gradient norm": "gradient_norm"}
_NORM = _CURVES["gradient norm"]
#: R in both normalisations: over columns is the paper's equation, over rows what it does on ResNet50-GN (D29).
_REDUNDANCIES = {"columns": "R over columns", "rows": "R over rows"}
#: One run of Tent serves figures 2 and 3.
_COLLAPSE_MEASURES = ("predictions", "representation", "scatter")
_NORM_CURVES = ("Tent (entropy only)", "reliable", "sa", "reliable+sa")
_NORM_LABELS = {"Tent (entropy only)": "entropy", "sa": "sharpness-aware (sa)"}
_COLLAPSES = {
    GN: ("gaussian_noise", "shot_noise", "impulse_noise", "fog", "elastic_transform"),
    VIT: ("shot_noise", "snow", "frost"),
}
_CLASSES: dict[str, tuple[str, Stream]] = {
    "initial inequity class": ("NoAdapt", {"metric": "diagnostics/health/inequity_class", "measure": ("health",)}),
    "Tent collapse class": ("Tent", {"metric": TOP_CLASS}),
}
_NEAR_ZERO = ("0.1", "0.01", "0.001")
_FLOOR = (
    "R in the normalisation that SAR² minimises on this network (the journal has both); a batch's R sits on a floor of "
    "about D / (B − 1): compare it only at one batch size and width"
)


def series(view: View, name: str, *where: str) -> tuple[list[float], list[float]]:
    """A recorded curve as (batches, values), without its gaps."""
    batches: Sequence[float] = view.record("series/batch", *where)
    values: Sequence[float | None] = view.record(f"series/{name}", *where)
    known = {float(x): float(y) for x, y in zip(batches, values, strict=False) if y is not None}
    if not known:
        raise NotRun(f"the run recorded no series {name!r}")
    return list(known), list(known.values())


def smooth(values: Sequence[float]) -> list[float]:
    """Means over about 20 consecutive windows: what the eye follows in a noisy curve."""
    width = max(1, len(values) // 20)
    return [statistics.fmean(values[start : start + width]) for start in range(0, len(values), width)]


def _course(view: View, name: str, *where: str) -> list[float]:
    values = smooth(series(view, name, *where)[1])
    if len(values) < 5:
        raise TooShort(f"a stream of {len(values)} points is too short to speak of a course")
    return values


def _normalisation(view: View, *where: str) -> str:
    """Of the features in R: the one that SAR² has on this place's network."""
    return str(view.record("diagnostics/normalisation", *where))


def _curve(view: View, symbol: str, *where: str) -> str:
    """The series of a symbol; of R that in the normalisation that SAR² has on this network."""
    over_rows = symbol == "R" and _normalisation(view, *where) == "rows"
    return f"{_CURVES[symbol]}_rows" if over_rows else _CURVES[symbol]


def _of_tent(view: View, level: str, symbol: str) -> list[float]:
    where = (view.row_labels[0][0], "Tent", level)
    return _course(view, _curve(view, symbol, *where), *where)


@later
def _tent(view: View, level: str, symbol: str, holds: Callable[[Sequence[float]], bool]) -> Iterator[Part]:
    """What one of Tent's curves does at a level."""
    values = _of_tent(view, level, symbol)
    yield holds(values), f"{symbol}: {_brief(values)}"


def _brief(values: Sequence[float]) -> str:
    return f"start {values[0]:.3g}, peak {max(values):.3g}, end {values[-1]:.3g}"


def _in_band(values: Sequence[float]) -> bool:
    """Never more than three times the median, nor less than a third of it."""
    middle = statistics.median(values)
    return middle / 3 <= min(values) and max(values) <= 3 * middle


@later
def _tent_at_two_levels(setting: Setting, network: str, corruption: str, measure: Sequence[str]) -> list[Spot]:
    stream: Stream = {"corruptions": (corruption,), "measure": measure, "seeds": 1}
    return [
        place(setting, network, "Tent", (network, "Tent"), level, severity=severity, **stream)
        for level, severity in LEVELS.items()
    ]


def _over_time(
    view: View, title: str, y_label: str, name: str, curves: Mapping[str, Sequence[str]] | None = None
) -> list[Chart]:
    """A chart of one series, a line per place that has it; unless said, of Tent at the two levels."""
    lines = []
    for label, where in (curves or {level: (*view.row_labels[0], level) for level in LEVELS}).items():
        if any(value is not None for value in view.recorded(f"series/{name}", *where) or ()):
            x, y = series(view, name, *where)
            lines.append(Line(label=label, x=x, y=y))
    return [LineChart(title=title, x_label="batch", y_label=y_label, lines=lines)] if lines else []


def _draw_collapse(view: View) -> Iterator[Chart]:
    for panel, level in zip("ab", LEVELS, strict=True):
        found = view.recorded("diagnostics/predictions", GN, "Tent", level)
        if found:
            title, x_label, y_label = f"({panel}) predictions, {level}", "image of the stream", "predicted class"
            x, y = found["position"], found["predicted"]
            yield ScatterChart(title=title, x_label=x_label, y_label=y_label, x=x, y=y)
    yield from _over_time(view, "(c) gradient norm", "‖∇E‖₂", _NORM)


@later
def _one_class(view: View, level: str, *, ends: bool) -> Iterator[Part]:
    """Whether Tent ends in one class."""
    share = float(view.record("metrics/top_class_share", GN, "Tent", level))
    yield share >= _ONE_CLASS if ends else share < 50, f"top class in the last fifth: {share:.0f} %"


def _from_inside(name: str, title: str, draw: Draw, *claims: Claim, note: str = "") -> Experiment:
    return Experiment(
        name,
        f"Tent from inside: {title}",
        _tent_at_two_levels(GN, "gaussian_noise", _COLLAPSE_MEASURES),
        *claims,
        draw=draw,
        note=note,
    )


FIGURE_2 = _from_inside(
    "figure-2",
    "predictions and gradient norm, Gaussian noise",
    _draw_collapse,
    Claim("At level 5 Tent ends in one predicted class", _one_class("level 5", ends=True)),
    Claim("At level 3 it does not", _one_class("level 3", ends=False)),
    Claim(
        "At level 5 the gradient norm rises, peaks, and falls to about zero at collapse",
        _tent("level 5", "gradient norm", lambda norm: max(norm) >= 2 * norm[0] and norm[-1] <= 0.1 * max(norm)),
    ),
    Claim("At level 3 the gradient norm stays in a stable band", _tent("level 3", "gradient norm", _in_band)),
)


def _accelerates(values: Sequence[float]) -> bool:
    """Grows, and by more in the second half of its way to the peak than in the first."""
    top = values.index(max(values))
    half = top // 2
    return top > 0 and values[top] - values[half] > values[half] - values[0] and values[top] >= 2 * values[0]


def _draw_features(view: View) -> Iterator[Chart]:
    where = (*view.row_labels[0], next(iter(LEVELS)))
    if view.recorded("diagnostics/normalisation", *where):
        title = f"(a) redundancy of the batch, R over {_normalisation(view, *where)}"
        yield from _over_time(view, title, "R", _curve(view, "R", *where))
    yield from _over_time(view, "(b) inequity of the batch", "I", _CURVES["I"])


def _entropy_threshold(view: View, *where: str) -> float:
    """SAR's E₀ = 0.4 ln C, with C as many classes as the run's histogram counts."""
    return 0.4 * math.log(len(view.record("metrics/histogram", *where)))


def _draw_features_and_samples(view: View) -> Iterator[Chart]:
    yield from _draw_features(view)
    where = (GN, "Tent", "level 5")
    found = view.recorded("diagnostics/scatter", *where)
    if found:
        title, x, y = "(c) entropy and gradient norm per sample", found["entropy"], found["gradient_norm"]
        guide = [(_entropy_threshold(view, *where), "E₀")]
        yield ScatterChart(title=title, x_label="entropy", y_label="‖∇E‖₂", x=x, y=y, vertical=guide)


def _larger_before(view: View) -> Iterator[Part]:
    for symbol in ("R", "I"):
        five, three = (_of_tent(view, level, symbol)[0] for level in LEVELS)
        yield five > three, f"{symbol}: {five:.3g} at level 5, {three:.3g} at level 3"


def _jumps_late(values: Sequence[float]) -> bool:
    early = values[: max(2, len(values) // 5)]
    return max(early) <= 1.5 * early[0] and max(values) >= 2 * early[0]


def _threshold_keeps_some(view: View) -> Iterator[Part]:
    where = (GN, "Tent", "level 5")
    found, threshold = view.record("diagnostics/scatter", *where), _entropy_threshold(view, *where)
    if len(found["entropy"]) < 2:
        raise TooShort("a scatter of fewer than two samples")
    # "Large": the upper quarter of this very scatter.
    large = statistics.quantiles(found["gradient_norm"], n=4)[2]
    steep = [e for e, g in zip(found["entropy"], found["gradient_norm"], strict=True) if g > large]
    kept = sum(1 for entropy in steep if entropy < threshold)
    told = f"of {len(steep)} samples with a large gradient E < E₀ = {threshold:.2f} keeps {kept}"
    yield 0 < kept < len(steep), told


FIGURE_3 = _from_inside(
    "figure-3",
    "redundancy, inequity, entropy against gradient norm",
    _draw_features_and_samples,
    Claim("Before adaptation R and I are larger at level 5", _larger_before),
    Claim("At level 5 R is flat at first and jumps at collapse", _tent("level 5", "R", _jumps_late)),
    Claim("At level 5 I grows early and ever faster", _tent("level 5", "I", _accelerates)),
    Claim("At level 3 both stay in range", all_of(*(_tent("level 3", symbol, _in_band) for symbol in "RI"))),
    Claim(
        "The entropy threshold removes a part of the samples with large gradients, not all",
        _threshold_keeps_some,
    ),
    note=_FLOOR,
)


def _draw_norms(view: View) -> list[Chart]:
    places = {_NORM_LABELS.get(label, label): (VIT, label, "accuracy") for label in _NORM_CURVES}
    return _over_time(view, "gradient norm", "‖∇‖₂", _NORM, places)


def _only_together(view: View) -> Iterator[Part]:
    for label in _NORM_CURVES:
        values = _course(view, _NORM, VIT, label, "accuracy")
        # In range: neither exploding nor dying away.
        yield _in_band(values) == (label == "reliable+sa"), f"{label}: {_brief(values)}"


FIGURE_B = Experiment(
    "figure-b",
    "Gradient norm under SAR's components, shot noise, class-ordered",
    one_stream([VIT], {label: RECIPES[label] for label in _NORM_CURVES}, **SHOT_NOISE),
    Claim("Only reliable and sharpness-aware together keep the gradient norm in range throughout", _only_together),
    draw=_draw_norms,
)


def _severities(setting: Setting) -> Iterator[Spot]:
    for network in BOTH:
        for level in range(6):
            column = f"level {level}" if level else "clean"
            stream: Stream = {"severity": level, "measure": ("health",), "corruptions": ("gaussian_noise",)}
            if not level:
                stream |= {"corruptions": (), "data": "imagenet" if setting.where == "imagenet-c" else None}
            measures = zip(
                (*_REDUNDANCIES.values(), "inequity"), ("redundancy", "redundancy_rows", "inequity"), strict=True
            )
            for name, measure in measures:
                stream["metric"] = f"diagnostics/health/{measure}"
                yield place(setting, network, "NoAdapt", (network, name), column, **stream)


def _redundancy_row(view: View, network: str) -> str:
    """The row of R as SAR² minimises it on this network."""
    column = next(iter(view.known_line(network, "inequity")), view.columns[0])
    return _REDUNDANCIES[_normalisation(view, network, "inequity", column)]


def _severity_line(view: View, symbol: str, network: str) -> Iterator[Line]:
    """One network's curve, if it was run."""
    with suppress(NotRun):
        row = _redundancy_row(view, network) if symbol == "R" else "inequity"
        known = view.known_line(network, row)
        x, y = [view.columns.index(column) for column in known], [value.mean for value in known.values()]
        if known:
            yield Line(label=f"{network}, {row}" if symbol == "R" else network, x=x, y=y)


def _draw_severities(view: View) -> Iterator[Chart]:
    for name, symbol in (("redundancy", "R"), ("inequity", "I")):
        lines = [line for network in BOTH for line in _severity_line(view, symbol, network)]
        if lines:
            title, x_label = f"{name} without adaptation", "severity (0: clean)"
            yield LineChart(title=title, x_label=x_label, y_label=symbol, lines=lines, marks=True)


def _grow(view: View) -> Iterator[Part]:
    for network in BOTH:
        for measure in (_redundancy_row(view, network), "inequity"):
            values = list(view.line(network, measure).values())
            yield rising(values), f"{network} {measure}: " + " → ".join(f"{value:.3g}" for value in values)


def _growth_accelerates(view: View) -> Iterator[Part]:
    values = list(view.line(VIT, _redundancy_row(view, VIT)).values())
    first, last = values[2] - values[1], values[5] - values[4]
    holds = 0 < first < last and close(view, first, 3.1, 1.0) and close(view, last, 97.9, 10.0)
    yield holds, f"ViT R: {first:+.3g} from level 1 to 2, {last:+.3g} from 4 to 5"


FIGURE_D = Experiment(
    "figure-d",
    "Redundancy and inequity of the unadapted network over severities",
    _severities,
    Claim("R and I of the unadapted network grow with the severity", _grow),
    Claim("The growth accelerates (ViT R: +3.1 from level 1 to 2, +97.9 from 4 to 5)", _growth_accelerates),
    row_names=("model", "measure"),
    unit="R and I",
    digits=3,
    draw=_draw_severities,
    note="both normalisations of R are in the table; drawn is the one that SAR² minimises on each network",
)


def _falls_then_explodes(view: View) -> Iterator[Part]:
    values = _of_tent(view, "level 5", "R")
    low = min(values[: max(2, len(values) // 2)])
    yield low < values[0] and max(values) >= 2 * values[0], f"R: low {low:.3g}, {_brief(values)}"


def _falls_steadily(view: View) -> Iterator[Part]:
    values = _of_tent(view, "level 3", "R")
    third = max(1, len(values) // 3)
    parts = [statistics.fmean(values[start : start + third]) for start in (0, third, len(values) - third)]
    yield parts[0] > parts[1] > parts[2], f"R by thirds: {arrow(parts)}"


def _low_and_flat(view: View) -> Iterator[Part]:
    three, five = (_of_tent(view, level, "I") for level in ("level 3", "level 5"))
    told = f"I at level 3: {_brief(three)}; peak at level 5 {max(five):.3g}"
    yield _in_band(three) and max(three) < 0.5 * max(five), told


FIGURE_E = Experiment(
    "figure-e",
    "Redundancy and inequity under Tent, shot noise",
    _tent_at_two_levels(VIT, "shot_noise", ("representation",)),
    Claim("At level 5 R falls at first and then explodes", _falls_then_explodes),
    Claim("At level 3 R falls steadily", _falls_steadily),
    Claim("At level 5 I accelerates", _tent("level 5", "I", _accelerates)),
    Claim("At level 3 I stays low and flat", _low_and_flat),
    draw=_draw_features,
    note=_FLOOR,
)


def _classes(setting: Setting) -> list[Spot]:
    """A class index has no mean over seeds: the first seed's counts."""
    return [
        place(setting, network, label, (row,), f"{network}/{name}", table="L", corruptions=(name,), seeds=1, **measured)
        for row, (label, measured) in _CLASSES.items()
        for network, corruptions in _COLLAPSES.items()
        for name in corruptions
    ]


def _same_class(view: View) -> Iterator[Part]:
    pairs = {column: [view.mean(row, column) for row in _CLASSES] for column in view.columns}
    equal = sum(before == after for before, after in pairs.values())
    told = ", ".join(f"{column} {before:.0f}→{after:.0f}" for column, (before, after) in pairs.items())
    yield equal >= 6 / 8 * len(pairs), f"{equal} of {len(pairs)} equal: {told}"


TABLE_L = Experiment(
    "table-l",
    "The class that the mean feature favours before adaptation, and the class Tent collapses to",
    _classes,
    Claim("Tent collapses to the class that the mean feature favoured before, in 6 of 8 cases", _same_class),
    row_names=("class",),
    unit="class index",
    digits=0,
)


def _near_zero(setting: Setting) -> list[Spot]:
    stream: Stream = {"corruptions": ("gaussian_noise",), "measure": ("sparsity",), "table": "M"}
    return [
        place(setting, n, label, (row,), f"{n}/m={level}", metric=f"diagnostics/sparsity/{level}", **stream)
        for row, label in (("NoAdapt", "NoAdapt"), ("Tent Adapted", "Tent"))
        for n in (GN, BN)
        for level in _NEAR_ZERO
    ]


def _towards_zero(view: View) -> Iterator[Part]:
    for level in _NEAR_ZERO:
        before, after = (view.mean(row, f"{GN}/m={level}") for row in ("NoAdapt", "Tent Adapted"))
        yield after > before, f"GN, m = {level}: {before:.1f} → {after:.1f} %"


def _none_near_zero(view: View) -> Iterator[Part]:
    most = max(view.mean(row, f"{BN}/m={level}") for row in ("NoAdapt", "Tent Adapted") for level in _NEAR_ZERO)
    yield most < 0.05, f"BN: at most {most:.2f} %"


TABLE_M = Experiment(
    "table-m",
    "Feature dimensions near zero (mean |z| < m), before and after Tent, Gaussian noise",
    _near_zero,
    Claim("Tent drives more GN feature dimensions towards zero", _towards_zero),
    Claim("Batch norm has no such dimensions", _none_near_zero),
    row_names=("method",),
    unit="% of dimensions",
)
