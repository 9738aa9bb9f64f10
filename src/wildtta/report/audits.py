"""A guard's audit as a section of a report: what it saw along the stream, and what it did."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wildtta.guard import Guard
from wildtta.guard.audit import whole_lines
from wildtta.report.chart import Line, LineChart
from wildtta.report.document import Section
from wildtta.report.figure import Figure
from wildtta.report.table import Column, Number, Table, TableRow

_NOTE = (
    "slow: a quarter of each step; pause: predict only; snapshot: back to earlier weights; source: back to the first ones, "
    "which answer; trial: the source still answers while the network learns aside; learn: as without a guard"
)


def audit_section(path: str | os.PathLike[str]) -> Section:
    """Evidence and shares along the stream, and a table of the decisions, of one audit file."""
    lines, broken = whole_lines(path)
    looks = [line for line in lines if line["kind"] == "look"]
    decisions = [line for line in lines if line["kind"] == "decision"]
    left_out = f"; {broken} broken {'line' if broken == 1 else 'lines'} left out" if broken else ""
    if not looks:
        raise ValueError(f"{path}: no look yet{left_out}; the guard writes one after every few hundred images")
    name = Path(path).stem
    figure = Figure(
        name="guard",
        title=f"What the guard saw: {name}",
        charts=[_evidence(looks, _slows_down(lines)), _shares(looks)],
        subtitle=f"{len(looks)} looks over {looks[-1]['images']:,} images{left_out}",
    )
    return Section(label=name, tables=[_decided(name, decisions)], figures=[figure], undecided=(), keys=frozenset())


def _slows_down(lines: Sequence[dict[str, Any]]) -> float:
    """The evidence of the first rung, 1/α of the guard that wrote last (an audit may hold several starts)."""
    starts = [line["guard"]["false_alarms"] for line in lines if line["kind"] == "start"]
    return 1 / (starts[-1] if starts else Guard().false_alarms)


def _evidence(looks: Sequence[dict[str, Any]], slows_down: float) -> LineChart:
    images = [look["images"] for look in looks]
    evidence = [math.log10(max(look["evidence"], 1e-3)) for look in looks]
    slow = Line(label="slows down", x=[images[0], images[-1]], y=[math.log10(slows_down)] * 2, dashed=True)
    return LineChart(
        title="Evidence that the adapted network is worse",
        x_label="images so far",
        y_label="log10 of the evidence",
        lines=[Line(label="evidence", x=images, y=evidence), slow],
    )


def _shares(looks: Sequence[dict[str, Any]]) -> LineChart:
    images = [look["images"] for look in looks]
    shown = {
        "most frequent answer, adapted": "top_share",
        "most frequent answer, source": "source_top_share",
        "disagreement with the source": "disagreement",
    }
    lines = [
        Line(label=label, x=images, y=[100 * look[key] for look in looks], dashed=key == "source_top_share")
        for label, key in shown.items()
    ]
    return LineChart(
        title="Answers of both networks", x_label="images so far", y_label="share of a look, %", lines=lines
    )


def _decided(name: str, decisions: Sequence[dict[str, Any]]) -> Table:
    rows = tuple(
        TableRow(
            labels=(decision["action"], decision["because"]),
            numbers=(Number(mean=decision["images"], seeds=1), Number(mean=decision["evidence"], seeds=1)),
        )
        for decision in decisions
    )
    columns = (Column(label="after images", better="none", digits=0), Column(label="evidence", better="none", digits=0))
    return Table(
        name="guard-decisions",
        title="What the guard did",
        subtitle=name if decisions else f"{name}: nothing",
        row_names=("action", "because of"),
        columns=columns,
        rows=rows,
        note=_NOTE,
    )
