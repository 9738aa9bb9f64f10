"""Run what is missing of a list of cells and write every row down as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wildtta.bench.cell import Cell
from wildtta.bench.journal import Journal, Row
from wildtta.bench.pool import Notice, Pool


class Observer(Protocol):
    """Somebody who watches a campaign."""

    def begin(self, total: int, done: int, workers: int) -> None:
        """So many cells in all, so many of them finished before."""

    def running(self, cell: Cell, share: float) -> None:
        """A cell has come so far."""

    def finished(self, row: Row) -> None:
        """A row was written down."""

    def notice(self, text: str) -> None:
        """Something to tell."""

    def end(self) -> None:
        """No more."""


@dataclass
class Outcome:
    """What a campaign did."""

    rows: list[Row] = field(default_factory=list)
    """The rows of all its cells that have one, in the cells' order: those of this run and those found in the journal."""
    ran: int = 0
    found: int = 0
    failed: int = 0


def run_cells(cells: Sequence[Cell], pool: Pool, *, journal: Journal | None = None, observer: Observer) -> Outcome:
    """Run the cells that the journal does not hold as finished, in order; every row is safe before the next is awaited."""
    wanted = list({cell.key: cell for cell in cells}.values())
    finished = journal.finished() if journal is not None else set()
    missing = [cell for cell in wanted if cell.key not in finished]
    rows = {row["key"]: row for row in journal.rows} if journal is not None else {}
    outcome = Outcome(found=len(wanted) - len(missing))
    observer.begin(len(wanted), outcome.found, pool.workers)
    events = pool.run(missing, observer.running)
    try:
        for event in events if missing else ():
            if isinstance(event, Notice):
                observer.notice(event.text)
                continue
            if journal is not None:
                journal.append(event.row)
            rows[event.row["key"]] = event.row
            outcome.ran += 1
            outcome.failed += event.row["status"] != "ok"
            observer.finished(event.row)
    finally:
        events.close()
        observer.end()
    outcome.rows = [rows[cell.key] for cell in wanted if cell.key in rows]
    return outcome
