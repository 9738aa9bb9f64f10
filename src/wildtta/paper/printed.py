"""The numbers that the paper prints, as data.

``printed.json`` holds the 27 tables (1-9 of the main text, A-R of the appendix): accuracy in percent unless the
table's ``metric`` says otherwise, ``null`` where the paper leaves a place empty.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

Printed = float | int | str | bool | None


@dataclass(frozen=True, kw_only=True)
class PrintedRow:
    """One printed line: whose model, which method, and the values in column order."""

    model: str | None
    method: str
    values: Sequence[Printed]
    std: Sequence[float | None] | None = None
    severity: int | None = None


@dataclass(frozen=True, kw_only=True)
class PrintedTable:
    """One printed table, addressed by (model, method, column)."""

    data: str
    severity: int | Sequence[int] | None
    scenario: str
    metric: str
    columns: Sequence[str]
    rows: Sequence[PrintedRow]

    def number(
        self, model: str | None, method: str, column: str, *, severity: int | None = None
    ) -> tuple[float | None, float | None]:
        """The printed value and its printed standard deviation (None where nothing is printed)."""
        place = self.columns.index(column) if column in self.columns else None
        for row in self.rows:
            same_severity = severity is None or row.severity is None or row.severity == severity
            if place is not None and row.model == model and row.method == method and same_severity:
                value, std = row.values[place], row.std[place] if row.std else None
                return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None, std
        return None, None

    def words(self, model: str | None, method: str, column: str) -> str:
        """What is printed at a place that holds no number."""
        place = self.columns.index(column)
        found = (row.values[place] for row in self.rows if (row.model, row.method) == (model, method))
        return str(next(found, ""))


@lru_cache(maxsize=1)
def printed_tables() -> dict[str, PrintedTable]:
    """All 27 tables by their name in the paper: "1" .. "9", "A" .. "R"."""
    text = resources.files(__package__).joinpath("printed.json").read_text(encoding="utf-8")
    tables = json.loads(text).items()
    return {name: PrintedTable(**{**raw, "rows": [PrintedRow(**row) for row in raw["rows"]]}) for name, raw in tables}


def printed(name: str) -> PrintedTable:
    """One printed table: ``printed("1").number("ResNet50-GN", "SAR2", "fog")``."""
    tables = printed_tables()
    if name not in tables:
        raise KeyError(f"the paper has no table {name!r}; it has {', '.join(tables)}")
    return tables[name]
