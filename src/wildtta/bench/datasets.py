"""The images of a cell: from the data's name, its root and the cell's corruptions to batches on the device.

``glyphs`` and ``folder`` (one folder or zip of class folders) are corrupted on the fly; ``imagenet-c`` and a
folder in its layout (``<corruption>/<severity>/<class>/``) are read as they are. Sets that fit into memory
are decoded and corrupted once per process and kept on the device; larger ones stream from their files.

``data_options``: ``split`` (:mod:`wildtta.bench.streaming`); ``count`` and ``seed`` of glyphs;
``source_images``, how many a method may look at (:mod:`wildtta.bench.source_data`); ``corruption_seed``, the
seed of the corruptions' noise. The noise is part of the data: it stays the same over the cell's seeds, as in
the published ImageNet-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.data import (
    CORRUPTIONS,
    DATA_NAMES,
    EXTRA_CORRUPTIONS,
    DataError,
    ImageSet,
    InputProtocol,
    StreamLoader,
    input_protocol,
    open_domains,
    require_classes,
    restrict_classes,
)
from wildtta.network import inspect_network
from wildtta.streams import Domain, Stream

GLYPH_COUNT = 4000
"""Glyphs in the data set where a cell doesn't say: 20 of each class."""

_KNOWN_CORRUPTIONS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
_OPTIONS = ("split", "count", "seed", "corruption_seed", "source_images")
_OWN_PROTOCOL = {"glyphs": "glyphs", "folder": "native", "shards": "native"}


def check_data(cell: Cell, root: str | None) -> None:
    """Raise :class:`BenchError` for what is wrong without opening anything large."""
    refuse_unknown([cell.data], DATA_NAMES, "unknown data {}")
    if cell.data != "glyphs" and root is None:
        raise BenchError(f"data {cell.data!r} lies in files; name their folder with --data")
    if root is not None and cell.data != "glyphs" and not Path(root).exists():
        raise BenchError(f"no data at {root}")
    refuse_unknown(cell.data_options, _OPTIONS, "data_options has no {}")
    refuse_unknown(cell.corruptions, _KNOWN_CORRUPTIONS, "unknown corruption {}")
    if cell.corruptions and not 1 <= cell.severity <= 5:
        raise BenchError(f"severity must be 1 to 5, got {cell.severity}")


class Images:
    """A cell's data set: labels, and batches of network inputs for any stream over it."""

    def __init__(
        self, sets: dict[Domain, ImageSet], protocol: InputProtocol, device: torch.device, *, loaders: int
    ) -> None:
        self._sets, self._protocol, self._device, self._loaders = sets, protocol, device, loaders
        first, *others = sets.values()
        if not all(np.array_equal(first.labels, other.labels) for other in others):
            raise BenchError("the corruptions' folders hold different images; they must be the same ones, corrupted")
        self.labels: npt.NDArray[np.int64] = np.asarray(first.labels, dtype=np.int64)
        self.classes = len(first.classes)
        self.note = "; ".join(dict.fromkeys(filter(None, (getattr(s, "note", "") for s in sets.values()))))
        self.protocol = str(protocol)
        self.pixel_scale = {"mean": protocol.mean, "std": protocol.std}

    def like(self, sets: dict[Domain, ImageSet]) -> Images:
        """Other images, prepared in the same way."""
        return Images(sets, self._protocol, self._device, loaders=self._loaders)

    def batches(self, stream: Stream) -> Iterator[Tensor]:
        """The stream's batches as network inputs on the device, in order."""
        sets = [self._sets[domain] for domain in stream.domains]
        loader = StreamLoader(
            sets, stream, protocol=self._protocol, device=self._device, workers=self._loaders, cache=True
        )
        return (loaded.images for loaded in loader)


def open_images(
    cell: Cell, root: str | None, network: nn.Module, device: torch.device, *, loaders: int = 0
) -> tuple[Images, nn.Module]:
    """The cell's images, and the network with exactly their classes as outputs.

    Where the data hold a subset of ImageNet's classes the network's head is cut down to them; any other
    difference in the number of classes is an error.
    """
    check_data(cell, root)
    usual = {"count": GLYPH_COUNT, "seed": 0, "corruption_seed": 0}
    numbers = {name: int(cell.data_options.get(name, value)) for name, value in usual.items()}
    sets = {domain: _opened(cell.data, root, domain, **numbers) for domain in _domains(cell)}
    own = _OWN_PROTOCOL.get(cell.data, "paper")
    protocol = input_protocol(own if cell.protocol == "auto" else cell.protocol, network)
    fitted = _fitted(network, next(iter(sets.values())), cell.model)
    return Images(sets, protocol, device, loaders=loaders), fitted


def _domains(cell: Cell) -> list[Domain]:
    # A gradual stream passes through the severities up to the cell's.
    first = 1 if cell.scenario == "gradual" else cell.severity
    levels = range(first, cell.severity + 1)
    return [Domain(name, level) for name in cell.corruptions for level in levels] or [Domain("clean")]


@lru_cache(maxsize=256)
def _opened(name: str, root: str | None, domain: Domain, **numbers: int) -> ImageSet:
    """One domain's image set; kept, since listing a large folder takes a while."""
    return open_domains(name, root, [domain], **numbers)[0]


def _fitted(network: nn.Module, images: ImageSet, model: str) -> nn.Module:
    outputs = getattr(images, "outputs", None)
    if outputs is not None:
        network = restrict_classes(network, outputs)
    try:
        require_classes(images, inspect_network(network).classes)
    except DataError as error:
        raise BenchError(f"{model}: {error}") from error
    return network
