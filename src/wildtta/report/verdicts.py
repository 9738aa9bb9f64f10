"""A page of verdicts: how many of the paper's claims hold on some data, which don't, and why.

The reasons are written by people, in a TOML file with a table for each claim that fails::

    ["table-1/C5"]
    because = "network"
    why = "The small ViT reads impulse noise better than the paper's, so that SAR has little left to lose."
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wildtta.report.document import Document
from wildtta.report.markdown import escape, pipe_table
from wildtta.report.outcome import MARKS, Outcome, Status, counted
from wildtta.report.table import sentence

Cause = Literal["scale", "network", "claim"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
_HEADINGS: dict[Status, str] = {
    "fails": "Claims that do not hold here",
    "too short to tell": "Too short to tell",
    "not run": "Not run",
    "holds": "Claims that hold here",
}
UNEXPLAINED = "not explained yet"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a claim fails: because of the ``scale``, of the ``network``, or of the ``claim`` itself; and a sentence."""

    because: Cause
    why: str


def reasons_of(tables: Mapping[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Reason]:
    """Reasons by claim; what is wrongly written, or about a claim that is not there, is an error."""
    known = {outcome.name for outcome in outcomes}
    found = {}
    for name, table in tables.items():
        if name not in known:
            raise ValueError(f"reasons: there is no claim {name!r}; claims are named like {min(known, default='–')!r}")
        if not isinstance(table, Mapping) or set(table) != {"because", "why"} or table["because"] not in CAUSES:
            raise ValueError(
                f"reasons: {name} needs because = one of {', '.join(CAUSES)} and why = a text; got {table!r}"
            )
        found[name] = Reason(because=table["because"], why=str(table["why"]))
    return found


def verdicts(document: Document, reasons: Mapping[str, Reason]) -> str:
    """The page as Markdown: a count, the claims by their status, those that fail with their reasons, how it was made."""
    outcomes = document.outcomes
    if not outcomes:
        raise ValueError(
            "no row of these journals belongs to one of the paper's experiments: run wildtta reproduce first"
        )
    counts = counted(outcomes)
    told = (
        f"Of {len(outcomes)} claims {counts['holds']} hold here and {counts['fails']} do not; for "
        f"{counts['too short to tell']} the streams are too short, {counts['not run']} have not been run."
    )
    parts = [f"# {document.title}", told, _causes(outcomes, reasons), document.intro]
    for status, heading in _HEADINGS.items():
        some = [outcome for outcome in outcomes if outcome.status == status]
        if some:
            parts += [f"## {heading}", _missing(some) if status == "not run" else _table(status, some, reasons)]
    parts += ["## How it was made", *(sentence(section.label) for section in document.sections), f"{document.summary}."]
    if document.command:
        parts.append(f"```bash\n{document.command}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def _causes(outcomes: Sequence[Outcome], reasons: Mapping[str, Reason]) -> str:
    """How many claims fail because of what; empty where no reason is known."""
    found = Counter(reasons[claim.name].because for claim in outcomes if claim.status == "fails" and claim.name in reasons)
    words = {"scale": "short streams", "network": "the networks", "claim": "the claim itself"}
    told = [f"{words[cause]} ({found[cause]})" for cause in CAUSES if found[cause]]
    return f"Why the others do not: {', '.join(told)}." if told else ""


def unexplained(document: Document, reasons: Mapping[str, Reason]) -> list[str]:
    """Claims that fail without a reason, and reasons of claims that don't fail."""
    failing = {outcome.name for outcome in document.outcomes if outcome.status == "fails"}
    lacking = [f"{name} fails and has no reason" for name in sorted(failing - set(reasons))]
    return lacking + [f"{name} has a reason and does not fail" for name in sorted(set(reasons) - failing)]


def _missing(outcomes: Sequence[Outcome]) -> str:
    """A line for each table and figure: which of its claims, and what the first of them lacks."""
    by_experiment: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_experiment.setdefault(outcome.name.partition("/")[0], []).append(outcome)
    rows = [
        [name, ", ".join(outcome.name.partition("/")[2] for outcome in some), escape(some[0].numbers)]
        for name, some in by_experiment.items()
    ]
    return pipe_table(["experiment", "claims", "because"], rows, labels=3)


def _table(status: Status, outcomes: Sequence[Outcome], reasons: Mapping[str, Reason]) -> str:
    rows = []
    for outcome in outcomes:
        reason = reasons.get(outcome.name)
        row = [outcome.name, escape(outcome.text), escape(outcome.numbers)]
        if status == "fails":
            row.append(f"{reason.because}: {escape(reason.why)}" if reason else UNEXPLAINED)
        rows.append(row)
    heading = [MARKS[status], "says", "numbers" if status in ("holds", "fails") else "because"]
    heading += ["why"] if status == "fails" else []
    return pipe_table(heading, rows, labels=len(heading))
