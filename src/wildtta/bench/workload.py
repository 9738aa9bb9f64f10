"""How much work a cell is, from what its method says of its passes: before anything has been timed."""

from __future__ import annotations

import re
from functools import lru_cache

from wildtta.bench.cell import MULTI_DOMAIN, Cell
from wildtta.methods.registry import config_classes

_SELECTED = 0.4
"""The share of samples that a method selects. In the paper's cost table: SAR 0.25, SAR²† 0.46, EATA 0.52."""
_BATCH_OF_ONE = 4.0
"""What an image costs in a batch of one, in units of one in a large batch (small networks on a CPU; others less)."""

IMAGES = {"glyphs": 4000, "imagenet-c": 50_000, "imagenet": 50_000, "imagenet-r": 30_000, "folder": 50_000}
CLASSES = {"glyphs": 200, "imagenet-r": 200}
"""Classes of a data set; 1000 where it is not here."""


def images_in(cell: Cell) -> int:
    """Length of the cell's stream, from its scenario and the data set's usual size."""
    if "label_shift" in cell.scenario:
        draws = cell.scenario_options.get("draws", 100)
        # What is no number is refused where the stream is made.
        length = (draws if isinstance(draws, int) else 100) * CLASSES.get(cell.data, 1000)
    else:
        length = IMAGES.get(cell.data, 50_000)
    length *= max(1, len(cell.corruptions)) if cell.scenario in MULTI_DOMAIN else 1
    return length if cell.limit is None else min(length, cell.limit)


@lru_cache(maxsize=64)
def passes(method: str) -> tuple[float, float]:
    """Forward and backward samples per image, as the method states them (``1 + s / 2s``: s is a share)."""
    known = config_classes().get(method)
    words = re.sub(r"\(.*?\)|,.*", "", known.passes if known is not None else "2 / 1")
    forward, _, backward = words.partition("/")
    return _added(forward), _added(backward)


def _added(words: str) -> float:
    terms = re.findall(r"([\d.]*)([a-z]?)", words)
    return sum(float(number or 1) * (_SELECTED if share else 1) for number, share in terms if number or share)


def relative_cost(cell: Cell) -> float:
    """A cell's work beside that of others of the same launch: passes of samples, a backward one as long as a forward one."""
    small = 1 + (_BATCH_OF_ONE - 1) / cell.batch_size
    return sum(passes(cell.method)) * images_in(cell) * small
