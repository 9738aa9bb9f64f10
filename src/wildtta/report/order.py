"""The order in which a report shows models, methods, streams and corruptions, whichever was finished first."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from wildtta.bench import Cell
from wildtta.methods.registry import config_classes
from wildtta.report.names import SCENARIOS, SHORT_CORRUPTIONS, method_name

_LAST = 10_000
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|[¼½¾])")
Natural = tuple[tuple[int, float, str], ...]


def natural(text: str) -> Natural:
    """Sorts texts with numbers by value: ``β = 20`` before ``β = 200``, ``½ lr`` before ``2 lr``."""
    parts = _NUMBER.split(text.casefold())
    return tuple(
        (1, 0.0, part) if place % 2 == 0 else (0, unicodedata.numeric(part) if part in "¼½¾" else float(part), "")
        for place, part in enumerate(parts)
        if part
    )


def method_order(method: str, title: str) -> tuple[bool, int, Natural]:
    """Methods with their defaults by their ``order``; then unknown ones; then variants by title."""
    variant, known = title != method_name(method), config_classes().get(method)
    return variant, 0 if variant else known.order if known is not None else _LAST, natural(title)


def stream_order(cell: Cell, stream: str) -> tuple[int, int, int, Natural]:
    """Scenarios in the order of :data:`SCENARIOS`, then strong corruptions, then small batches, then by name."""
    known = list(SCENARIOS)
    place = known.index(cell.scenario) if cell.scenario in known else len(known)
    return place, -cell.severity, cell.batch_size, natural(stream)


def corruption_order(names: Sequence[str]) -> tuple[tuple[int, Natural], ...]:
    """A run's corruptions: the 15 in their usual order, then others by name; clean images first of all."""
    usual = list(SHORT_CORRUPTIONS)
    return tuple((usual.index(name) if name in usual else len(usual), natural(name)) for name in names)


def in_order(corruptions: Iterable[str]) -> list[str]:
    """Each name once, in that order."""
    return sorted(set(corruptions), key=lambda name: (name != "clean", corruption_order([name])))
