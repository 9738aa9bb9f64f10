"""Axes of a plot: nice ticks, and numbers turned into places on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers (1, 2, 2.5 or 5 times a power of ten) that cover the range."""
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"cannot draw an axis from {low} to {high}")
    if high <= low:
        padding = abs(low) * 0.1 or 1.0
        low, high = low - padding, high + padding
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Short: ``0.05``, ``2.5``, ``40k``."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Numbers from ``low`` to ``high`` on a stretch of the page; the stretch may run backwards (upwards)."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a number lies on the page."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def linear_axis(values: Iterable[float], start: float, end: float, *, zero: bool = False, count: int = 5) -> Axis:
    """An axis that holds all values between round ends; ``zero``: and zero."""
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
        high = high or 1.0 if low == 0 else high
    ticks = nice_ticks(low, high, count)
    return Axis(low=ticks[0], high=ticks[-1], start=start, end=end, ticks=ticks)


def tight_axis(values: Iterable[float], start: float, end: float, *, count: int = 5) -> Axis:
    """An axis that ends where the values end; ticks are the round numbers inside."""
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if high <= low:
        return linear_axis(known, start, end)
    inside = [tick for tick in nice_ticks(low, high, count) if low - 1e-9 <= tick <= high + 1e-9]
    return Axis(low=low, high=high, start=start, end=end, ticks=inside)


def log_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """A logarithmic axis with a tick at every value that occurs (batch sizes, ratios)."""
    known = sorted({value for value in values if math.isfinite(value) and value > 0})
    if not known:
        raise ValueError("a logarithmic axis needs positive numbers")
    low, high = known[0], known[-1]
    if high <= low:
        low, high = low / 2, high * 2
    return Axis(low=low, high=high, start=start, end=end, ticks=known, logarithmic=True)
