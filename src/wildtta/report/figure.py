"""A figure of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wildtta.report.chart import Chart
from wildtta.report.outcome import Outcome
from wildtta.report.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Charts side by side, what they lack, the numbers behind them, and claims about them."""

    name: str
    title: str
    charts: Sequence[Chart]
    subtitle: str = ""
    note: str = ""
    problems: Sequence[str] = ()
    table: Table | None = None
    claims: Sequence[Outcome] = ()
