"""What came out of the demonstration: one table, for the terminal and for the page, and two sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wildtta.bench import Row
from wildtta.report.curves import grid_figures
from wildtta.report.document import Section
from wildtta.report.runs import collapsed
from wildtta.report.table import Column, Number, Table, TableRow, with_best

Place = tuple[str, str, str]
"""Network, stream and method, by their keys in a :class:`Story`."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """The rows of the demonstration by network, stream and method, with the titles of each; the first method is none."""

    rows: Mapping[Place, Row]
    networks: Mapping[str, str]
    streams: Mapping[str, str]
    methods: Mapping[str, str]

    @property
    def table(self) -> Table:
        """Accuracy by network and method (no adaptation first) over the streams."""
        columns = tuple(Column(label=title) for title in self.streams.values())
        rows = [
            TableRow(
                labels=(self.networks[network], self.methods[method]),
                numbers=tuple(_number(self.rows[network, stream, method]) for stream in self.streams),
            )
            for network, method in itertools.product(self.networks, self.methods)
        ]
        return Table(
            name="story",
            title="Online accuracy",
            subtitle="glyphs, small networks: a demonstration, not evidence",
            row_names=("network", "method"),
            columns=columns,
            rows=with_best(rows, columns, grouped=True),
            unit="accuracy, %",
        )

    @property
    def words(self) -> str:
        """What was run, and what came out: a sentence each."""
        ran = (
            f"{_listed(self.methods.values())} answer the same {len(self.streams)} streams of corrupted glyphs on "
            f"{len(self.networks)} small networks ({_listed(self.networks.values())})."
        )
        return f"{ran[0].upper()}{ran[1:]} {'; '.join(self._outcomes())}."

    def _outcomes(self) -> list[str]:
        """One clause per method that adapts: where it collapsed, and its best and worst change."""
        alone, *others = self.methods
        clauses = []
        for method in others:
            gains, lost = {}, 0
            for network, stream in itertools.product(self.networks, self.streams):
                row, base = self.rows[network, stream, method], self.rows[network, stream, alone]
                if row["status"] == base["status"] == "ok":
                    gains[network, stream] = row["metrics"]["accuracy"] - base["metrics"]["accuracy"]
                    lost += collapsed(row)
            if not gains:
                clauses.append(f"{self.methods[method]} failed")
                continue
            low, high = min(gains.values()), max(gains.values())
            ends = f", and collapsed onto one class in {lost} of {len(gains)} runs" if lost else ""
            clauses.append(f"{self.methods[method]} changed the accuracy by {low:+.1f} to {high:+.1f} points{ends}")
        return clauses

    @property
    def section(self) -> Section:
        """The table and the curves along the streams, for a report."""
        rows = list(self.rows.values())
        keys = frozenset(row["key"] for row in rows)
        figures = grid_figures(rows, most=len(self.networks) * len(self.streams))
        return Section(label="", tables=[self.table], figures=figures, undecided=[], keys=keys)


def _number(row: Row) -> Number:
    if row["status"] != "ok":
        return Number(missing=str(row.get("reason")))
    return Number(mean=row["metrics"]["accuracy"], seeds=1, keys=(row["key"],), collapsed=collapsed(row))


def _listed(names: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
