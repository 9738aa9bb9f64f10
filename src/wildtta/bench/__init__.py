"""The benchmark: cells, grids of them, their journal, and execution on one machine or a Ray cluster."""

from wildtta.bench.cell import MEASURES, MULTI_DOMAIN, SCENARIOS, Cell
from wildtta.bench.errors import BenchError, JournalError
from wildtta.bench.journal import Journal, Row, merge, read

__all__ = [
    "MEASURES",
    "MULTI_DOMAIN",
    "SCENARIOS",
    "BenchError",
    "Cell",
    "Journal",
    "JournalError",
    "Row",
    "merge",
    "read",
]
