"""Charts drawn: one function per kind, all of them text in and SVG out."""

from __future__ import annotations

from html import escape

import numpy as np

from wildtta.report.axes import Axis, linear_axis, log_axis, tight_axis
from wildtta.report.chart import BarChart, Chart, LineChart, PictureChart, ScatterChart, SurfaceChart
from wildtta.report.svg import (
    HEIGHT,
    WIDTH,
    colour,
    frame,
    grid,
    legend,
    margin_for,
    n,
    path,
    png_uri,
    text,
    top_of,
    width_of,
)

_RIGHT, _BELOW = 18, 44
"""Room right of the axes, and below them for ticks and label."""


def draw(chart: Chart) -> str:
    """A chart as one ``<svg>`` element."""
    if isinstance(chart, LineChart):
        return _lines(chart)
    if isinstance(chart, BarChart):
        return _bars(chart)
    if isinstance(chart, ScatterChart):
        return _scatter(chart)
    if isinstance(chart, SurfaceChart):
        return _surface(chart)
    if isinstance(chart, PictureChart):
        return _pictures(chart)
    raise TypeError(f"no way to draw a {type(chart).__name__}")


def _lines(chart: LineChart) -> str:
    # A reference line ("na": no adaptation) shares its network's colour.
    names = list(dict.fromkeys(line.label.removesuffix(", na") for line in chart.lines))
    entries = [(line.label, names.index(line.label.removesuffix(", na")), line.dashed) for line in chart.lines]
    ys = [value for line in chart.lines for value in line.y]
    for line in chart.lines:
        if line.std is not None:
            ys += [value + side * s for value, s in zip(line.y, line.std, strict=True) for side in (-1, 1)]
    y = linear_axis(ys, HEIGHT - _BELOW, top_of(chart.title))
    horizontal = log_axis if chart.log_x else tight_axis
    x = horizontal([value for line in chart.lines for value in line.x], margin_for(y.ticks), WIDTH - _RIGHT)
    parts = grid(x, y, chart.x_label, chart.y_label)
    # References come last, so that a curve that equals one does not hide it.
    for line, (_, number, dashed) in sorted(zip(chart.lines, entries, strict=True), key=lambda pair: pair[0].dashed):
        points = [(x.place(a), y.place(b)) for a, b in zip(line.x, line.y, strict=True)]
        if line.std is not None and any(line.std):
            upper = [(x.place(a), y.place(b + s)) for a, b, s in zip(line.x, line.y, line.std, strict=True)]
            lower = [(x.place(a), y.place(b - s)) for a, b, s in zip(line.x, line.y, line.std, strict=True)]
            parts.append(f'<path fill="{colour(number)}" fill-opacity=".15" d="{path([*upper, *lower[::-1]])}Z"/>')
        parts.append(f'<path class="l{" d" if dashed else ""}" stroke="{colour(number)}" d="{path(points)}"/>')
        if chart.marks and not dashed:
            parts += [f'<circle cx="{n(a)}" cy="{n(b)}" r="3" fill="{colour(number)}"/>' for a, b in points]
    key, room = legend(entries, HEIGHT + 10)
    return frame(chart.title, [*parts, *key], HEIGHT + room)


def _bars(chart: BarChart) -> str:
    known = [value for bars in chart.values for value in bars if value is not None]
    y = linear_axis(known, HEIGHT - _BELOW, top_of(chart.title), zero=True)
    x = Axis(low=0, high=len(chart.groups), start=margin_for(y.ticks), end=WIDTH - _RIGHT, ticks=())
    parts = grid(x, y, chart.x_label, chart.y_label, x_ticks=False)
    slot = (x.end - x.start) / len(chart.groups)
    width = min(40.0, slot * 0.86 / len(chart.series))
    for g, group in enumerate(chart.groups):
        middle = x.start + (g + 0.5) * slot
        for line, words in enumerate(_folded(group, slot)):
            parts.append(text(middle, y.start + 16 + 13 * line, words, kind="m", anchor="middle"))
        for s, series in enumerate(chart.series):
            value, centre = chart.values[s][g], middle + (s + 0.5 - len(chart.series) / 2) * width
            if value is None:
                parts.append(text(centre, y.place(0) - 4, "–", kind="m", anchor="middle"))
                continue
            top, base = y.place(max(value, 0)), y.place(min(value, 0))
            label = escape(f"{series}, {group}: {value:.1f}")
            parts.append(
                f'<rect x="{n(centre - width / 2 + 1)}" y="{n(top)}" width="{n(width - 2)}" '
                f'height="{n(max(base - top, 0.5))}" fill="{colour(s)}" rx="1.5"><title>{label}</title></rect>'
            )
            std = chart.stds[s][g] if chart.stds is not None else None
            if std:
                low, high = y.place(value - std), y.place(value + std)
                stroke = f"M{n(centre)} {n(low)}V{n(high)}M{n(centre - 3)} {n(high)}h6"
                parts.append(f'<path class="a" style="stroke:var(--ink)" d="{stroke}"/>')
                top = min(top, high)
            if width >= width_of("00.0"):
                parts.append(text(centre, top - 4, f"{value:.1f}", kind="m n", anchor="middle"))
    entries = [(label, i, False) for i, label in enumerate(chart.series)] if len(chart.series) > 1 else []
    key, room = legend(entries, HEIGHT + 10, blocks=True)
    return frame(chart.title, [*parts, *key], HEIGHT + room)


def _folded(words: str, width: float) -> list[str]:
    """A label in up to two lines of the given width."""
    if width_of(words) <= width or " " not in words:
        return [words if width_of(words) <= width + 8 else words[: max(3, int(width / width_of("x")) - 1)] + "…"]
    cuts = [i for i, letter in enumerate(words) if letter == " "]
    cut = min(cuts, key=lambda i: abs(i - len(words) / 2))
    return [words[:cut], words[cut + 1 :]]


def _scatter(chart: ScatterChart) -> str:
    ys = [*chart.y, *(at for at, _ in chart.horizontal)]
    y = linear_axis(ys, HEIGHT - (_BELOW if chart.axes else 10), top_of(chart.title))
    left = margin_for(y.ticks) if chart.axes else 14.0
    x = tight_axis([*chart.x, *(at for at, _ in chart.vertical)], left, WIDTH - _RIGHT)
    parts = grid(x, y, chart.x_label, chart.y_label) if chart.axes else []
    groups: dict[int, list[str]] = {}
    for place, (a, b) in enumerate(zip(chart.x, chart.y, strict=True)):
        group = chart.group[place] if chart.group is not None else 0
        groups.setdefault(group, []).append(f"M{n(x.place(a))} {n(y.place(b))}h0")
    size = 3 if len(chart.x) > 600 else 4.5
    for number, dots in enumerate(groups.values()):
        # A stroke of no length with round ends is a dot; one path per group keeps thousands of them small.
        opacity = 0.9 if number < 8 else 0.5
        parts.append(
            f'<path d="{"".join(dots)}" stroke="{colour(number)}" stroke-width="{size}" stroke-linecap="round" '
            f'stroke-opacity="{opacity}" fill="none"/>'
        )
    for value, label in chart.vertical:
        at = x.place(value)
        parts.append(f'<path class="a d" d="M{n(at)} {n(y.start)}V{n(y.end)}"/>')
        parts.append(text(at + 4, y.end + 10, label))
    for value, label in chart.horizontal:
        at = y.place(value)
        parts.append(f'<path class="a d" d="M{n(x.start)} {n(at)}H{n(x.end)}"/>')
        parts.append(text(x.end, at - 4, label, anchor="end"))
    return frame(chart.title, parts, HEIGHT)


def _surface(chart: SurfaceChart) -> str:
    try:
        from contourpy import contour_generator
    except ImportError as error:
        raise ImportError("drawing an entropy surface needs matplotlib: pip install 'wildtta[report]'") from error
    top = top_of(chart.title)
    side = HEIGHT - top - _BELOW + 20
    left = margin_for([-1.0, 0.5])
    x = tight_axis(chart.x, left, left + side)
    y = tight_axis(chart.y, top + side, top)
    z = np.asarray(chart.z, dtype=float)
    low, high = float(z.min()), float(z.max())
    span = (high - low) or 1.0
    step_x, step_y = side / len(chart.x), side / len(chart.y)
    parts = grid(x, y, chart.x_label, chart.y_label)
    for i in range(len(chart.y)):
        for j in range(len(chart.x)):
            parts.append(
                f'<rect x="{n(left + j * step_x)}" y="{n(top + side - (i + 1) * step_y)}" width="{step_x + 0.4:.2f}" '
                f'height="{step_y + 0.4:.2f}" fill="var(--c0)" fill-opacity="{_strength((z[i, j] - low) / span)}"/>'
            )
    contours = contour_generator(x=np.asarray(chart.x), y=np.asarray(chart.y), z=z)
    for level in sorted({low + span * share for share in (0.25, 0.45, 0.7)} | {chart.level or low}):
        width = 2.2 if level == chart.level else 0.8
        for line in contours.lines(level):
            points = [(x.place(float(a)), y.place(float(b))) for a, b in np.asarray(line)]
            parts.append(f'<path d="{path(points)}" fill="none" stroke="var(--ink)" stroke-width="{width}"/>')
    parts += _colour_key(left + side + 22, top, side, low, high, chart.z_label)
    return frame(chart.title, parts, HEIGHT + 20)


def _strength(share: float) -> str:
    return f"{0.08 + 0.82 * share:.2f}"


def _colour_key(left: float, top: float, height: float, low: float, high: float, label: str) -> list[str]:
    parts = [text(left, top + 8, label, kind="m")]
    steps, begin = 8, top + 18
    each = (top + height - begin) / steps
    parts += [
        f'<rect x="{n(left)}" y="{n(begin + i * each)}" width="14" height="{each + 0.4:.2f}" fill="var(--c0)" '
        f'fill-opacity="{_strength((steps - 1 - i) / (steps - 1))}"/>'
        for i in range(steps)
    ]
    parts.append(text(left + 20, begin + 10, f"{high:.2f}", kind="m n"))
    parts.append(text(left + 20, top + height, f"{low:.2f}", kind="m n"))
    return parts


def _pictures(chart: PictureChart) -> str:
    per_row, size, top = 4, 74.0, top_of(chart.title) - 8
    pitch_x, pitch_y = (WIDTH - 8) / per_row, size + 48
    parts = []
    for place, (picture, caption) in enumerate(zip(chart.pictures, chart.captions, strict=True)):
        middle = 4 + (place % per_row + 0.5) * pitch_x
        above = top + (place // per_row) * pitch_y
        parts.append(
            f'<image x="{n(middle - size / 2)}" y="{n(above)}" width="{size}" height="{size}" '
            f'style="image-rendering:pixelated" href="{png_uri(picture)}"/>'
        )
        name, _, value = caption.partition(" · ")
        for line, words in enumerate(filter(None, (*_folded(name, pitch_x), value))):
            parts.append(
                text(middle, above + size + 13 + 12 * line, words, kind="m n" * (words == value), anchor="middle")
            )
    rows = -(-len(chart.pictures) // per_row)
    return frame(chart.title, parts, top + rows * pitch_y)
