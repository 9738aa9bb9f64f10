"""Everything that a report shows, gathered from journal rows before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wildtta.bench import Cell, Row
from wildtta.paper import Outcome
from wildtta.report.chart import Figure
from wildtta.report.curves import MOST_CURVES, grid_figures
from wildtta.report.from_grid import grid_tables
from wildtta.report.from_paper import PaperPart, paper_parts
from wildtta.report.table import Table


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report: what the rows show of the paper (one part per setting), and everything else as a grid.

    ``intro`` is a person's Markdown before the numbers, ``command`` the command line that makes the report again.
    """

    title: str
    rows: Sequence[Row]
    parts: Sequence[PaperPart]
    grid_tables: Sequence[Table]
    grid_figures: Sequence[Figure]
    intro: str = ""
    command: str = ""

    @property
    def tables(self) -> list[Table]:
        """All tables, the paper's first."""
        return [*(table for part in self.parts for table in part.tables), *self.grid_tables]

    @property
    def figures(self) -> list[Figure]:
        """All figures, the paper's first."""
        return [*(figure for part in self.parts for figure in part.figures), *self.grid_figures]

    @property
    def outcomes(self) -> list[Outcome]:
        """Every claim on every setting's data."""
        return [outcome for part in self.parts for outcome in part.outcomes]

    @property
    def failed(self) -> list[tuple[str, str]]:
        """Cells without numbers: which, and why."""
        return [
            (Cell.from_json(row["cell"]).describe(), str(row.get("reason")))
            for row in self.rows
            if row["status"] != "ok"
        ]

    @property
    def summary(self) -> str:
        """One line: how much was run, on what."""
        good = [row for row in self.rows if row["status"] == "ok"]
        devices = sorted({str(row["device"]) for row in good if row.get("device")})
        failed = f", {len(self.failed)} failed" if self.failed else ""
        on = f" on {', '.join(devices)}" if devices else ""
        minutes = sum(float(row.get("wall_s") or 0) for row in good) / 60
        spent = f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.1f} minutes"
        return f"{len(good)} runs{failed}{on}, {spent} of computing"


def gather(
    rows: Sequence[Row],
    *,
    title: str,
    parts: Sequence[PaperPart] | None = None,
    intro: str = "",
    figures: int = MOST_CURVES,
    command: str = "",
) -> Document:
    """A document from rows; ``parts`` where the caller knows the paper's settings already.

    At most ``figures`` curves along streams are drawn; with 0 there is no figure at all, the paper's included.
    """
    if figures < 0:
        raise ValueError(f"figures must be 0 or more, got {figures}")
    found = [_apart(place, part) for place, part in enumerate(paper_parts(rows) if parts is None else parts)]
    explained: frozenset[str] = frozenset().union(*(part.keys for part in found))
    if not figures:
        found = [replace(part, figures=[]) for part in found]
    rest = [row for row in rows if row["key"] not in explained]
    return Document(
        title=title,
        rows=rows,
        parts=found,
        grid_tables=grid_tables(rest),
        grid_figures=grid_figures(rest, most=figures),
        intro=intro.strip(),
        command=command,
    )


def _apart(place: int, part: PaperPart) -> PaperPart:
    """Names are anchors and file names: from the second setting on they carry its number."""
    if place == 0:
        return part
    return replace(
        part,
        tables=[replace(table, name=f"{table.name}-{place + 1}") for table in part.tables],
        figures=[replace(figure, name=f"{figure.name}-{place + 1}") for figure in part.figures],
    )
