"""What a checkable claim of the paper is, and how it is decided from a journal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wildtta.bench import Row
from wildtta.paper.experiment import AVERAGE, Experiment, NotRun, View
from wildtta.paper.settings import Setting

Status = Literal["holds", "fails", "not run"]
MARKS: dict[Status, str] = {"holds": "✓", "fails": "✗", "not run": "not run"}

#: How far (points of accuracy) a number or difference may be from the printed one and still be called the same. Three
#: times the largest spread between the paper's own repetitions of one experiment (0.3) is rounded up to a point.
TOLERANCE = 1.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the claim holds, and the numbers that decide it."""

    holds: bool
    numbers: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence of the paper that a run can confirm or refute.

    Orderings ("SAR is above Tent") are checked on whatever data was run. Magnitudes ("by 7.8 points") count only where
    data, networks and stream lengths are the paper's (:attr:`Setting.same_as_paper`).
    """

    experiment: str
    number: int
    text: str
    check: Callable[[View], Verdict]

    @property
    def name(self) -> str:
        """``table-1/C1``."""
        return f"{self.experiment}/C{self.number}"


def claim(name: str, text: str, check: Callable[[View], Verdict]) -> Claim:
    """``claim("table-1/C1", sentence, check)``."""
    experiment, _, number = name.partition("/C")
    return Claim(experiment=experiment, number=int(number), text=text, check=check)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A claim decided: on which data, by which numbers; or why it was not."""

    claim: Claim
    status: Status
    numbers: str
    data: str

    @property
    def mark(self) -> str:
        """✓, ✗ or "not run"."""
        return MARKS[self.status]


def decide(claim: Claim, experiment: Experiment, setting: Setting, rows: Mapping[str, Row]) -> Outcome:
    """Evaluate one claim on journal rows (by key)."""
    view = View(experiment, setting, rows)
    try:
        verdict = claim.check(view)
    except NotRun as reason:
        return Outcome(claim=claim, status="not run", numbers=str(reason), data=setting.label)
    status: Status = "holds" if verdict.holds else "fails"
    return Outcome(claim=claim, status=status, numbers=verdict.numbers, data=setting.label)


def only_on_the_papers_data(view: View) -> None:
    """Stop here unless the printed magnitudes can be compared."""
    if not view.setting.same_as_paper:
        raise NotRun("a magnitude printed for ImageNet-C and the paper's networks; these are other data")


def close(view: View, value: float, printed: float, tolerance: float = TOLERANCE) -> bool:
    """Near the printed number; always so on other data, where that number says nothing."""
    return not view.setting.same_as_paper or abs(value - printed) <= tolerance


def corruption_columns(view: View) -> list[str]:
    """The columns that are corruptions."""
    return [column for column in view.columns if column != AVERAGE]


def compare(
    view: View, above: Sequence[str], below: Sequence[str], columns: Iterable[str], *, margin: float = 0.0
) -> tuple[list[str], list[str]]:
    """Columns where row ``above`` is higher than row ``below`` (by more than ``margin``), and those where it is not."""
    wins: list[str] = []
    losses: list[str] = []
    for column in columns:
        gap = view.mean(*above, column) - view.mean(*below, column)
        (wins if gap > margin else losses).append(column)
    return wins, losses


def best_of(view: View, row: Sequence[str], rivals: Iterable[Sequence[str]], column: str) -> tuple[bool, str]:
    """Whether a row is best (or tied) among the rivals that were run; names the best rival."""
    own = view.mean(*row, column)
    known = {tuple(rival): view.mean(*rival, column) for rival in rivals if view.has(*rival, column)}
    if not known:
        raise NotRun("no other method was run")
    rival = max(known, key=known.__getitem__)
    # Printed numbers have one decimal: equal there is tied.
    return own >= known[rival] - 1e-9, f"{own:.1f}, next {rival[-1]} {known[rival]:.1f}"


def as_printed(view: View, *rows: tuple[str, ...], columns: Sequence[str] | None = None) -> Verdict:
    """Every number of these rows within the tolerance of the printed one."""
    only_on_the_papers_data(view)
    off, texts = [], []
    for row in rows:
        for column in columns or view.columns:
            spot = view.spot(*row, column)
            if spot.printed is None:
                continue
            value = view.value_at(spot).mean
            texts.append(f"{row[-1]} {column} {value:.1f} (printed {spot.printed:.1f})")
            if abs(value - spot.printed) > TOLERANCE:
                off.append(column)
    return Verdict(holds=not off, numbers="; ".join(texts))


def all_of(parts: Sequence[tuple[bool, str]], before: str = "") -> Verdict:
    """A claim of several parts (holds, text): all must hold."""
    return Verdict(holds=all(holds for holds, _ in parts), numbers=before + "; ".join(text for _, text in parts))


def rising(values: Sequence[float], slack: float = 0.0) -> bool:
    """Whether each value is above the one before it (less ``slack``)."""
    return all(later > earlier - slack for earlier, later in itertools.pairwise(values))


def arrow(values: Iterable[float]) -> str:
    """``2.6 → 5.1 → 16.3``."""
    return " → ".join(f"{value:.1f}" for value in values)
