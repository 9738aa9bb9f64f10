"""A report's numbers as CSV: one line per number, nothing rounded."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from wildtta.report.document import Document
from wildtta.report.inert import without_formula, without_tags
from wildtta.report.outcome import Outcome

NUMBER_FIELDS = (
    "table", "title", "data", "row", "column", "mean", "std", "seeds", "partial", "paper", "paper_std", "difference",
    "collapsed", "words", "missing", "cells",
)  # fmt: skip
CLAIM_FIELDS = ("claim", "status", "says", "numbers", "data")


def numbers_csv(document: Document) -> str:
    """Every number of every table, and of the tables behind the figures."""
    lines: list[Sequence[object]] = []
    for table in document.all_tables:
        for row in table.rows:
            for column, number in zip(table.columns, row.numbers, strict=True):
                lines.append(
                    (
                        table.name, table.title, table.subtitle, " / ".join(row.labels), column.label, number.mean,
                        number.std, number.seeds or None, number.partial, number.printed, number.printed_std,
                        number.difference, int(number.collapsed), number.words, number.missing, " ".join(number.keys),
                    )
                )  # fmt: skip
    return _csv(NUMBER_FIELDS, lines)


def claims_csv(outcomes: Sequence[Outcome]) -> str:
    """Every claim."""
    return _csv(CLAIM_FIELDS, [(o.name, o.status, o.text, o.numbers, o.data) for o in outcomes])


def _csv(fields: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([_cell(value) for value in line] for line in lines)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return without_formula(without_tags(value))
    return "" if value is None else value
