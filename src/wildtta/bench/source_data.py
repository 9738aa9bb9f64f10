"""Clean source images for the methods that look at some before they adapt (EATA for its Fisher information).

A method says that it wants them by a field of type ``SourceImages``; a cell that doesn't fill it gets glyphs
of the training split on glyphs, else images of the folder that ``--source`` names, or none. Where a grid's cells
name several sets (``data_options = { folder = … }``), the source may hold a folder or zip of the same name for each.
As the data's own folder, the source's is not part of a cell's identity; the row's ``data_note`` tells what was used.
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wildtta.bench.cell import Cell
from wildtta.bench.datasets import Images
from wildtta.data import ImageSet, open_data
from wildtta.glyphs import Glyphs
from wildtta.methods.registry import method_class
from wildtta.randomness import numpy_generator
from wildtta.streams import Domain, Stream, balanced_subset
from wildtta.streams.stream import given


@dataclasses.dataclass(frozen=True)
class SourceBatches:
    """Batches of network inputs, read anew in every iteration; never all in memory."""

    images: Images
    stream: Stream

    def __iter__(self) -> Iterator[Tensor]:
        return self.images.batches(self.stream)


_MOST_KNOWN = 64
_known: OrderedDict[tuple[object, ...], dict[str, Tensor]] = OrderedDict()


def known_of_source(cell: Cell, digest: str, images: Images, root: str | None) -> dict[str, Tensor]:
    """What earlier cells of this process found out about the source for the same network, method and images.

    A cell puts in what it found out (:meth:`wildtta.step.engine.Engine.known_of_source`): EATA's Fisher information takes as
    long as half a stream, and all streams of a network share it. ``digest`` tells its weights.
    """
    options = json.dumps([cell.model_options, cell.options, cell.data_options], sort_keys=True)
    where = (cell.data, root, images.protocol, str(images.device), torch.get_num_threads())
    own = (cell.model, digest, cell.method, cell.batch_size, options, where)
    known = _known.setdefault(own, {})
    _known.move_to_end(own)
    while len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    return known


def wanted_source_fields(cell: Cell) -> list[str]:
    """Names of the method's fields for source images that the cell leaves open."""
    fields = dataclasses.fields(method_class(cell.method))
    return [entry.name for entry in fields if "SourceImages" in str(entry.type) and entry.name not in cell.options]


@lru_cache(maxsize=16)
def _opened(root: str | None, count: int) -> ImageSet:
    """The folder's images, or glyphs that networks train on."""
    return Glyphs(count, split="train") if root is None else open_data("folder", root)


def _place(cell: Cell, root: str) -> str:
    """The source's images of the set that the cell names, or all of them where it holds none of that name."""
    own = Path(root, str(cell.data_options.get("folder", "")))
    return str(own) if own.exists() else root


def source_options(cell: Cell, images: Images, root: str | None) -> tuple[dict[str, Any], str]:
    """Source images as options for :func:`wildtta.adapt`, and a note; nothing where none are wanted."""
    wanted = wanted_source_fields(cell)
    if not wanted:
        return {}, ""
    count = int(cell.data_options.get("source_images", 2000))  # as many as EATA's authors take
    if cell.data != "glyphs" and root is None:
        # Some methods can do without (ReCAP); those that cannot say so at their first batch.
        return {}, "no source images"
    place = None if cell.data == "glyphs" else _place(cell, str(root))
    source = _opened(place, count)
    where = "glyphs of the training split" if place is None else Path(place).name
    chosen = balanced_subset(source.labels, count)
    # In class order a batch would hold one class; the order is part of what the method computes.
    order = numpy_generator(0).permutation(chosen)
    prepared = dataclasses.replace(images, sets={Domain("given"): source})
    batches = SourceBatches(prepared, given(order, 64))
    return dict.fromkeys(wanted, batches), f"{len(order)} source images: {where}"
