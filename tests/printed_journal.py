"""Journals that hold the paper's own printed numbers, for tests of claims and reports."""

from __future__ import annotations

import copy
from typing import Any

from wildtta.bench import Cell, Row
from wildtta.paper import Experiment, Setting, asked, setting
from wildtta.paper.experiment import AVERAGE
from wildtta.paper.view import PER_STREAM

#: The files without which TTT and DDA are not available; nothing reads them here.
FILES = {"ttt": {"branch": "branch.safetensors"}, "dda": {"diffusion": "diffusion"}}


#: SAR's three recoveries on ViT (appendix, components of SAR); SAR² has none.
RECOVERIES = {("sar", "label_shift", "snow"), ("sar", "label_shift", "frost"), ("sar", "single", "frost")}


def papers_setting(**changes: Any) -> Setting:
    """The paper's own setting, with every row available."""
    return setting("imagenet-c", overrides=FILES, **changes)


def put(row: Row, path: str, value: float) -> None:
    """Write a number where an experiment will look for it."""
    if path.endswith(PER_STREAM):
        row["metrics"]["samples"] = 50_000
        path = path.removesuffix(PER_STREAM)
    if path == "top class":
        row["metrics"]["histogram"] = [0] * int(value) + [9] + [0] * 10
        return
    if path == "stream seconds":
        row["cost"] |= {"ms_per_batch": value, "batches": 1000}
        return
    *folders, name = path.split("/")
    place: dict[str, Any] = row
    for folder in folders:
        place = place.setdefault(folder, {})
    place[name] = value


def empty_row(cell: Cell, experiment: Experiment | None = None, where: Setting | None = None) -> Row:
    """A finished row without any number; with an experiment, one that it asked for."""
    askers = [asked(experiment, where)] if experiment is not None and where is not None else []
    return {
        "key": cell.key, "cell": cell.to_json(), "status": "ok", "metrics": {}, "cost": {}, "diagnostics": {},
        "wall_s": 1.0, "device": "cpu", "versions": {"wildtta": "0"}, "asked_by": askers,
    }  # fmt: skip


def printed_journal(experiment: Experiment, where: Setting) -> dict[str, Row]:
    """Rows by key that hold exactly the printed numbers of an experiment.

    Three seeds lie around each mean, with the printed deviation of the row's average: the one that claims speak of.
    """
    place = (experiment.name, where.label, where.seeds, where.limit)
    if place not in _MADE:
        _MADE[place] = _printed_journal(experiment, where)
    return copy.deepcopy(_MADE[place])


_MADE: dict[tuple[object, ...], dict[str, Row]] = {}


def _printed_journal(experiment: Experiment, where: Setting) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    spots = experiment.plan(where)
    deviation = {spot.row: spot.printed_std or 0.0 for spot in spots if spot.column == AVERAGE}
    # The mean over corruptions comes first and is then overwritten by each corruption's own number.
    for spot in sorted(spots, key=lambda spot: spot.column != AVERAGE):
        if spot.printed is None or spot.parts:
            continue
        for cell in spot.cells:
            row = rows.setdefault(cell.key, empty_row(cell, experiment, where))
            row["cost"]["resets"] = int(
                (cell.method, cell.scenario, *cell.corruptions) in RECOVERIES and "vit" in cell.model
            )
            put(row, spot.metric, spot.printed + (cell.seed - 1) * deviation.get(spot.row, 0.0))
    return rows
