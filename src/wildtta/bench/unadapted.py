"""What the unadapted network did on the same stream: what a collapse is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from wildtta.bench.journal import Row

SHARE = "unadapted_top_class_share"
"""In a row's metrics: the share (percent) of the class that the unadapted network predicted most."""

_OF_THE_METHOD = ("method", "options", "regularise", "pace", "measure", "measure_options", "name", "model_name")
_LENGTHS = ("limit", "draws", "source_images")


def beside_unadapted(rows: Iterable[Row], among: Iterable[Row] | None = None) -> list[Row]:
    """The rows, each with the unadapted network's largest share on its stream where that was run too.

    On scaled-down runs slow methods see fewer images: where the unadapted network was run on the same stream at
    other lengths only, the longest counts. The rows that are given stay as they are.

    Args:
        rows: of a journal.
        among: where to look for the unadapted network; by default these rows.
    """
    rows = list(rows)
    found: dict[str, dict[str, tuple[int, float]]] = {}
    for row in rows if among is None else among:
        share = (row.get("metrics") or {}).get("top_class_share")
        if row["cell"]["method"] == "none" and row["status"] == "ok" and share is not None:
            exact, alike = _stream(row["cell"])
            found.setdefault(alike, {})[exact] = row["metrics"].get("samples", 0), share
    return [_with_share(row, found) for row in rows]


def _with_share(row: Row, found: dict[str, dict[str, tuple[int, float]]]) -> Row:
    if row["cell"]["method"] == "none" or not row.get("metrics"):
        return row
    exact, alike = _stream(row["cell"])
    lengths = found.get(alike)
    if not lengths:
        return row
    _, share = lengths.get(exact) or max(lengths.values())
    return {**row, "metrics": {**row["metrics"], SHARE: share}}


def _stream(cell: dict[str, Any]) -> tuple[str, str]:
    """The network and stream of a cell; and the same at whatever length."""
    parts = {name: value for name, value in cell.items() if name not in _OF_THE_METHOD}
    loose = {name: value for name, value in parts.items() if name not in _LENGTHS}
    for name in ("scenario_options", "data_options"):
        loose[name] = {key: value for key, value in (parts.get(name) or {}).items() if key not in _LENGTHS}
    parts["data_options"] = loose["data_options"]
    return json.dumps(parts, sort_keys=True), json.dumps(loose, sort_keys=True)
