"""What came out of the demonstration: one table, for the terminal and for the page, and two sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from wildtta.bench import Row
from wildtta.checkup.gain import Gain, paired_gain
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
        """One clause per method that adapts: its worst and best change, how often beyond chance, where it collapsed."""
        _, *others = self.methods
        clauses = []
        for method in others:
            gains = {place: self._gain(*place, method) for place in itertools.product(self.networks, self.streams)}
            known = {place: gain for place, gain in gains.items() if gain is not None}
            if not known:
                clauses.append(f"{self.methods[method]} failed")
                continue
            points = [gain.points for gain in known.values()]
            up, down = sum(gain.low > 0 for gain in known.values()), sum(gain.high < 0 for gain in known.values())
            lost = sum(collapsed(self.rows[network, stream, method]) for network, stream in known)
            ends = f", and collapsed onto one class in {lost}" if lost else ""
            clauses.append(
                f"{self.methods[method]} changed the accuracy by {min(points):+.1f} to {max(points):+.1f} points: "
                f"beyond chance upwards in {up} and downwards in {down} of {len(known)} runs{ends}"
            )
        return clauses

    def _gain(self, network: str, stream: str, method: str) -> Gain | None:
        """What the method gained over no adaptation on the same images, with its 95 % interval; None where one failed."""
        rows = [self.rows[network, stream, which] for which in (next(iter(self.methods)), method)]
        if any(row["status"] != "ok" for row in rows):
            return None
        before, after = (row["diagnostics"]["predictions"] for row in rows)
        if before["label"] != after["label"]:
            raise ValueError(f"{method} and no adaptation had other images on {network}, {stream}")
        right = [np.equal(seen["predicted"], seen["label"]) for seen in (before, after)]
        return paired_gain(*right)

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
