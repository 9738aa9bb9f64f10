"""A table of a report: numbers, what they are compared with, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from wildtta.report.outcome import Outcome

Better = Literal["high", "low", "none"]

PARTIAL = "(n of m): over n of the column's m corruptions, not to be compared with numbers over more"
COLLAPSED = (
    "† collapsed: one class took over a fifth of the answers in the stream's last fifth, at least twice its share "
    "and far more than without adaptation"
)


@dataclass(frozen=True, kw_only=True)
class Number:
    """One place of a table.

    Attributes:
        mean: over seeds; None where there is no number.
        std: over seeds; None where there is a single one.
        seeds: how many.
        printed: the paper's number, and ``printed_std``.
        difference: ours minus the paper's; only where data and network are the same.
        missing: why there is no number.
        keys: of the journal rows behind it.
        collapsed: at least one of those runs did (:mod:`wildtta.metrics.collapse`).
        best: best of its column within its group of rows.
        partial: ``3 of 15`` where it covers fewer corruptions than others of its column.
        words: what stands here instead of a number, and ``printed_words`` in the paper.
    """

    mean: float | None = None
    std: float | None = None
    seeds: int = 0
    printed: float | None = None
    printed_std: float | None = None
    difference: float | None = None
    missing: str = ""
    keys: tuple[str, ...] = ()
    collapsed: bool = False
    best: bool = False
    partial: str = ""
    words: str = ""
    printed_words: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its label, how to write its numbers, and which end is the good one."""

    label: str
    better: Better = "high"
    digits: int = 1


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """Labels (model, method ...) and a number per column."""

    labels: tuple[str, ...]
    numbers: tuple[Number, ...]

    @property
    def absent(self) -> str | None:
        """The one reason why the whole row is empty; None where it isn't."""
        # A failure's message begins with the cell, which differs from number to number; its reason need not.
        empty = (number for number in self.numbers if number.mean is None and not number.words)
        reasons = {number.missing.rpartition(" failed: ")[2] for number in empty}
        if len(reasons) != 1 or any(number.mean is not None for number in self.numbers):
            return None
        return reasons.pop()


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its title, the data it was measured on, how to make it again, and claims about it.

    ``comparable``: our numbers may be compared with the printed ones; ``printed_on`` names the data of those.
    """

    name: str
    title: str
    subtitle: str
    row_names: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    unit: str = ""
    note: str = ""
    command: str = ""
    comparable: bool = False
    printed_on: str = ""
    claims: Sequence[Outcome] = ()

    @property
    def shown(self) -> list[TableRow]:
        """Rows with at least one number, or with different reasons for having none."""
        return [row for row in self.rows if row.absent is None]

    @property
    def absent(self) -> dict[str, list[str]]:
        """Reason by reason, the rows that have no number at all."""
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            if row.absent is not None:
                reasons.setdefault(row.absent, []).append(" ".join(row.labels))
        return reasons

    @property
    def numbers(self) -> list[Number]:
        """All numbers, row by row."""
        return [number for row in self.rows for number in row.numbers]

    @property
    def has_printed(self) -> bool:
        """Whether the paper prints any of these numbers."""
        return any(number.printed is not None for number in self.numbers)

    @property
    def has_numbers(self) -> bool:
        """Whether anything was run."""
        return any(number.mean is not None for number in self.numbers)

    @property
    def notes(self) -> list[str]:
        """Sentences: what the marks behind its numbers mean, and its own note."""
        collapsed = COLLAPSED if any(number.collapsed for number in self.numbers) else ""
        partial = PARTIAL if any(number.partial for number in self.numbers) else ""
        return [sentence(text) for text in (collapsed, partial, self.note) if text]


def with_best(rows: Sequence[TableRow], columns: Sequence[Column], *, grouped: bool) -> tuple[TableRow, ...]:
    """Mark each column's best number; ``grouped``: within rows that share their first label (one model).

    Numbers over different corruptions don't compete: where some cover all of them, only those do.
    """

    def marked(row: TableRow, place: int, column: Column) -> Number:
        group = [other.numbers[place] for other in rows if not grouped or other.labels[0] == row.labels[0]]
        known = [number for number in group if number.mean is not None]
        if len({number.partial for number in known}) > 1:
            known = [number for number in known if not number.partial]
        # What reads the same is tied; alone, or where all are the same, none is best.
        values = {round(number.mean, column.digits) for number in known if number.mean is not None}
        own = row.numbers[place]
        if column.better == "none" or len(values) < 2 or own not in known or own.mean is None:
            return own
        return replace(own, best=round(own.mean, column.digits) == (max if column.better == "high" else min)(values))

    return tuple(
        replace(row, numbers=tuple(marked(row, place, column) for place, column in enumerate(columns))) for row in rows
    )


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def written(value: float, digits: int) -> str:
    """A number as people read it: thousands apart where there are many."""
    return f"{value:,.{digits}f}" if abs(value) >= 10_000 else f"{value:.{digits}f}"


def printed_text(number: Number, digits: int) -> str:
    """The paper's number, with its deviation where it prints one; or its words."""
    if number.printed is None:
        return number.printed_words
    text = written(number.printed, digits)
    return text if number.printed_std is None else f"{text} ± {number.printed_std:g}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign; what reads as zero has none."""
    text = f"{value:+.{digits}f}"
    return f"±{abs(value):.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def own_text(number: Number, digits: int) -> str:
    """Our number, ± its deviation where there are several seeds; or the words in its place."""
    if number.mean is None:
        return number.words
    text = written(number.mean, digits)
    return text if number.std is None else f"{text} ± {written(number.std, digits)}"
