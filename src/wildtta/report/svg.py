"""Charts as SVG text whose colours are CSS variables, so that one drawing is legible in light and in dark.

Inside the HTML page the variables come from the page; a file of its own gets them by :func:`standalone`.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from wildtta.report.axes import Axis, linear_axis, log_axis, tick_label, tight_axis
from wildtta.report.chart import BarChart, Chart, LineChart, PictureChart, ScatterChart, SurfaceChart

WIDTH, HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 44
_LEGEND_LINE = 16
_COLOURS = 8

STYLE = """
.chart{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--ink)}
.chart .t{font-weight:600;font-size:13px}.chart .m{fill:var(--muted)}.chart .g{stroke:var(--rule);stroke-width:1}
.chart .a{stroke:var(--muted);stroke-width:1}.chart .l{fill:none;stroke-width:2;stroke-linejoin:round}
.chart .d{stroke-dasharray:5 4;stroke-width:1.5}.chart .n{font-variant-numeric:tabular-nums}
"""
LIGHT = (
    "--ink:#1c2127;--muted:#5b6570;--rule:#e3e6ea;--paper:#fff;--c0:#0b62a8;--c1:#c2480a;--c2:#0a7a58;--c3:#8639a6;"
    "--c4:#8a5a00;--c5:#b0205c;--c6:#3c6670;--c7:#6b6b00"
)
DARK = (
    "--ink:#e6e9ee;--muted:#9aa5b1;--rule:#2e353d;--paper:#14181d;--c0:#6cb6ff;--c1:#ff9d5c;--c2:#4fd1a5;--c3:#d39bf0;"
    "--c4:#e3b341;--c5:#ff8ab8;--c6:#8fc7d3;--c7:#cfcf5a"
)


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


def standalone(svg: str) -> str:
    """The same drawing as a file of its own, light or dark as the viewer prefers."""
    colours = f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    style = f"<style>{colours}{STYLE}svg{{background:var(--paper)}}</style>"
    head, rest = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}'


def _colour(number: int) -> str:
    return f"var(--c{number % _COLOURS})"


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start", turn: bool = False) -> str:
    turned = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turn else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" class="{kind}" text-anchor="{anchor}"{turned}>{escape(words)}</text>'


def _frame(title: str, body: Iterable[str], height: float = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {_n(height)}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{_text(_LEFT, 16, title, kind='t')}{''.join(body)}</svg>"
    )


def _grid(x: Axis, y: Axis, chart: Chart, *, x_ticks: bool = True) -> list[str]:
    parts = []
    for tick in y.ticks:
        place = y.place(tick)
        parts.append(f'<line class="g" x1="{_n(x.start)}" x2="{_n(x.end)}" y1="{_n(place)}" y2="{_n(place)}"/>')
        parts.append(_text(x.start - 6, place + 4, tick_label(tick), kind="m n", anchor="end"))
    parts.append(f'<line class="a" x1="{_n(x.start)}" x2="{_n(x.end)}" y1="{_n(y.start)}" y2="{_n(y.start)}"/>')
    if x_ticks:
        last = -1e9
        for tick in x.ticks:
            place = x.place(tick)
            if place - last < 30:
                continue  # labels would touch
            last = place
            parts.append(
                f'<line class="a" x1="{_n(place)}" x2="{_n(place)}" y1="{_n(y.start)}" y2="{_n(y.start + 4)}"/>'
            )
            parts.append(_text(place, y.start + 17, tick_label(tick), kind="m n", anchor="middle"))
    if chart.x_label:
        parts.append(_text((x.start + x.end) / 2, y.start + 34, chart.x_label, kind="m", anchor="middle"))
    if chart.y_label:
        parts.append(_text(13, (y.start + y.end) / 2, chart.y_label, kind="m", anchor="middle", turn=True))
    return parts


def _legend(entries: Sequence[tuple[str, int, bool]], top: float) -> tuple[list[str], float]:
    """Entries (label, colour, dashed) in as many lines as they need; gives the drawing and the height it takes."""
    parts, x, line = [], float(_LEFT), 0
    for label, colour, dashed in entries:
        width = 26 + 6.6 * len(label)
        if x + width > WIDTH and x > _LEFT:
            x, line = float(_LEFT), line + 1
        y = top + line * _LEGEND_LINE
        kind = "l d" if dashed else "l"
        parts.append(f'<path class="{kind}" stroke="{_colour(colour)}" d="M{_n(x)} {_n(y - 4)}h16"/>')
        parts.append(_text(x + 20, y, label))
        x += width + 6
    return parts, (line + 1) * _LEGEND_LINE if entries else 0.0


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _lines(chart: LineChart) -> str:
    names = list(dict.fromkeys(line.label.removesuffix(", na") for line in chart.lines))
    entries = [(line.label, names.index(line.label.removesuffix(", na")), line.dashed) for line in chart.lines]
    legend, room = _legend(entries, HEIGHT + 10)
    xs = [x for line in chart.lines for x in line.x]
    ys = [y for line in chart.lines for y in line.y]
    for line in chart.lines:
        if line.std is not None:
            ys += [y + side * s for y, s in zip(line.y, line.std, strict=True) for side in (-1, 1)]
    horizontal = log_axis if chart.log_x else tight_axis
    x = horizontal(xs, _LEFT, WIDTH - _RIGHT)
    y = linear_axis(ys, HEIGHT - _BOTTOM, _TOP)
    parts = _grid(x, y, chart)
    for line, (_, colour, dashed) in zip(chart.lines, entries, strict=True):
        points = [(x.place(a), y.place(b)) for a, b in zip(line.x, line.y, strict=True)]
        if line.std is not None and any(line.std):
            upper = [(x.place(a), y.place(b + s)) for a, b, s in zip(line.x, line.y, line.std, strict=True)]
            lower = [(x.place(a), y.place(b - s)) for a, b, s in zip(line.x, line.y, line.std, strict=True)]
            parts.append(f'<path fill="{_colour(colour)}" fill-opacity=".15" d="{_path([*upper, *lower[::-1]])}Z"/>')
        parts.append(f'<path class="l{" d" if dashed else ""}" stroke="{_colour(colour)}" d="{_path(points)}"/>')
        if chart.marks and not dashed:
            parts += [f'<circle cx="{_n(a)}" cy="{_n(b)}" r="3" fill="{_colour(colour)}"/>' for a, b in points]
    return _frame(chart.title, [*parts, *legend], HEIGHT + room)


def _bars(chart: BarChart) -> str:
    entries = [(label, i, False) for i, label in enumerate(chart.series)] if len(chart.series) > 1 else []
    legend, room = _legend(entries, HEIGHT + 10)
    known = [value for bars in chart.values for value in bars if value is not None]
    y = linear_axis(known, HEIGHT - _BOTTOM, _TOP, zero=True)
    x = Axis(low=0, high=len(chart.groups), start=_LEFT, end=WIDTH - _RIGHT, ticks=())
    parts = _grid(x, y, chart, x_ticks=False)
    slot = (x.end - x.start) / len(chart.groups)
    width = min(34.0, slot * 0.8 / len(chart.series))
    for g, group in enumerate(chart.groups):
        middle = x.start + (g + 0.5) * slot
        for line, words in enumerate(_folded(group, slot)):
            parts.append(_text(middle, y.start + 16 + 13 * line, words, kind="m", anchor="middle"))
        for s in range(len(chart.series)):
            value = chart.values[s][g]
            left = middle + (s - len(chart.series) / 2) * width
            if value is None:
                parts.append(_text(left + width / 2, y.place(0) - 4, "–", kind="m", anchor="middle"))
                continue
            top, base = y.place(max(value, 0)), y.place(min(value, 0))
            parts.append(
                f'<rect x="{_n(left + 1)}" y="{_n(top)}" width="{_n(width - 2)}" height="{_n(max(base - top, 0.5))}" '
                f'fill="{_colour(s)}" rx="1.5"><title>{escape(chart.series[s])}, {escape(group)}: {value:.1f}</title></rect>'
            )
            std = chart.stds[s][g] if chart.stds is not None else None
            if std:
                parts.append(_path_bar(left + width / 2, y.place(value - std), y.place(value + std)))
            if width >= 22:
                parts.append(_text(left + width / 2, top - 4, f"{value:.1f}", kind="m n", anchor="middle"))
    return _frame(chart.title, [*parts, *legend], HEIGHT + room)


def _path_bar(x: float, low: float, high: float) -> str:
    return f'<path class="a" style="stroke:var(--ink)" d="M{_n(x)} {_n(low)}V{_n(high)}M{_n(x - 3)} {_n(high)}h6"/>'


def _folded(words: str, width: float) -> list[str]:
    """A label in up to two lines of the given width."""
    if len(words) * 6.4 <= width or " " not in words:
        return [words if len(words) * 6.4 <= width + 12 else words[: max(3, int(width / 6.4) - 1)] + "…"]
    cuts = [i for i, letter in enumerate(words) if letter == " "]
    cut = min(cuts, key=lambda i: abs(i - len(words) / 2))
    return [words[:cut], words[cut + 1 :]]


def _scatter(chart: ScatterChart) -> str:
    left: float = _LEFT if chart.axes else 12
    bottom: float = HEIGHT - (_BOTTOM if chart.axes else 12)
    x = tight_axis([*chart.x, *(place for place, _ in chart.vertical)], left, WIDTH - _RIGHT)
    y = linear_axis([*chart.y, *(place for place, _ in chart.horizontal)], bottom, _TOP)
    parts = _grid(x, y, chart) if chart.axes else []
    groups: dict[int, list[str]] = {}
    for place, (a, b) in enumerate(zip(chart.x, chart.y, strict=True)):
        group = chart.group[place] if chart.group is not None else 0
        groups.setdefault(group, []).append(f"M{_n(x.place(a))} {_n(y.place(b))}h0")
    size = 3 if len(chart.x) > 600 else 5
    for number, dots in enumerate(groups.values()):
        # A stroke of no length with round ends is a dot; one path per group keeps thousands of them small.
        shade = ".9" if number < _COLOURS else ".5"
        parts.append(
            f'<path d="{"".join(dots)}" stroke="{_colour(number)}" stroke-width="{size}" stroke-linecap="round" '
            f'stroke-opacity="{shade}" fill="none"/>'
        )
    for value, label in chart.vertical:
        at = x.place(value)
        parts.append(f'<path class="a d" d="M{_n(at)} {_n(y.start)}V{_n(y.end)}"/>')
        parts.append(_text(at + 4, y.end + 10, label))
    for value, label in chart.horizontal:
        at = y.place(value)
        parts.append(f'<path class="a d" d="M{_n(x.start)} {_n(at)}H{_n(x.end)}"/>')
        parts.append(_text(x.end, at - 4, label, anchor="end"))
    return _frame(chart.title, parts)


def _surface(chart: SurfaceChart) -> str:
    try:
        from contourpy import contour_generator
    except ImportError as error:
        raise ImportError("drawing an entropy surface needs matplotlib: pip install 'wildtta[report]'") from error
    side = HEIGHT - _TOP - _BOTTOM
    x = tight_axis(chart.x, _LEFT, _LEFT + side)
    y = tight_axis(chart.y, _TOP + side, _TOP)
    z = np.asarray(chart.z, dtype=float)
    low, high = float(z.min()), float(z.max())
    span = (high - low) or 1.0
    step_x, step_y = side / len(chart.x), side / len(chart.y)
    parts = []
    for i in range(len(chart.y)):
        for j in range(len(chart.x)):
            strength = 0.08 + 0.82 * (z[i, j] - low) / span
            parts.append(
                f'<rect x="{_n(_LEFT + j * step_x)}" y="{_n(_TOP + side - (i + 1) * step_y)}" width="{step_x + 0.4:.2f}" '
                f'height="{step_y + 0.4:.2f}" fill="var(--c0)" fill-opacity="{strength:.2f}"/>'
            )
    lines = contour_generator(x=np.asarray(chart.x), y=np.asarray(chart.y), z=z)
    levels = [low + span * share for share in (0.1, 0.25, 0.45, 0.7)]
    for level in sorted({*levels, *([chart.level] if chart.level is not None else [])}):
        strong = chart.level is not None and abs(level - chart.level) < 1e-12
        for line in lines.lines(level):
            points = [(x.place(float(a)), y.place(float(b))) for a, b in np.asarray(line)]
            width = 2.2 if strong else 0.8
            parts.append(f'<path d="{_path(points)}" fill="none" stroke="var(--ink)" stroke-width="{width}"/>')
    parts += _grid(x, y, chart)
    parts += _colour_key(_LEFT + side + 24, low, high, chart.z_label, side)
    return _frame(chart.title, parts)


def _colour_key(left: float, low: float, high: float, label: str, height: float) -> list[str]:
    parts = [_text(left, _TOP - 4 + 12, label, kind="m")]
    steps = 8
    for i in range(steps):
        y = _TOP + 20 + i * (height - 20) / steps
        strength = 0.08 + 0.82 * (steps - 1 - i) / (steps - 1)
        parts.append(
            f'<rect x="{_n(left)}" y="{_n(y)}" width="14" height="{(height - 20) / steps + 0.4:.2f}" fill="var(--c0)" '
            f'fill-opacity="{strength:.2f}"/>'
        )
    parts.append(_text(left + 20, _TOP + 32, f"{high:.2f}", kind="m n"))
    parts.append(_text(left + 20, _TOP + height - 2, f"{low:.2f}", kind="m n"))
    return parts


def _pictures(chart: PictureChart) -> str:
    per_row, size = 4, 84.0
    pitch_x, pitch_y = (WIDTH - 16) / per_row, size + 44
    parts = []
    for place, (picture, caption) in enumerate(zip(chart.pictures, chart.captions, strict=True)):
        left = 8 + (place % per_row) * pitch_x + (pitch_x - size) / 2
        top = _TOP + (place // per_row) * pitch_y
        parts.append(
            f'<image x="{_n(left)}" y="{_n(top)}" width="{size}" height="{size}" style="image-rendering:pixelated" '
            f'href="{png_uri(picture)}"/>'
        )
        name, _, value = caption.partition(" · ")
        parts.append(_text(left + size / 2, top + size + 14, name, anchor="middle"))
        parts.append(_text(left + size / 2, top + size + 28, value, kind="m n", anchor="middle"))
    rows = -(-len(chart.pictures) // per_row)
    return _frame(chart.title, parts, _TOP + rows * pitch_y)


def png_uri(picture: npt.NDArray[Any]) -> str:
    """A small RGB image as a PNG inside a ``data:`` address."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(f"expected uint8 height × width × 3, got {picture.dtype} {picture.shape}")
    height, width, _ = picture.shape
    lines = b"".join(b"\0" + np.ascontiguousarray(line).tobytes() for line in picture)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()
