"""Growth of a cost over a size: what the operations' shapes predict, what points of ``scaling.py`` show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Expected:
    """Exponents for large sizes (None: not looked at), and where they come from."""

    us_per_image: float
    peak_mb: float | None
    reason: str
    state_mb: float | None = None
    resident_mb: float | None = None


EXPECTED: dict[str, dict[str, Expected]] = {
    "batch": {
        "none": Expected(0, 1, "every image passes once; activations"),
        "sar": Expected(0, 1, "every image once, the selected ones twice more"),
        "sar2": Expected(0, 1, "every image twice; R: B·D², and D² that stays", state_mb=0),
        "redundancy": Expected(0, 0, "B·D² for the batch's rows, D² for R (falls by -1 until B·D² is more)"),
        "direct_redundancy": Expected(-1, 0, "C·D² however many images"),
        "inequity": Expected(-1, 0, "one mean row through the head"),
        "refresh": Expected(0, 1, "B·D² into the sums; B rows"),
    },
    "classes": {
        "none": Expected(1, 1, "the head: B·C·D; logits B·C"),
        "sar": Expected(1, 1, "the head: B·C·D; logits B·C"),
        "sar2": Expected(1, 1, "the head and I; R looks at no stored row", state_mb=1),
        "redundancy": Expected(0, 0, "sums in place of C rows"),
        "direct_redundancy": Expected(1, 1, "C·D²"),
        "inequity": Expected(1, 1, "the head on one row: C·D"),
        "refresh": Expected(0, 0, "only the batch's rows are touched"),
    },
    "width": {
        "none": Expected(1, 1, "the head: B·C·D"),
        "sar": Expected(1, 1, "the head: B·C·D; D norm parameters"),
        "sar2": Expected(2, 2, "R: B·D²; the correlation matrix (more where it leaves the caches)", state_mb=2),
        "redundancy": Expected(2, 2, "B·D²; the correlation matrix (more where it leaves the caches)"),
        "direct_redundancy": Expected(2, 2, "C·D²; the correlation matrix"),
        "inequity": Expected(1, 1, "the head on one row: C·D"),
        "refresh": Expected(2, 1, "B·D² into the sums, in place"),
    },
    "steps": {
        "sar": Expected(0, None, "nothing gathers over a stream", state_mb=0, resident_mb=0),
        "sar2": Expected(0, None, "nothing gathers; the sums are computed anew at times", state_mb=0, resident_mb=0),
    },
}


@dataclass(frozen=True)
class Point:
    """One measurement."""

    axis: str
    size: int
    what: str
    batch: int
    classes: int
    width: int
    ms: float
    us_per_image: float
    peak_mb: float | None
    state_mb: float | None
    resident_mb: float | None


@dataclass(frozen=True)
class Growth:
    """Slope of a quantity over an axis: expected, over all points, and over the three largest."""

    axis: str
    what: str
    quantity: str
    expected: float
    measured: float | None
    measured_at_the_end: float | None
    reason: str


def exponent(sizes: list[int], values: list[float]) -> float | None:
    """Slope of ln value over ln size (least squares); None without two sizes or with a value of 0."""
    if len(set(sizes)) < 2 or min(values) <= 0:
        return None
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)


def growths(points: list[Point]) -> list[Growth]:
    """Expected and measured exponents of everything that was measured."""
    found = []
    for axis, subjects in EXPECTED.items():
        for what, expected in subjects.items():
            rows = sorted((p for p in points if (p.axis, p.what) == (axis, what)), key=lambda p: p.size)
            for quantity in ("us_per_image", "peak_mb", "state_mb", "resident_mb"):
                power = getattr(expected, quantity)
                if power is None or not rows:
                    continue
                sizes, values = [p.size for p in rows], [getattr(p, quantity) for p in rows]
                slopes = exponent(sizes, values), exponent(sizes[-3:], values[-3:])
                found.append(Growth(axis, what, quantity, power, *slopes, expected.reason))
    return found


def points_table(points: list[Point]) -> str:
    """Cost per image, one block per axis."""
    lines = []
    for axis in dict.fromkeys(p.axis for p in points):
        rows = [p for p in points if p.axis == axis]
        subjects, sizes = list(dict.fromkeys(p.what for p in rows)), sorted({p.size for p in rows})
        known = {(p.size, p.what): p for p in rows}
        held = "" if axis == "steps" else f" ({_held(rows[0], axis)})"
        for title, quantity in (("µs per image", "us_per_image"), ("memory, MiB", "peak_mb")):
            quantity = "resident_mb" if axis == "steps" and quantity == "peak_mb" else quantity
            lines.append(f"\n{axis}: {title}{held}\n{'':>10}" + "".join(f"{what:>19}" for what in subjects))
            for size in sizes:
                cells = (known.get((size, what)) for what in subjects)
                shown = ("" if cell is None else f"{getattr(cell, quantity):,.2f}" for cell in cells)
                lines.append(f"{size:>10,}" + "".join(f"{text:>19}" for text in shown))
    return "\n".join(lines)


def _held(point: Point, axis: str) -> str:
    return ", ".join(f"{name} {getattr(point, name)}" for name in ("batch", "classes", "width") if name != axis)


def growth_table(rows: list[Growth]) -> str:
    """Exponents, expected and measured."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    lines = [f"\n{'axis':9}{'what':19}{'quantity':14}{'expected':>9}{'all':>8}{'largest 3':>11}  why"]
    lines += [
        f"{row.axis:9}{row.what:19}{row.quantity:14}{row.expected:>9.0f}{shown(row.measured):>8}"
        f"{shown(row.measured_at_the_end):>11}  {row.reason}"
        for row in rows
    ]
    return "\n".join(lines)
