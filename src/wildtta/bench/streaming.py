"""The stream of a cell: from labels, scenario and seed alone, so the same for every method and model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wildtta.bench.cell import MULTI_DOMAIN, Cell
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.plain import each_value, infinite
from wildtta.data.image_lists import IMAGE_LISTS
from wildtta.streams import Domain, Stream, build, scenario_options

SPLITS: tuple[str, ...] = ("all", "first-half", "second-half", "first-classes", "second-classes", *IMAGE_LISTS)
"""Parts of a data set: its images halved within every class, its classes halved by their indices, a published list."""


def split_positions(labels: npt.NDArray[np.int64], split: str) -> npt.NDArray[np.int64]:
    """Positions of the images in one part of the data, ascending; two opposite parts make the whole.

    ``first-half`` and ``second-half`` halve the images of every class (an odd one belongs to the first half);
    ``first-classes`` and ``second-classes`` halve the classes that occur.
    """
    refuse_unknown([split], SPLITS, "unknown split {}")
    if split == "all" or split in IMAGE_LISTS:  # a published list was applied when the data were opened
        return np.arange(len(labels))
    present, counts = np.unique(labels, return_counts=True)
    if split.endswith("classes"):
        first = np.isin(labels, present[: -(-len(present) // 2)])
    else:
        of_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        first = np.zeros(len(labels), dtype=bool)
        first[np.concatenate([members[: -(-len(members) // 2)] for members in of_class])] = True
    positions = np.flatnonzero(first if split.startswith("first") else ~first)
    if not len(positions):
        raise BenchError(f"the split {split!r} of {len(labels)} images is empty")
    return positions


def stream_of(cell: Cell, labels: npt.NDArray[np.int64]) -> Stream:
    """The cell's stream over a data set with these labels; positions are those of the whole set.

    ``limit`` is the number of images in the whole stream: shuffled scenarios use an evenly spread subset of
    the data (its share for each corruption), class-ordered and stored ones are cut off there.
    """
    positions = split_positions(labels, str(cell.data_options.get("split", "all")))
    kept = labels[positions]
    domains = [Domain(name, cell.severity) for name in cell.corruptions] or [Domain("clean")]
    kept_orders = {"label_shift", "continual_label_shift", "stored", "runs", "one_class"}
    ordered = bool({cell.scenario, cell.scenario_options.get("within")} & kept_orders)
    per_domain = None
    if cell.limit is not None and not ordered:
        several = len(domains) if cell.scenario in MULTI_DOMAIN else 1
        per_domain = min(-(-cell.limit // several), len(kept))
    try:
        stream = build(
            cell.scenario,
            kept,
            domains=domains,
            severity=cell.severity or None,
            batch_size=cell.batch_size,
            seed=cell.seed,
            limit=per_domain,
            **stream_options(cell),
        )
    except (ValueError, TypeError) as error:
        raise BenchError(f"{cell.scenario}: {error}") from error
    if cell.limit is not None:
        stream = stream.first(min(cell.limit, len(stream)))
    return replace(stream, index=positions[stream.index])


def stream_options(cell: Cell) -> dict[str, Any]:
    """The scenario's options with numbers for the text ``inf``; unknown ones are an error."""
    known = scenario_options(cell.scenario)
    refuse_unknown(cell.scenario_options, known, f"scenario {cell.scenario!r} has no option {{}}")
    return {name: each_value(value, infinite) for name, value in cell.scenario_options.items()}
