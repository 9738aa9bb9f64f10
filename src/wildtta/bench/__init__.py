"""The benchmark: cells, grids of them, their journal, and execution on one machine or a Ray cluster."""

from wildtta.bench.cell import MEASURES, MULTI_DOMAIN, Cell
from wildtta.bench.errors import BenchError, JournalError
from wildtta.bench.grid import load_grid, parse_grid
from wildtta.bench.journal import Journal, Row, merge, read
from wildtta.bench.launching import Outcome, cells_at_a_time, launch
from wildtta.bench.pace import measured_pace, recorded_milliseconds
from wildtta.bench.running import Conditions, run_cell
from wildtta.streams import SCENARIOS

__all__ = [
    "MEASURES",
    "MULTI_DOMAIN",
    "SCENARIOS",
    "BenchError",
    "Cell",
    "Conditions",
    "Journal",
    "JournalError",
    "Outcome",
    "Row",
    "cells_at_a_time",
    "launch",
    "load_grid",
    "measured_pace",
    "merge",
    "parse_grid",
    "read",
    "recorded_milliseconds",
    "run_cell",
]
