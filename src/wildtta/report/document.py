"""Everything that a report shows, gathered from journal rows before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wildtta.bench import Cell, Row
from wildtta.bench.unadapted import beside_unadapted
from wildtta.report import MOST_CURVES, TITLE
from wildtta.report.curves import grid_figures
from wildtta.report.figure import Figure
from wildtta.report.grid import grid_tables
from wildtta.report.outcome import Outcome
from wildtta.report.table import Table

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from wildtta.report import Choices


@dataclass(frozen=True, kw_only=True)
class Section:
    """Tables and figures of some rows, made by whoever knows more about them than their journal says.

    ``label`` names the data in words, ``undecided`` are claims about what these rows do not show, and ``keys``
    are those of the rows, which no other table shows again.
    """

    label: str
    tables: Sequence[Table]
    figures: Sequence[Figure]
    undecided: Sequence[Outcome]
    keys: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report: sections made by others, and everything else as a grid.

    ``intro`` is Markdown to put before the numbers, ``command`` the command line that makes the report again.
    """

    title: str
    rows: Sequence[Row]
    sections: Sequence[Section]
    grid_tables: Sequence[Table]
    grid_figures: Sequence[Figure]
    intro: str = ""
    command: str = ""

    @property
    def tables(self) -> list[Table]:
        """All tables, the sections' first."""
        return [*(table for section in self.sections for table in section.tables), *self.grid_tables]

    @property
    def figures(self) -> list[Figure]:
        """All figures, the sections' first."""
        return [*(figure for section in self.sections for figure in section.figures), *self.grid_figures]

    @property
    def all_tables(self) -> list[Table]:
        """The tables, and those behind the figures."""
        return [*self.tables, *(figure.table for figure in self.figures if figure.table is not None)]

    @property
    def undecided(self) -> list[Outcome]:
        """Claims about nothing that is shown."""
        return [outcome for section in self.sections for outcome in section.undecided]

    @property
    def outcomes(self) -> list[Outcome]:
        """Every claim on every section's data."""
        shown: list[Table | Figure] = [*self.tables, *self.figures]
        return [*(claim for item in shown for claim in item.claims), *self.undecided]

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


def gather(rows: Sequence[Row], **choices: Unpack[Choices]) -> Document:
    """A document from rows: the given sections, and a grid of all rows that belong to none of them."""
    figures = choices.get("figures", MOST_CURVES)
    if figures < 0:
        raise ValueError(f"figures must be 0 or more, got {figures}")
    rows = beside_unadapted(rows)
    found = []
    for place, section in enumerate(choices.get("sections", ()), 1):
        # Names are anchors and file names: from the second section on they carry its number.
        mark = f"-{place}" if place > 1 else ""
        tables = [replace(table, name=table.name + mark) for table in section.tables]
        drawn = [replace(figure, name=figure.name + mark) for figure in section.figures if figures]
        found.append(replace(section, tables=tables, figures=drawn))
    shown: frozenset[str] = frozenset().union(*(section.keys for section in found))
    rest = [row for row in rows if row["key"] not in shown]
    return Document(
        title=choices.get("title", TITLE),
        rows=rows,
        sections=found,
        grid_tables=grid_tables(rest),
        grid_figures=grid_figures(rest, most=figures),
        intro=choices.get("intro", "").strip(),
        command=choices.get("command", ""),
    )
