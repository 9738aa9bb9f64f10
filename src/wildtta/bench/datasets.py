"""The images of a cell: from the data's name, its root and the cell's corruptions to batches on the device.

``glyphs`` and ``folder`` (one folder or zip of class folders) are corrupted on the fly; ``imagenet-c`` and a
folder in its layout (``<corruption>/<severity>/<class>/``) are read as they are. Sets that fit into memory
are decoded and corrupted once per process and kept on the device; larger ones stream from their files.

``data_options``: ``folder``, a folder or zip below the root, for grids over several sets; ``split``
(:mod:`wildtta.bench.streaming`), or in its place a published list of ImageNet's
images by name (:data:`wildtta.data.IMAGE_LISTS`); ``count`` and ``seed`` of glyphs; ``source_images``, how many
a method may look at (:mod:`wildtta.bench.source_data`); ``corruption_seed``, the seed of the corruptions'
noise. The noise is part of the data: it stays the same over the cell's seeds, as in the published ImageNet-C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.segmenting import SEGMENTATION_DATA, check_segmentation
from wildtta.data import (
    CORRUPTIONS,
    DATA_NAMES,
    EXTRA_CORRUPTIONS,
    Corrupted,
    DataError,
    ImageSet,
    InputProtocol,
    StreamLoader,
    input_protocol,
    open_domains,
    require_classes,
    restrict_classes,
)
from wildtta.data.cifar import CIFAR_CLASSES
from wildtta.data.image_lists import IMAGE_LISTS
from wildtta.glyphs.atlas import font_folder
from wildtta.network import inspect_network
from wildtta.streams import Domain, Stream

_NUMBERS = {"count": 4000, "seed": 0, "corruption_seed": 0}
"""Options of the data set itself where a cell doesn't say; 4000 glyphs are 20 of each class."""
_OWN_PROTOCOL = {"glyphs": "glyphs", "folder": "native", "shards": "native", **dict.fromkeys(CIFAR_CLASSES, "unit")}


def check_data(cell: Cell, root: str | None) -> None:
    """Raise :class:`BenchError` for what is wrong without opening anything large."""
    refuse_unknown([cell.data], (*DATA_NAMES, *SEGMENTATION_DATA), "unknown data {}")
    if cell.protocol not in ("auto", "timm"):  # these need the network
        try:
            input_protocol(cell.protocol)
        except DataError as error:
            raise BenchError(str(error)) from error
    if cell.data in SEGMENTATION_DATA:
        check_segmentation(cell, root)
        return
    if cell.data == "glyphs":
        try:
            font_folder()
        except (ImportError, FileNotFoundError) as error:
            raise BenchError(str(error)) from error
    elif root is None:
        raise BenchError(f"data {cell.data!r} lies in files; name their folder with --data")
    place = _place(cell, root)
    if place is not None and cell.data != "glyphs" and not Path(place).exists():
        raise BenchError(f"no data at {place}")
    refuse_unknown(cell.data_options, ("folder", "split", *_NUMBERS, "source_images"), "data_options has no {}")
    for name in (*_NUMBERS, "source_images"):
        number = cell.data_options.get(name, 1)
        if type(number) is not int or not 0 <= number < 2**63:
            raise BenchError(f"{name} in data_options must be a whole number of at least 0, and below 2^63, got {number!r}")
    refuse_unknown(cell.corruptions, CORRUPTIONS + EXTRA_CORRUPTIONS, "unknown corruption {}")
    if cell.corruptions and not 1 <= cell.severity <= 5:
        raise BenchError(f"severity must be 1 to 5, got {cell.severity}")


def _place(cell: Cell, root: str | None) -> str | None:
    """Where the cell's images lie: the root, or what ``folder`` names below it."""
    return root if root is None else str(Path(root) / str(cell.data_options.get("folder", "")))


@dataclass(kw_only=True)
class Images:
    """A cell's data set: labels, and batches of network inputs for any stream over it."""

    sets: Mapping[Domain, ImageSet]
    protocol: InputProtocol
    device: torch.device
    loaders: int

    def __post_init__(self) -> None:
        first, *others = self.sets.values()
        if not all(np.array_equal(first.labels, other.labels) for other in others):
            raise BenchError("the corruptions' folders hold different images; they must be the same ones, corrupted")
        self.labels: npt.NDArray[np.int64] = np.asarray(first.labels, dtype=np.int64)
        self.classes = len(first.classes)
        self.note = "; ".join(dict.fromkeys(filter(None, (getattr(s, "note", "") for s in self.sets.values()))))

    def batches(self, stream: Stream) -> Iterator[Tensor]:
        """The stream's batches as network inputs on the device, in order."""
        sets = [self.sets[domain] for domain in stream.domains]
        loader = StreamLoader(
            sets, stream, protocol=self.protocol, device=self.device, workers=self.loaders, cache=True
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
    numbers = {name: int(cell.data_options.get(name, value)) for name, value in _NUMBERS.items()}
    # A gradual stream passes through the severities up to the cell's.
    levels = range(1 if cell.scenario == "gradual" else cell.severity, cell.severity + 1)
    domains = [Domain(name, level) for name in cell.corruptions for level in levels]
    if not domains or cell.scenario == "comes_and_goes":
        domains = [Domain("clean"), *domains]
    split = cell.data_options.get("split")
    images = str(split) if split in IMAGE_LISTS else None
    sets = {domain: _opened(cell.data, _place(cell, root), domain, images, **numbers) for domain in domains}
    own = _OWN_PROTOCOL.get(cell.data, "paper")
    protocol = input_protocol(own if cell.protocol == "auto" else cell.protocol, network)
    first = sets[domains[0]]
    outputs = getattr(first, "outputs", None)
    if outputs is not None:
        network = restrict_classes(network, outputs)
    try:
        require_classes(first, inspect_network(network).classes)
    except DataError as error:
        raise BenchError(f"{cell.model}: {error}") from error
    return Images(sets=sets, protocol=protocol, device=device, loaders=loaders), network


@lru_cache(maxsize=256)
def _opened(name: str, root: str | None, domain: Domain, images: str | None, **numbers: int) -> ImageSet:
    """One domain's image set; kept, since listing a large folder takes a while."""
    found = open_domains(name, root, [domain], images=images, **numbers)[0]
    if not isinstance(found, Corrupted):
        return found
    # One clean set behind all its corruptions, so that its images are read once.
    own = (name, root, images, numbers["count"], numbers["seed"])
    return replace(found, clean=_clean.setdefault(own, found.clean))


_clean: WeakValueDictionary[tuple[object, ...], ImageSet] = WeakValueDictionary()
