"""SVG text whose colours are CSS variables, so that one drawing is legible in light and in dark.

Inside the HTML page the variables come from the page; a file of its own gets them by :func:`standalone`.
"""

from __future__ import annotations

import base64
import struct
import textwrap
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from wildtta.report.axes import Axis, tick_label

WIDTH, HEIGHT = 360, 250
_LETTER = 6.5
"""Width of an average letter at the charts' text size."""
_LINE = 16
_COLOURS = 8

STYLE = """
.chart{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--ink)}
.chart .t{font-weight:600;font-size:12.5px}.chart .m{fill:var(--muted)}.chart .g{stroke:var(--rule);stroke-width:1}
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


def standalone(svg: str) -> str:
    """The same drawing as a file of its own, light or dark as the viewer prefers."""
    colours = f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    style = f"<style>{colours}{STYLE}svg{{background:var(--paper)}}</style>"
    head, rest = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}'


def colour(number: int) -> str:
    """The n-th colour of the palette."""
    return f"var(--c{number % _COLOURS})"


def n(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start", turn: bool = False) -> str:
    """One line of text."""
    turned = f' transform="rotate(-90 {n(x)} {n(y)})"' if turn else ""
    return f'<text x="{n(x)}" y="{n(y)}" class="{kind}" text-anchor="{anchor}"{turned}>{escape(words)}</text>'


def path(points: Iterable[tuple[float, float]]) -> str:
    """The ``d`` of a line through points."""
    return "M" + "L".join(f"{n(x)} {n(y)}" for x, y in points)


def width_of(words: str) -> float:
    """About how wide a text is."""
    return _LETTER * len(words)


def title_lines(title: str) -> list[str]:
    """A title in as many lines as it needs."""
    return textwrap.wrap(title, int((WIDTH - 20) / (_LETTER + 0.4))) or [""]


def top_of(title: str) -> float:
    """Where the drawing may begin below its title."""
    return 24.0 + _LINE * len(title_lines(title))


def frame(title: str, body: Iterable[str], height: float) -> str:
    """The ``<svg>`` around a drawing, with its title for the eye and for a screen reader."""
    lines = "".join(text(10, 16 + _LINE * i, words, kind="t") for i, words in enumerate(title_lines(title)))
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {n(height)}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{lines}{''.join(body)}</svg>"
    )


def margin_for(ticks: Sequence[float]) -> float:
    """Room on the left for the tick labels and the axis's label."""
    return 30 + max(width_of(tick_label(tick)) for tick in ticks)


def grid(x: Axis, y: Axis, x_label: str, y_label: str, *, x_ticks: bool = True) -> list[str]:
    """Horizontal rules with their numbers, the base line with its numbers, and the axes' labels."""
    parts = []
    for tick in y.ticks:
        at = y.place(tick)
        parts.append(f'<line class="g" x1="{n(x.start)}" x2="{n(x.end)}" y1="{n(at)}" y2="{n(at)}"/>')
        parts.append(text(x.start - 6, at + 4, tick_label(tick), kind="m n", anchor="end"))
    parts.append(f'<line class="a" x1="{n(x.start)}" x2="{n(x.end)}" y1="{n(y.start)}" y2="{n(y.start)}"/>')
    free_from = -1e9
    for tick in x.ticks if x_ticks else ():
        at, half = x.place(tick), width_of(tick_label(tick)) / 2
        if at - half < free_from:
            continue  # labels would touch
        free_from = at + half + 6
        parts.append(f'<line class="a" x1="{n(at)}" x2="{n(at)}" y1="{n(y.start)}" y2="{n(y.start + 4)}"/>')
        parts.append(text(at, y.start + 17, tick_label(tick), kind="m n", anchor="middle"))
    if x_label:
        parts.append(text((x.start + x.end) / 2, y.start + 34, x_label, kind="m", anchor="middle"))
    if y_label:
        parts.append(text(14, (y.start + y.end) / 2, y_label, kind="m", anchor="middle", turn=True))
    return parts


def legend(entries: Sequence[tuple[str, int, bool]], top: float, *, blocks: bool = False) -> tuple[list[str], float]:
    """Entries (label, colour, dashed) in as many lines as they need; gives the drawing and the height it takes."""
    parts, x, line = [], 10.0, 0
    for label, number, dashed in entries:
        width = 22 + width_of(label)
        if x + width > WIDTH and x > 10:
            x, line = 10.0, line + 1
        y = top + line * _LINE
        if blocks:
            parts.append(f'<rect x="{n(x)}" y="{n(y - 9)}" width="11" height="10" rx="2" fill="{colour(number)}"/>')
        else:
            kind = "l d" if dashed else "l"
            parts.append(f'<path class="{kind}" stroke="{colour(number)}" d="M{n(x)} {n(y - 4)}h16"/>')
        parts.append(text(x + 21, y, label))
        x += width + 12
    return parts, (line + 1) * _LINE if entries else 0.0


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
