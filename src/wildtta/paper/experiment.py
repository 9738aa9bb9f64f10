"""What an experiment of the paper is: what it runs, how it is drawn, and what the paper claims about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar

from wildtta.bench import Cell
from wildtta.bench.source_data import wanted_source_fields
from wildtta.paper.settings import Setting
from wildtta.report.chart import Chart

if TYPE_CHECKING:
    from wildtta.paper.view import View

ACCURACY = "metrics/accuracy"
ECE = "metrics/ece"
AVERAGE = "Avg"


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One place of a table or figure.

    Attributes:
        row: labels of its row, one per entry of the experiment's ``row_names``.
        column: label of its column.
        cells: the runs behind it: one per seed, and per corruption where it is a mean over corruptions.
        parts: the spots whose mean it is, where it is one (``cells`` are then all of theirs).
        metric: path into a journal row, such as ``metrics/accuracy``, or what
            :func:`wildtta.paper.view.value_of` makes of a row.
        printed: the paper's number at this place, and ``printed_std`` its standard deviation.
        words: what stands here instead of a number, and ``printed_words`` in the paper.
        missing: why it cannot be run in this setting; empty where it can.
    """

    row: tuple[str, ...]
    column: str
    cells: tuple[Cell, ...] = ()
    parts: tuple[Spot, ...] = ()
    metric: str = ACCURACY
    printed: float | None = None
    printed_std: float | None = None
    words: str = ""
    printed_words: str = ""
    missing: str = ""


Plan = Callable[[Setting], Iterable[Spot]]
Draw = Callable[["View"], Iterable[Chart]]
Part = tuple[bool, str]
"""A part of a verdict: whether it holds, and the numbers that decide it."""
Check = Callable[["View"], Iterable[Part]]

First = TypeVar("First")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def later(function: Callable[Concatenate[First, Rest], Result]) -> Callable[Rest, Callable[[First], Result]]:
    """Decorator: called without its first argument (a setting or a view), a function waits for it."""

    def waiting(*arguments: Rest.args, **options: Rest.kwargs) -> Callable[[First], Result]:
        return lambda first: function(first, *arguments, **options)

    return waiting


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that a run can confirm or refute; it holds where all parts of its check do.

    Orderings ("SAR is above Tent") are checked on whatever data was run, magnitudes ("by 7.8 points") only where
    data, networks and stream lengths are the paper's (:attr:`Setting.same_as_paper`).
    """

    text: str
    check: Check
    experiment: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        """``table-1/C1``."""
        return f"{self.experiment}/C{self.number}"


class Experiment:
    """A table or figure of the paper: what to run, how to draw it (figures), and what is claimed about it."""

    def __init__(
        self,
        name: str,
        title: str,
        plan: Plan,
        *claims: Claim,
        draw: Draw | None = None,
        row_names: tuple[str, ...] = ("model", "method"),
        unit: str = "accuracy, %",
        digits: int = 1,
        note: str = "",
    ) -> None:
        self.name, self.title, self.note = name, title, note
        self.plan: Callable[[Setting], list[Spot]] = lambda setting: list(plan(setting))
        self.draw: Callable[[View], list[Chart]] | None = (lambda view: list(draw(view))) if draw else None
        self.claims = [replace(claim, experiment=name, number=number) for number, claim in enumerate(claims, 1)]
        self.row_names, self.unit, self.digits = row_names, unit, digits

    @property
    def kind(self) -> Literal["table", "figure"]:
        """``table`` or ``figure``."""
        return "figure" if self.name.startswith("figure") else "table"

    @property
    def heading(self) -> str:
        """As the paper names it: ``Table 1``, ``Figure E``."""
        kind, _, number = self.name.partition("-")
        return f"{kind.title()} {number.upper()}"

    def cells(self, setting: Setting) -> list[Cell]:
        """Every cell of the experiment once, in order of first use."""
        return unique(cell for spot in self.plan(setting) for cell in spot.cells)


def needs(experiment: Experiment, setting: Setting) -> str:
    """What must be at hand to run an experiment, and which of its rows cannot be run without more; from its plan."""
    spots = experiment.plan(setting)
    cells = unique(cell for spot in spots for cell in spot.cells)
    parts = [_data_told(name, [cell for cell in cells if cell.data == name]) for name in _DATA]
    if setting.where != "glyphs":
        parts.append(", ".join(dict.fromkeys(cell.model_title for cell in cells)))
        sourced = sorted({cell.method for cell in cells if wanted_source_fields(cell)})
        parts.append(f"--source for {', '.join(sourced)}" if sourced else "")
    parts.append("scikit-learn" if any("tsne" in cell.measure for cell in cells) else "")
    parts += dict.fromkeys(spot.missing for spot in spots)
    return "; ".join(filter(None, parts)) or "nothing (embedded)"


_DATA = {
    "imagenet-c": "ImageNet-C",
    "imagenet-r": "ImageNet-R",
    "imagenet": "ImageNet's clean images",
    "folder": "images",
}


def _data_told(name: str, cells: Sequence[Cell]) -> str:
    """``ImageNet-C severities 5, 3 (15 corruptions)``; empty where no cell reads it."""
    if not cells:
        return ""
    corruptions = list(dict.fromkeys(corruption for cell in cells for corruption in cell.corruptions))
    severities = sorted({cell.severity for cell in cells if cell.corruptions}, reverse=True)
    if not corruptions:
        return _DATA[name]
    which = ", ".join(corruptions) if len(corruptions) < 4 else f"{len(corruptions)} corruptions"
    levels = f"severit{'y' if len(severities) == 1 else 'ies'} {', '.join(map(str, severities))}"
    return f"{_DATA[name]} {levels} ({which})"


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once (tables share many), in order of first use."""
    return list({cell.key: cell for cell in cells}.values())
