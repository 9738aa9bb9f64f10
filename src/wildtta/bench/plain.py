"""Plain values: what JSON can hold, and the numbers that it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from wildtta.bench.errors import BenchError


def each_value(values: Any, change: Callable[[Any], Any]) -> Any:
    """``values`` with tables as dicts, sequences as lists, and ``change`` applied to everything in them."""
    if isinstance(values, Mapping):
        return {str(name): each_value(item, change) for name, item in values.items()}
    if isinstance(values, (list, tuple)):
        return [each_value(item, change) for item in values]
    return change(values)


def plain(values: Any, where: str) -> Any:
    """JSON values only; infinity becomes the text ``inf``, anything else is an error that says where."""

    def checked(value: Any) -> Any:
        if isinstance(value, float) and math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if isinstance(value, float) and math.isnan(value):
            raise BenchError(f"{where} is not a number")
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise BenchError(f"{where} must be made of numbers, texts, lists and tables, got {type(value).__name__}")

    if isinstance(values, Mapping):
        return {str(name): plain(item, f"{where}.{name}") for name, item in values.items()}
    return each_value(values, checked)


def infinite(value: Any) -> Any:
    """The number for the text ``inf``."""
    return float(value) if value in ("inf", "-inf") else value


def finite(value: Any) -> Any:
    """None for numbers that JSON doesn't have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def integral(value: Any) -> Any:
    """``1`` for ``1.0``: the same number, so the same key."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if whole else value
