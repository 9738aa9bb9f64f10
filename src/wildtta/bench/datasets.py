"""The images of a cell: from the data's name, its root and the cell's corruptions to batches on the device.

``glyphs`` and ``folder`` (one folder or zip of class folders) are corrupted on the fly; ``imagenet-c`` and a
folder in its layout (``<corruption>/<severity>/<class>/``) are read as they are; ``imagenet``, ``imagenet-r``
and the others by :mod:`wildtta.data`. Sets that fit into memory are decoded and corrupted once per process
and kept on the device (:mod:`wildtta.bench.image_cache`); larger ones stream from their files.

``data_options``: ``split`` (:mod:`wildtta.bench.streaming`); ``count`` and ``seed`` of glyphs;
``source_images``, how many a method may look at (:mod:`wildtta.bench.source_data`); ``corruption_seed``, the
seed of the corruptions' noise. The noise is part of the data: it stays the same over the cell's seeds, as in
the published ImageNet-C.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.image_cache import DomainStore, store_for
from wildtta.data import (
    CORRUPTIONS,
    DATA_NAMES,
    EXTRA_CORRUPTIONS,
    DataError,
    ImageSet,
    InputProtocol,
    StreamLoader,
    corruptions_in,
    folder,
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
_INPUTS_AT_ONCE = 1024


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
        self, sets: dict[Domain, ImageSet], protocol: InputProtocol, device: torch.device, *, key: str, loaders: int
    ) -> None:
        self._sets, self._protocol, self._device, self._key, self._loaders = sets, protocol, device, key, loaders
        first, *others = sets.values()
        if not all(np.array_equal(first.labels, other.labels) for other in others):
            raise BenchError("the corruptions' folders hold different images; they must be the same ones, corrupted")
        self.labels: npt.NDArray[np.int64] = np.asarray(first.labels, dtype=np.int64)
        self.classes = len(first.classes)
        self.note = "; ".join(dict.fromkeys(filter(None, (getattr(s, "note", "") for s in sets.values()))))

    @property
    def protocol(self) -> str:
        """The preprocessing that is used, by name."""
        return str(self._protocol)

    @property
    def pixel_scale(self) -> dict[str, tuple[float, float, float]]:
        """Mean and std, per channel, of the preprocessing."""
        return {"mean": self._protocol.mean, "std": self._protocol.std}

    def like(self, sets: dict[Domain, ImageSet], *, key: str) -> Images:
        """Other images, prepared in the same way."""
        return Images(sets, self._protocol, self._device, key=key, loaders=self._loaders)

    def batches(self, stream: Stream) -> Iterator[Tensor]:
        """The stream's batches as network inputs on the device, in order."""
        stores = self._stores(stream)
        if stores is None:
            sets = [self._sets[domain] for domain in stream.domains]
            loader = StreamLoader(sets, stream, protocol=self._protocol, device=self._device, workers=self._loaders)
            yield from (loaded.images for loaded in loader)
            return
        # Several batches at once: at batch size 1 the small copies would cost more than the network.
        sizes: list[int] = []
        begun = 0
        for batch in stream.batches():
            sizes.append(len(batch.indices))
            if sum(sizes) >= _INPUTS_AT_ONCE:
                yield from self._gather(stores, stream, begun, sizes)
                begun, sizes = begun + sum(sizes), []
        if sizes:
            yield from self._gather(stores, stream, begun, sizes)

    def _stores(self, stream: Stream) -> list[DomainStore] | None:
        stores = []
        for number, domain in enumerate(stream.domains):
            store = store_for(f"{self._key}|{domain}", self._sets[domain], self._protocol, self._device)
            if store is None:
                return None
            store.fill(np.unique(stream.index[stream.domain == number]))
            stores.append(store)
        return stores

    def _gather(
        self, stores: Sequence[DomainStore], stream: Stream, start: int, sizes: Sequence[int]
    ) -> Iterator[Tensor]:
        part = slice(start, start + sum(sizes))
        domain, index = stream.domain[part], stream.index[part]
        if (domain == domain[0]).all():
            pixels = stores[int(domain[0])].take(index)
        else:
            parts = [(np.flatnonzero(domain == number), number) for number in np.unique(domain)]
            order = torch.from_numpy(np.concatenate([positions for positions, _ in parts])).to(self._device)
            gathered = torch.cat([stores[int(number)].take(index[positions]) for positions, number in parts])
            pixels = torch.empty_like(gathered)
            pixels[order] = gathered
        yield from torch.split(self._protocol.normalise(pixels), list(sizes))


def open_images(
    cell: Cell, root: str | None, network: nn.Module, device: torch.device, *, loaders: int = 0
) -> tuple[Images, nn.Module]:
    """The cell's images, and the network with exactly their classes as outputs.

    Where the data hold a subset of ImageNet's classes the network's head is cut down to them; any other
    difference in the number of classes is an error.
    """
    check_data(cell, root)
    usual = {"count": GLYPH_COUNT, "seed": 0, "corruption_seed": 0}
    numbers = tuple(int(cell.data_options.get(name, value)) for name, value in usual.items())
    sets = {domain: _opened(cell.data, root, domain, *numbers) for domain in _domains(cell)}
    own = _OWN_PROTOCOL.get(cell.data, "paper")
    protocol = input_protocol(own if cell.protocol == "auto" else cell.protocol, network)
    fitted = _fitted(network, next(iter(sets.values())), cell.model)
    key = "|".join(map(str, (cell.data, root and os.path.abspath(root), *numbers)))
    return Images(sets, protocol, device, key=key, loaders=loaders), fitted


def _domains(cell: Cell) -> list[Domain]:
    # A gradual stream passes through the severities up to the cell's.
    first = 1 if cell.scenario == "gradual" else cell.severity
    levels = range(first, cell.severity + 1)
    return [Domain(name, level) for name in cell.corruptions for level in levels] or [Domain("clean")]


@lru_cache(maxsize=256)
def _opened(name: str, root: str | None, domain: Domain, count: int, seed: int, corruption_seed: int) -> ImageSet:
    """One domain's image set; kept, since listing a large folder takes a while."""
    if name == "folder" and root is not None and Path(root).is_dir():
        # By name: a folder of classes that are called 0, 1, 2 … looks like a corruption with severities too.
        stored = {name: levels for name, levels in corruptions_in(root).items() if name in _KNOWN_CORRUPTIONS}
        if stored:
            return _stored(root, stored, domain)
    return open_domains(name, root, [domain], count=count, seed=seed, corruption_seed=corruption_seed)[0]


def _stored(root: str, stored: dict[str, list[int]], domain: Domain) -> ImageSet:
    """One domain of a folder that ``wildtta corrupt`` wrote, with clean images beside them in ``clean``."""
    found = ", ".join(f"{name} ({'/'.join(map(str, levels))})" for name, levels in stored.items())
    if domain.severity is None:
        if (Path(root) / domain.name).is_dir():
            return folder(Path(root) / domain.name)
        raise DataError(
            f"{root} has no clean images; it has {found}. "
            f"Put them (or a link to them) into {root}/{domain.name}/<class>/<image>"
        )
    if domain.severity not in stored.get(domain.name, ()):
        raise DataError(f"{root} has no {domain.name} of severity {domain.severity}; it has {found}")
    return folder(Path(root) / domain.name / str(domain.severity))


def _fitted(network: nn.Module, images: ImageSet, model: str) -> nn.Module:
    # What is corrupted on the fly has its classes from the clean set below.
    outputs = getattr(getattr(images, "clean", images), "outputs", None)
    if outputs is not None:
        network = restrict_classes(network, outputs)
    try:
        require_classes(images, inspect_network(network).classes)
    except DataError as error:
        raise BenchError(f"{model}: {error}") from error
    return network
