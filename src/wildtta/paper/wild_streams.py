"""Tent and TTT in wild streams: over batch sizes (figures 1, 4), mixtures (5) and class orders (6).

The paper prints no numbers for its figures; its words are turned into checks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from wildtta.paper.checks import all_of, along, arrow, flat_row, needs_seeds, works
from wildtta.paper.experiment import Check, Claim, Experiment, Part, Spot, later
from wildtta.paper.plan import LABEL_SHIFT, LEVELS, MILD, MIXED, NETWORKS, Stream, place, stand_in
from wildtta.paper.settings import BN, GN, VIT, Setting
from wildtta.paper.view import TooShort, Value, View
from wildtta.report.chart import BarChart, Chart, Line, LineChart

_GAUSSIAN = ("gaussian_noise",)
_BARS = ("no adapt", "avg adapt", "mix adapt")
_ALONE_BESIDE_TTT = "na, TTT's images"
_ALONE_IN_MIXTURE = "no adapt, mixture"
_LEVEL_ROWS = ("method", "model", "severity")
#: The paper draws Tent alone in figure 1; its own methods are added.
_ON_BATCH_NORM = ("Tent", "SAR", "SAR2")


def _wild_streams(setting: Setting) -> list[Spot]:
    network, name = stand_in(setting, BN)
    streams: dict[str, Stream] = {
        "one corruption at a time": {},
        "mixture": {"scenario": MIXED},
        **{
            f"batch {size}": {"corruptions": _GAUSSIAN, "batch_size": size}
            for size in sorted(setting.scale.batch_sizes, reverse=True)
        },
        "class-ordered": {"corruptions": _GAUSSIAN, "scenario": LABEL_SHIFT},
    }
    return [
        place(setting, network, label, (name, label), column, **stream)
        for label in _ON_BATCH_NORM
        for column, stream in streams.items()
    ]


def _bars(title: str, groups: Sequence[str], series: Sequence[str], values: Sequence[Sequence[Value | None]]) -> Chart:
    return BarChart(
        title=title,
        y_label="accuracy, %",
        groups=groups,
        series=series,
        values=[[value.mean if value else None for value in bars] for bars in values],
        stds=[[value.std if value else None for value in bars] for bars in values],
    )


def _draw_wild_streams(view: View) -> list[Chart]:
    name = view.row_labels[0][0]
    panels = (
        ("(a) mixed shifts", {column: column for column in ("one corruption at a time", "mixture")}),
        ("(b) shrinking batch, Gaussian noise", {c: c for c in view.columns if c.startswith("batch ")}),
        ("(c) label shift, Gaussian noise", {"batch 64": "shuffled", "class-ordered": "class-ordered"}),
    )
    return [
        _bars(
            f"{title}, {name}",
            list(columns.values()),
            _ON_BATCH_NORM,
            [[view.known(name, label, column) for column in columns] for label in _ON_BATCH_NORM],
        )
        for title, columns in panels
    ]


def _degrades(view: View) -> Iterator[Part]:
    alone, mixture, ordered = (
        view.mean(BN, "Tent", column) for column in ("one corruption at a time", "mixture", "class-ordered")
    )
    sizes = sorted(int(c.removeprefix("batch ")) for c in view.columns if c.startswith("batch "))
    large, small = (view.mean(BN, "Tent", f"batch {size}") for size in (sizes[-1], sizes[0]))
    yield mixture < alone, f"mixture {alone:.1f} → {mixture:.1f}"
    yield small < large, f"batch {sizes[-1]} → {sizes[0]}: {large:.1f} → {small:.1f}"
    yield ordered < large, f"class-ordered {ordered:.1f}"


FIGURE_1 = Experiment(
    "figure-1",
    "Tent in three wild streams",
    _wild_streams,
    Claim("Tent on batch norm degrades under the mixture, with small batches and under label shift", _degrades),
    draw=_draw_wild_streams,
    note="SAR and SAR² are added here: the paper shows Tent alone",
)


@later
def _over(setting: Setting, streams: Callable[[Setting, str], dict[str, Stream]]) -> Iterator[Spot]:
    """Tent and TTT on streams that differ in one value (a column each), and the network without adaptation."""
    for level, severity in LEVELS.items():
        fixed: Stream = {"corruptions": _GAUSSIAN, "severity": severity}
        for network in NETWORKS:
            yield place(setting, network, "NoAdapt", ("NoAdapt", network, level), "na", **fixed)
            for label in ("TTT", "Tent"):
                yield from [
                    place(setting, network, label, (label, network, level), column, **fixed, **stream)
                    for column, stream in streams(setting, label).items()
                ]


def _over_batch_sizes(setting: Setting) -> Iterator[Spot]:
    """As :func:`_over`; the network without adaptation also on TTT's images alone, where TTT sees fewer than Tent."""
    yield from _over(_batch_sizes)(setting)
    few = setting.scale.slow_limit
    if few is not None:
        for level, severity in LEVELS.items():
            for network in NETWORKS:
                stream: Stream = {"corruptions": _GAUSSIAN, "severity": severity, "most": few}
                yield place(setting, network, "NoAdapt", ("NoAdapt", network, level), _ALONE_BESIDE_TTT, **stream)


def _batch_sizes(setting: Setting, label: str) -> dict[str, Stream]:
    """For TTT the paper stops at 16: 20 augmented copies per sample."""
    sizes = [size for size in setting.scale.batch_sizes if label != "TTT" or size <= 16]
    return {str(size): {"batch_size": size} for size in sizes}


@later
def _draw_over(view: View, x_label: str) -> Iterator[Chart]:
    """One panel per method and level: a curve per network, and its accuracy without adaptation as a dashed line."""
    for label in ("Tent", "TTT"):
        for level in LEVELS:
            lines = [line for network in NETWORKS for line in _curve(view, label, network, level)]
            if lines:
                title, look = f"{label}, {level}", {"log_x": True, "marks": True}
                yield LineChart(title=title, x_label=x_label, y_label="accuracy, %", lines=lines, **look)


def _curve(view: View, label: str, network: str, level: str) -> Iterator[Line]:
    points = {float(column): value for column, value in view.known_line(label, network, level).items()}
    if points:
        x, values = list(points), list(points.values())
        yield Line(label=network, x=x, y=[value.mean for value in values], std=[value.std for value in values])
        alone = view.known("NoAdapt", network, level, "na")
        if alone:
            yield Line(label=f"{network}, NoAdapt", x=[x[0], x[-1]], y=[alone.mean] * 2, dashed=True)


def _flat_in(*places: tuple[str, str]) -> Check:
    """Tent works and varies by at most three points along the columns, on these networks at these levels."""
    return all_of(*(flat_row(f"{' '.join(place)}:", 3.0, "Tent", *place) for place in places))


def _falls_below_8(view: View) -> Iterator[Part]:
    values = view.line("Tent", BN, "level 5")
    small = [value for size, value in values.items() if int(size) < 8]
    if not small:
        raise TooShort("no batch below 8 was run")
    yield max(small) < 0.5 * values["64"], f"BN level 5: {arrow(values.values())}"


def _below_no_adaptation(view: View) -> Iterator[Part]:
    top = max(view.line("Tent", GN, "level 5").values())
    alone = view.mean("NoAdapt", GN, "level 5", "na")
    yield top < alone, f"Tent at best {top:.1f}, no adaptation {alone:.1f}"


def _works_everywhere(view: View) -> Iterator[Part]:
    column = "na" if view.setting.scale.slow_limit is None else _ALONE_BESIDE_TTT
    for level in LEVELS:
        for network in NETWORKS:
            lowest = min(view.line("TTT", network, level).values())
            alone = view.mean("NoAdapt", network, level, column)
            yield lowest > alone, f"{network} {level}: at worst {lowest:.1f}, alone {alone:.1f}"


def _ttt_varies_on_vit(view: View) -> Iterator[Part]:
    """Over all of TTT's columns but those without adaptation."""
    alone = ("no adapt", _ALONE_IN_MIXTURE)
    spread: dict[str, float] = {}
    for network in NETWORKS:
        rows = [("TTT", network, level) for level in LEVELS]
        values = [view.value_at(spot) for spot in view.spots if spot.row in rows and spot.column not in alone]
        needs_seeds(values[0])
        spread[network] = max(value.std for value in values)
    told = ", ".join(f"{network} {value:.2f}" for network, value in spread.items())
    yield spread[VIT] > 2 * max(spread[BN], spread[GN]), f"largest std of TTT: {told}"


FIGURE_4 = Experiment(
    "figure-4",
    "Accuracy over the batch size, Gaussian noise",
    _over_batch_sizes,
    Claim("Tent on batch norm falls sharply below a batch of 8", _falls_below_8),
    Claim(
        "Tent is flat in the batch size for ViT at both levels and for GN at level 3",
        _flat_in((VIT, "level 5"), (VIT, "level 3"), (GN, "level 3")),
    ),
    Claim("Tent on GN at level 5 is below no adaptation", _below_no_adaptation),
    Claim("TTT works at every batch size on every network", _works_everywhere),
    Claim("TTT on ViT varies much between runs; the others hardly", _ttt_varies_on_vit),
    row_names=_LEVEL_ROWS,
    draw=_draw_over("batch size"),
    note="'na' is the network without adaptation",
)


def _mixture_bars(setting: Setting) -> list[Spot]:
    """TTT learns from one image at a time. Beside it the network alone sees the same images, few where TTT sees few."""
    few = {"Tent": None, "TTT": setting.scale.slow_limit}
    bars = (
        ("no adapt", False, MILD), ("avg adapt", True, MILD), ("mix adapt", True, MIXED), (_ALONE_IN_MIXTURE, False, MIXED),
    )  # fmt: skip
    return [
        place(
            setting, network, recipe, (label, network, level), column,
            scenario=scenario, severity=LEVELS[level], batch_size=1 if recipe == "TTT" else 64, most=few[label],
        )
        for level in LEVELS
        for label in ("TTT", "Tent")
        for network in NETWORKS
        for column, adapts, scenario in bars
        for recipe in [label if adapts else "NoAdapt"]
    ]  # fmt: skip


def _draw_mixture_bars(view: View) -> Iterator[Chart]:
    for label in ("Tent", "TTT"):
        for level in LEVELS:
            values = [[view.known(label, network, level, column) for network in NETWORKS] for column in _BARS]
            if any(value for bars in values[1:] for value in bars):
                yield _bars(f"{label}, {level}", NETWORKS, _BARS, values)


@later
def _mixture_against(
    view: View, column: str, places: Iterable[tuple[str, str, str]], within: float | None = None
) -> Iterator[Part]:
    """The mixture is below another bar for each (method, network, level), or within so many points of it."""
    for row in places:
        other, mixture = (view.mean(*row, name) for name in (column, "mix adapt"))
        near = works(view, other, mixture) and abs(other - mixture) <= (within or 0)
        holds = mixture < other if within is None else near
        yield holds, f"{' '.join(row)}: {column} {other:.1f}, mixture {mixture:.1f}"


def _fails_less(view: View) -> Iterator[Part]:
    """A failure is a mixture below no adaptation on the same images."""
    failures = {}
    for method in ("Tent", "TTT"):
        rows = [(method, network, level) for network in (GN, VIT) for level in LEVELS]
        failures[method] = [row for row in rows if view.mean(*row, "mix adapt") < view.mean(*row, _ALONE_IN_MIXTURE)]
    tent, ttt = map(len, failures.values())
    yield ttt < tent, f"of 4 cases Tent fails in {tent}, TTT in {ttt}"


FIGURE_5 = Experiment(
    "figure-5",
    "Mixture of 15 corruptions against one at a time",
    _mixture_bars,
    Claim(
        "On batch norm the mixture is below one corruption at a time, for Tent and TTT",
        _mixture_against("avg adapt", [(m, BN, level) for m in ("Tent", "TTT") for level in LEVELS]),
    ),
    Claim(
        "The mixture costs nothing for TTT on GN and for Tent on ViT at level 3",
        _mixture_against("avg adapt", [*(("TTT", GN, level) for level in LEVELS), ("Tent", VIT, "level 3")], within=2),
    ),
    Claim(
        "Under the mixture Tent fails on GN at both levels and on ViT at level 5",
        _mixture_against(_ALONE_IN_MIXTURE, [*(("Tent", GN, level) for level in LEVELS), ("Tent", VIT, "level 5")]),
    ),
    Claim("TTT on ViT varies much between runs", _ttt_varies_on_vit),
    Claim("On GN and ViT TTT fails less often under the mixture than Tent (3 of 4 cases)", _fails_less),
    row_names=_LEVEL_ROWS,
    draw=_draw_mixture_bars,
)


def _ratios(setting: Setting, label: str) -> dict[str, Stream]:
    """The last ratio stands for ∞: the class order of table 1. TTT takes one image at a time."""
    ratios = setting.scale.ratios
    fixed: Stream = {"scenario": LABEL_SHIFT, "batch_size": 1 if label == "TTT" else 64}
    return {f"{ratio:g}": {**fixed, "ratio": None if ratio == ratios[-1] else ratio} for ratio in ratios}


def _falls_mildly(values: Sequence[float]) -> bool:
    """Down, and by less than a third."""
    return 0.7 * values[0] <= values[-1] < values[0]


def _at_ratio_1(view: View) -> Iterator[Part]:
    for network, helps in ((GN, False), (BN, True)):
        first = next(iter(view.line("Tent", network, "level 5").values()))
        alone = view.mean("NoAdapt", network, "level 5", "na")
        yield first > alone if helps else first < alone, f"ratio 1: {network} {first:.1f} (alone {alone:.1f})"


FIGURE_6 = Experiment(
    "figure-6",
    "Accuracy over the imbalance ratio, Gaussian noise",
    _over(_ratios),
    Claim(
        "Tent on batch norm falls steeply with the imbalance ratio, at both levels",
        all_of(*(along(f"BN {n}:", lambda values: values[-1] < 0.5 * values[0], "Tent", BN, n) for n in LEVELS)),
    ),
    Claim("GN and ViT at level 3 are stable over the ratio", _flat_in((GN, "level 3"), (VIT, "level 3"))),
    Claim(
        "TTT falls mildly with the ratio",
        all_of(*(along(f"{n}:", _falls_mildly, "TTT", n, "level 5") for n in NETWORKS)),
    ),
    Claim("At ratio 1 and level 5 Tent is below no adaptation on GN and above it on batch norm", _at_ratio_1),
    row_names=_LEVEL_ROWS,
    draw=_draw_over("imbalance ratio (the last stands for ∞)"),
    note="the paper does not print its ratios",
)
