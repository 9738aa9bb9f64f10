"""The streams of a study's journals in which a method ended in one class: where a guard has something to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from guarded_streams import Setting
from wildtta.bench.journal import Row, read
from wildtta.bench.unadapted import beside_unadapted
from wildtta.metrics.collapse import row_collapsed


def collapses(journals: Sequence[Path], methods: Iterable[str]) -> list[tuple[Setting, Row]]:
    """Each stream as a setting of the testbed, with the study's row; long streams first, so that none runs alone in the end.

    Args:
        journals: of ``wildtta bench``, with the rows of no adaptation.
        methods: by name, with their own options (the precision apart).
    """
    chosen = []
    for row in beside_unadapted(read(journals)):
        cell = row["cell"]
        plain = cell["method"] in methods and set(cell["options"]) <= {"precision"} and cell["batch_size"] == 64
        if row["status"] == "ok" and plain and row_collapsed(row["metrics"], adapts=True):
            chosen.append((_setting(cell, row["metrics"]["samples"]), row))
    return sorted(chosen, key=lambda pair: -pair[0].images)


def _setting(cell: Row, images: int) -> Setting:
    options = cell["scenario_options"]
    return Setting(
        network=f"testbed:{cell['model_options']['name']}",
        method=cell["method"],
        scenario=cell["scenario"],
        corruptions=tuple(cell["corruptions"]),
        severity=cell["severity"],
        seed=cell["seed"],
        images=images,
        pool=5000,
        draws=options.get("draws", 100),
        order=options.get("order", "resample"),
        split=cell["data_options"].get("split", "all"),
        precision=cell["options"].get("precision"),
    )
