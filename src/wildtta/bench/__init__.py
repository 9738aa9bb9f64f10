"""The benchmark: cells, grids of them, their journal, and execution on one machine or a Ray cluster."""

from __future__ import annotations

import importlib
from typing import Any

from wildtta.bench.cell import MEASURES, MULTI_DOMAIN, SCENARIOS, Cell
from wildtta.bench.errors import BenchError, JournalError
from wildtta.bench.journal import Journal, Row, merge, read


def __getattr__(name: str) -> Any:
    """What runs cells, loaded when first asked for: reading a journal needs neither models nor data."""
    places = {"launch": "launching", "run_cell": "runner", "load_grid": "grid", "parse_grid": "grid"}
    if name in places:
        return getattr(importlib.import_module(f"wildtta.bench.{places[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "MEASURES",
    "MULTI_DOMAIN",
    "SCENARIOS",
    "BenchError",
    "Cell",
    "Journal",
    "JournalError",
    "Row",
    "launch",
    "load_grid",
    "merge",
    "parse_grid",
    "read",
    "run_cell",
]
