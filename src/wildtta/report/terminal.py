"""Tables and claims on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wildtta.report.outcome import Outcome, counted
from wildtta.report.table import Table, own_text, printed_text


def rich_table(table: Table) -> Any:
    """A table for rich's console; best in bold, the paper's number behind ours where they can be compared."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, caption=table.subtitle, title_justify="left", show_edge=False, pad_edge=False)
    for name in table.row_names:
        shown.add_column(name, no_wrap=True)
    for column in table.columns:
        shown.add_column(column.label, justify="right", no_wrap=True)
    before: str | None = None
    for row in table.rows:
        if len(row.labels) > 1 and before not in (None, row.labels[0]):
            shown.add_section()
        before = row.labels[0]
        texts = []
        for number, column in zip(row.numbers, table.columns, strict=True):
            text = (own_text(number, column.digits) or "–") + " †" * number.collapsed
            if table.comparable and printed_text(number, column.digits):
                text += f" ({printed_text(number, column.digits)})"
            texts.append(Text(text, style="bold" if number.best else ""))
        shown.add_row(*row.labels, *texts)
    return shown


def claim_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A line per decided claim, and how many there are of each kind."""
    lines = [f"{o.mark} {o.name}: {o.text} — {o.numbers}" for o in outcomes if o.decided]
    hold, fail, short, missing = counted(outcomes).values()
    return [*lines, f"claims: {hold} hold, {fail} fail, {short} too short to tell, {missing} not run"]
