"""Building blocks of plans: a place of a table or figure, and tables over the 15 corruptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wildtta.bench import Cell
from wildtta.bench.cell import OF_ADAPT
from wildtta.methods.registry import get_method
from wildtta.paper.experiment import AVERAGE, Spot, later
from wildtta.paper.printed import printed
from wildtta.paper.recipes import RECIPES, Recipe
from wildtta.paper.settings import BN, CONVNEXT, CORRUPTIONS, GN, VIT, Setting

Stream = dict[str, Any]
"""What :func:`place` takes beyond the place itself."""

LABEL_SHIFT, SINGLE, MIXED, MILD = "label_shift", "single", "mixed", "mild"
CONTINUAL = "continual_label_shift"

#: Of figures 7 and B.
SHOT_NOISE: Stream = {"scenario": LABEL_SHIFT, "corruptions": ("shot_noise",)}

BOTH = (GN, VIT)
NETWORKS = (BN, GN, VIT)
LEVELS = {"level 5": 5, "level 3": 3}


def place(
    setting: Setting,
    network: str,
    recipe: Recipe | str,
    row: tuple[str, ...],
    column: str,
    *,
    table: str | None = None,
    printed_as: tuple[str, str] | None = None,
    corruptions: Sequence[str] | None = None,
    **stream: Any,
) -> Spot:
    """One recipe (or its name in :data:`RECIPES`) on one network and stream, at one place of a table or figure.

    Args:
        table: the printed table that has this place.
        printed_as: its model and method there; None: those of ``row``.
        corruptions: of the stream; None: the mean over all of the setting, each its own stream from a fresh
            model, or one stream with all of them where the scenario is such.
        stream: ``metric`` of the spot, and what :meth:`Setting.cells` takes (``scenario``, ``severity`` ...).
    """
    chosen = RECIPES[recipe] if isinstance(recipe, str) else recipe
    metric = {"metric": stream.pop("metric")} if "metric" in stream else {}
    names = setting.scale.corruptions if corruptions is None else tuple(corruptions)
    together = corruptions is not None or stream.get("scenario") in (MIXED, CONTINUAL)
    options = chosen.options_on(network)
    given = {**options, **setting.overrides_for(chosen.method, network)}
    missing = setting.missing(network, chosen.method) or _refusal(chosen.method, given)
    cells: tuple[Cell, ...] = ()
    for part in [] if missing else [names] if together else [(name,) for name in names]:
        cells += setting.cells(network, chosen.method, options=options, corruptions=part, **stream)
    spot = Spot(row=row, column=column, cells=cells, missing=missing, **metric)
    if corruptions is None and names != CORRUPTIONS:
        return spot  # a mean over fewer corruptions is another number than the printed one
    return _with_printed(spot, table, stream.get("severity"), printed_as)


def _with_printed(
    spot: Spot, table: str | None, severity: int | None = None, printed_as: tuple[str, str] | None = None
) -> Spot:
    if table is None:
        return spot
    model, method = printed_as or (spot.row[:2] if len(spot.row) > 1 else (None, spot.row[0]))
    number, std = printed(table).number(model, method, spot.column, severity=severity)
    return replace(spot, printed=number, printed_std=std)


def _refusal(method: str, options: Mapping[str, Any]) -> str:
    """Why a method cannot take these options; empty where it can."""
    try:
        get_method(method, **{name: value for name, value in options.items() if name not in OF_ADAPT})
    except (TypeError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""


def averaged(line: Sequence[Spot], *, table: str | None = None, column: str = AVERAGE) -> list[Spot]:
    """A line of spots and their mean, whose printed number counts only where theirs do."""
    mean = Spot(
        row=line[0].row,
        column=column,
        cells=tuple(cell for spot in line for cell in spot.cells),
        parts=tuple(line),
        metric=line[0].metric,
        missing=next((spot.missing for spot in line if spot.missing), ""),
    )
    comparable = all(spot.printed is not None for spot in line)
    return [*line, _with_printed(mean, table) if comparable else mean]


def by_corruption(
    setting: Setting, table: str, network: str, label: str, row: tuple[str, ...], **stream: Any
) -> list[Spot]:
    """One spot per corruption, each its own stream, and their mean."""
    names = setting.scale.corruptions
    spots = [place(setting, network, label, row, name, table=table, corruptions=(name,), **stream) for name in names]
    cells = tuple(cell for spot in spots for cell in spot.cells)
    mean = Spot(row=row, column=AVERAGE, cells=cells, missing=spots[0].missing)
    return [*spots, _with_printed(mean, table if names == CORRUPTIONS else None, stream.get("severity"))]


@later
def averaged_rows(
    setting: Setting, table: str, rows: Mapping[tuple[str, ...], str], columns: Mapping[str, tuple[str, Stream]]
) -> Iterator[Spot]:
    """A recipe for each row, a network and stream for each column, and the mean of each row."""
    for row, recipe in rows.items():
        line = [
            place(setting, n, recipe, row, column, table=table, **stream) for column, (n, stream) in columns.items()
        ]
        yield from averaged(line, table=table)


@later
def corruption_table(
    setting: Setting, /, table: str, rows: Sequence[tuple[str, Sequence[str]]], **stream: Any
) -> list[Spot]:
    """A table over the corruptions: ``rows`` are networks with their methods, in the paper's order."""
    return [
        spot
        for network, labels in rows
        for label in labels
        for spot in by_corruption(setting, table, network, label, (network, label), **stream)
    ]


def stand_in(setting: Setting, network: str) -> tuple[str, str]:
    """The network to use and its row label; a relative that takes the place of a missing one is named so."""
    relatives = {BN: GN, CONVNEXT: VIT}
    if network not in setting.networks and relatives.get(network) in setting.networks:
        return relatives[network], f"{relatives[network]} (in place of {network})"
    return network, network


@later
def one_stream(
    setting: Setting, /, networks: Sequence[str], recipes: Mapping[str, Recipe], **stream: Any
) -> list[Spot]:
    """Each recipe on each network, on streams of one kind: a single column."""
    return [
        place(setting, network, recipe, (network, label), "accuracy", **stream)
        for network in networks
        for label, recipe in recipes.items()
    ]
