"""Charts as SVG, drawn by matplotlib. Colours are CSS variables, so that a drawing follows light and dark.

Inside the HTML page the variables come from the page; a file of its own gets them by :func:`standalone`.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from wildtta.report.chart import BarChart, Chart, LineChart, PictureChart, ScatterChart, SurfaceChart

LIGHT = (
    "--ink:#1c2127;--muted:#5b6570;--rule:#e3e6ea;--paper:#ffffff;--c0:#0b62a8;--c1:#c2480a;--c2:#0a7a58;--c3:#8639a6;"
    "--c4:#8a5a00;--c5:#b0205c;--c6:#3c6670;--c7:#6b6b00"
)
DARK = (
    "--ink:#e6e9ee;--muted:#9aa5b1;--rule:#2e353d;--paper:#14181d;--c0:#6cb6ff;--c1:#ff9d5c;--c2:#4fd1a5;--c3:#d39bf0;"
    "--c4:#e3b341;--c5:#ff8ab8;--c6:#8fc7d3;--c7:#cfcf5a"
)
STYLE = """
.chart *{stroke-linejoin:round;stroke-linecap:butt}
.chart text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif!important;
font-variant-numeric:tabular-nums}
"""
_WIDTH, _HEIGHT, _LINE, _LETTER = 360, 250, 17, 6.5
"""Of a drawing without legend, of a line of text and of an average letter; in points."""
_PALETTE = dict(entry.split(":") for entry in LIGHT.split(";"))
_INK, _MUTED, _RULE = (_PALETTE[f"--{name}"] for name in ("ink", "muted", "rule"))
_LOOK: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "wildtta",
    "font.size": 11.5,
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": _INK,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top")},
    "grid.color": _RULE,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
    "figure.facecolor": "none",
    "figure.titlesize": 12.5,
    "figure.titleweight": "bold",
}


def draw(chart: Chart) -> str:
    """A chart as one ``<svg>`` element; the same chart gives the same text."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'wildtta[report]'") from error
    file = io.StringIO()
    with style.context(["default", _LOOK]):
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), layout="constrained")
        title = textwrap.wrap(chart.title, 50)
        figure.suptitle("\n".join(title), x=0.02, ha="left")
        _taller(figure, _LINE * (len(title) - 1))
        _paint(chart, figure)
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _themed(file.getvalue(), chart.title)


def standalone(svg: str) -> str:
    """The same drawing as a file of its own, light or dark as the viewer prefers."""
    colours = f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    head, rest = svg.split(">", 1)
    style = f"<style>{colours}{STYLE}svg{{background:var(--paper)}}</style>"
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}'


def _themed(svg: str, title: str) -> str:
    """Colours become variables; a title for screen readers and tips for the mouse are added."""
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    body = svg[svg.index(">", box.end()) + 1 :]
    for pattern, replacement in (
        (r"<defs>\s*<style.*?</style>\s*</defs>", ""),
        (r'<g id="tip:([^"]*)">', r"<g><title>\1</title>"),
        (r'<g id="[^"]*"', "<g"),
        (r"xlink:href", "href"),
        (r"(\.\d{3})\d+", r"\1"),
        (r"\s*\n\s*", "\n"),
    ):
        body = re.sub(pattern, replacement, body, flags=re.DOTALL)
    for name, colour in _PALETTE.items():
        body = body.replace(colour, f"var({name})")
    # Drawings on one page must not share ids: a hidden one would take its clip paths along.
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{hashlib.sha1(body.encode()).hexdigest()[:8]}", body)
    words = escape(title, quote=True)
    return f'<svg class="chart" {box[0]} role="img" aria-label="{words}"><title>{words}</title>{body}'


def _colour(number: int) -> str:
    return _PALETTE[f"--c{number % 8}"]


def _taller(figure: Any, points: float) -> None:
    figure.set_figheight(figure.get_figheight() + points / 72)


def _axes(chart: Chart, figure: Any) -> Any:
    axes = figure.subplots()
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: _tick(value))
    return axes


def _tick(value: float) -> str:
    """Short: ``0.05``, ``2.5``, ``40k``."""
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{round(value, 10):g}"


def _legend(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Below the axes, in as many columns as fit."""
    widest = max(map(len, labels)) * _LETTER + 36
    columns = max(1, min(len(labels), int(_WIDTH / widest)))
    _taller(figure, _LINE * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns)


@functools.singledispatch
def _paint(chart: Chart, figure: Any) -> None:
    raise TypeError(f"no way to draw a {type(chart).__name__}")


@_paint.register
def _lines(chart: LineChart, figure: Any) -> None:
    axes = _axes(chart, figure)
    # A reference line ("na": no adaptation) shares its network's colour.
    names = list(dict.fromkeys(line.label.removesuffix(", na") for line in chart.lines))
    handles = []
    for line in chart.lines:
        colour = _colour(names.index(line.label.removesuffix(", na")))
        if line.std is not None and any(line.std):
            low, high = ([y + side * s for y, s in zip(line.y, line.std, strict=True)] for side in (-1, 1))
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
        # References lie above, so that a curve that equals one does not hide it.
        look = {"linestyle": (0, (5, 4)), "linewidth": 1.5, "zorder": 3} if line.dashed else {"linewidth": 2}
        marker = "o" if (chart.marks and not line.dashed) or len(line.x) == 1 else None
        handles += axes.plot(line.x, line.y, color=colour, marker=marker, markersize=5, **look)
    if chart.log_x:
        places = _far_apart(place for line in chart.lines for place in line.x)
        axes.set_xscale("log")
        axes.set_xticks(places, [_tick(place) for place in places])
        axes.minorticks_off()
    axes.margins(x=0.02 if chart.marks else 0)
    _legend(figure, handles, [line.label for line in chart.lines])


def _far_apart(values: Iterable[float]) -> list[float]:
    """The values that occur, without those whose labels would touch on a logarithmic axis."""
    known = sorted(set(values))
    least = 0.12 * math.log(known[-1] / known[0])
    chosen = known[:1]
    for value in known[1:]:
        if math.log(value / chosen[-1]) >= least:
            chosen.append(value)
    return chosen


@_paint.register
def _bars(chart: BarChart, figure: Any) -> None:
    axes = _axes(chart, figure)
    width = min(0.5, 0.86 / len(chart.series))
    room = 300 / len(chart.groups)
    handles = []
    for number, series in enumerate(chart.series):
        for group, value in enumerate(chart.values[number]):
            place = group + (number + 0.5 - len(chart.series) / 2) * width
            std = (chart.stds[number][group] if chart.stds is not None else None) or 0.0
            if value is None:
                axes.annotate("–", (place, 0), (0, 3), textcoords="offset points", ha="center", color=_MUTED)
                continue
            (bar,) = axes.bar([place], [value], width * 0.94, color=_colour(number), yerr=std or None, ecolor=_INK)
            bar.set_gid(f"tip:{series}, {chart.groups[group]}: {value:.1f}")
            if room * width >= 4 * _LETTER:
                above = (place, max(value + std, 0))
                axes.annotate(f"{value:.1f}", above, (0, 3), textcoords="offset points", ha="center", color=_MUTED)
        handles.append(axes.bar([0], [0], color=_colour(number)))
    names = [textwrap.fill(name, max(6, int(room / _LETTER))) for name in chart.groups]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
    if len(chart.series) > 1:
        _legend(figure, handles, chart.series)


@_paint.register
def _scatter(chart: ScatterChart, figure: Any) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    axes = _axes(chart, figure)
    groups: dict[int, list[tuple[float, float]]] = {}
    for place, point in enumerate(zip(chart.x, chart.y, strict=True)):
        groups.setdefault(chart.group[place] if chart.group is not None else 0, []).append(point)
    for number, points in enumerate(groups.values()):
        # A stroke of no length with round ends is a dot; one path per group keeps thousands of them small.
        dots = Path([point for point in points for _ in range(2)], [Path.MOVETO, Path.LINETO] * len(points))
        dots.should_simplify = False
        look = {"linewidth": 3 if len(chart.x) > 600 else 4.5, "alpha": 0.9 if number < 8 else 0.5}
        axes.add_patch(PathPatch(dots, edgecolor=_colour(number), facecolor="none", capstyle="round", **look))
    guide = {"color": _MUTED, "linestyle": (0, (5, 4)), "linewidth": 1.2}
    for value, label in chart.vertical:
        axes.axvline(value, **guide)
        axes.annotate(label, (value, 1), (4, -10), xycoords=("data", "axes fraction"), textcoords="offset points")
    for value, label in chart.horizontal:
        axes.axhline(value, **guide)
        axes.annotate(
            label, (1, value), (-4, 4), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right"
        )
    axes.autoscale_view()
    if not chart.axes:
        axes.set_axis_off()


@_paint.register
def _surface(chart: SurfaceChart, figure: Any) -> None:
    from matplotlib.colors import ListedColormap, to_rgba

    _taller(figure, 20)
    axes = _axes(chart, figure)
    axes.grid(False)
    shades = ListedColormap([to_rgba(_colour(0), 0.08 + 0.82 * step / 63) for step in range(64)])
    shaded = axes.pcolormesh(chart.x, chart.y, chart.z, cmap=shades, shading="nearest")
    values = [value for line in chart.z for value in line]
    low, span = min(values), (max(values) - min(values)) or 1.0
    levels = sorted({low + span * share for share in (0.25, 0.45, 0.7)} | {chart.level or low})
    widths = [2.2 if level == chart.level else 0.8 for level in levels]
    axes.contour(chart.x, chart.y, chart.z, levels=levels, colors=_INK, linewidths=widths)
    axes.set_box_aspect(1)
    figure.colorbar(shaded, ax=axes, label=chart.z_label, shrink=0.8).outline.set_visible(False)


@_paint.register
def _pictures(chart: PictureChart, figure: Any) -> None:
    columns = 4
    rows = math.ceil(len(chart.pictures) / columns)
    _taller(figure, 30 + 122 * rows - _HEIGHT)
    places = figure.subplots(rows, columns, squeeze=False).flat
    for axes, picture, caption in zip(places, chart.pictures, chart.captions, strict=False):
        axes.imshow(picture, interpolation="none")
        name, _, value = caption.partition(" · ")
        axes.set_xlabel("\n".join([*textwrap.wrap(name, 11), value]).strip(), fontsize=10.5, color=_INK)
    for axes in places[: rows * columns]:
        axes.set(xticks=[], yticks=[], frame_on=False)
