"""Building blocks of the paper's tables: its method names, and rows over the 15 corruptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from wildtta.bench import Cell
from wildtta.methods.sar2.method import SAR2, SAR2Paper
from wildtta.paper.experiment import ACCURACY, AVERAGE, Spot
from wildtta.paper.printed import PrintedTable
from wildtta.paper.settings import BN, CONVNEXT, CORRUPTIONS, GN, VIT, Setting

LABEL_SHIFT, SINGLE, MIXED, MILD = "label_shift", "single", "mixed", "mild"
CONTINUAL = "continual_label_shift"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A row of the paper's tables as a method of the registry with options."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


_OURS = SAR2().options()
#: SAR² as the paper has it: what ``sar2-paper`` sets otherwise than ``sar2``.
AS_PUBLISHED: dict[str, Any] = {name: value for name, value in SAR2Paper().options().items() if value != _OURS[name]}

#: The paper's own names of its rows. Ablations are settings of one method: SAR without its second and third component
#: is reliable entropy alone; SAR² without the inequity term is "SAR+R".
RECIPES: dict[str, Recipe] = {
    "NoAdapt": Recipe(method="none"),
    "MEMO": Recipe(method="memo"),
    "DDA": Recipe(method="dda"),
    "TTT": Recipe(method="ttt"),
    "Tent": Recipe(method="tent"),
    "EATA": Recipe(method="eata"),
    "ROID": Recipe(method="roid"),
    "DeYO": Recipe(method="deyo"),
    "ReCAP": Recipe(method="recap"),
    "SAR": Recipe(method="sar"),
    "SAR2": Recipe(method="sar2", options=AS_PUBLISHED),
    "SAR2-efficient": Recipe(method="sar2-efficient", options=AS_PUBLISHED),
    "Tent (entropy only)": Recipe(method="tent"),
    "reliable": Recipe(method="sar", options={"sharpness": None, "recovery": None}),
    "sa": Recipe(method="sar", options={"reliable": None, "recovery": None}),
    "reliable+sa": Recipe(method="sar", options={"recovery": None}),
    "reliable+sa+recover": Recipe(method="sar"),
    "RE": Recipe(method="sar", options={"sharpness": None, "recovery": None}),
    "RE+SA": Recipe(method="sar", options={"recovery": None}),
    "SAR (RE+SA+RC)": Recipe(method="sar"),
    "SAR+R": Recipe(method="sar2", options={**AS_PUBLISHED, "inequity": None}),
    "SAR+I": Recipe(method="sar2", options={**AS_PUBLISHED, "redundancy": None}),
    "SAR2 (R+I)": Recipe(method="sar2", options=AS_PUBLISHED),
    "Tent+InfoMax": Recipe(method="infomax"),
    "Tent+I": Recipe(method="tent", options={"inequity": 50.0, "bank": False}),
    "Tent+R": Recipe(method="tent", options={"redundancy": 1e3, "bank": False}),
    "R only": Recipe(method="tent", options={"redundancy": 1e3, "bank": False, "entropy": 0.0}),
    "Tent+recover": Recipe(method="tent", options={"recovery": 0.2}),
    "EATA+recover": Recipe(method="eata", options={"recovery": 0.2}),
}


def cells_for(
    setting: Setting, network: str, recipe: Recipe, *, options: Mapping[str, Any] | None = None, **stream: Any
) -> tuple[tuple[Cell, ...], str]:
    """The recipe's cells on one stream, or no cells and the reason."""
    chosen = {**recipe.options, **(options or {})}
    told = json.dumps({**chosen, **setting.overrides_for(recipe.method, network)})
    missing = setting.missing(network, recipe.method) or option_problem(recipe.method, told)
    if missing:
        return (), missing
    return setting.cells(network, recipe.method, options=chosen, **stream), ""


@lru_cache(maxsize=1024)
def option_problem(method: str, options: str) -> str:
    """Why a registered method cannot take these options (JSON); empty where it can."""
    import wildtta
    from wildtta.methods.registry import get_method

    if method not in wildtta.methods():
        return ""
    try:
        get_method(method, **json.loads(options))
    except (TypeError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""


def cells_over(
    setting: Setting, network: str, recipe: Recipe, corruptions: Iterable[str], **stream: Any
) -> tuple[tuple[Cell, ...], str]:
    """The same on one stream per corruption (the model starts fresh on each)."""
    parts = [cells_for(setting, network, recipe, corruptions=(name,), **stream) for name in corruptions]
    return tuple(cell for cells, _ in parts for cell in cells), parts[0][1] if parts else ""


def corruption_row(
    setting: Setting,
    table: PrintedTable,
    network: str,
    label: str,
    *,
    scenario: str,
    severity: int,
    row: tuple[str, ...] | None = None,
    recipe: Recipe | None = None,
) -> list[Spot]:
    """One spot per corruption, each its own stream, and their mean."""
    recipe = recipe or RECIPES[label]
    row = row or (network, label)
    spots = []
    for name in setting.corruptions():
        cells, missing = cells_over(setting, network, recipe, (name,), scenario=scenario, severity=severity)
        value, std = table.number(network, label, name, severity=severity)
        spots.append(Spot(row=row, column=name, cells=cells, missing=missing, printed=value, printed_std=std))
    value, std = table.number(network, label, AVERAGE, severity=severity)
    if setting.corruptions() != CORRUPTIONS:
        value, std = None, None  # a mean over fewer corruptions is another number
    everything = tuple(cell for spot in spots for cell in spot.cells)
    missing = spots[0].missing
    return [*spots, Spot(row=row, column=AVERAGE, cells=everything, missing=missing, printed=value, printed_std=std)]


def corruption_table(
    setting: Setting,
    table: PrintedTable,
    rows: Sequence[tuple[str, Sequence[str]]],
    *,
    scenario: str,
    severity: int,
) -> list[Spot]:
    """``rows``: networks with their methods, in the paper's order."""
    return [
        spot
        for network, labels in rows
        for label in labels
        for spot in corruption_row(setting, table, network, label, scenario=scenario, severity=severity)
    ]


def mean_spot(
    setting: Setting,
    network: str,
    recipe: Recipe,
    *,
    row: tuple[str, ...],
    column: str,
    scenario: str,
    severity: int = 5,
    metric: str = ACCURACY,
    printed: tuple[float | None, float | None] = (None, None),
    **stream: Any,
) -> Spot:
    """The mean over the corruptions (or the one mixed stream) as a single spot."""
    if scenario in (MIXED, CONTINUAL):
        cells, missing = cells_for(
            setting,
            network,
            recipe,
            corruptions=setting.corruptions(),
            scenario=scenario,
            severity=severity,
            **stream,
        )
    else:
        cells, missing = cells_over(
            setting, network, recipe, setting.corruptions(), scenario=scenario, severity=severity, **stream
        )
    if setting.corruptions() != CORRUPTIONS:
        printed = (None, None)
    value, std = printed
    return Spot(row=row, column=column, cells=cells, missing=missing, metric=metric, printed=value, printed_std=std)


def stand_in(setting: Setting, network: str) -> tuple[str, str]:
    """The network to use and its row label: where a setting lacks one, a relative plays its part and says so."""
    relatives = {BN: GN, CONVNEXT: VIT}
    if network not in setting.networks and relatives.get(network) in setting.networks:
        return relatives[network], f"{relatives[network]} (in place of {network})"
    return network, network
