"""Images of a domain kept on the device as uint8, decoded and corrupted once per process.

A cache of recently used domains with a budget, shared by the cells that a worker runs one after the other.
What an image is depends on its data set, position and corruption alone, so it makes no difference to the
numbers.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.data import Corrupted, ImageSet, InputProtocol

_BUDGET = 2 << 30
LARGEST = 1 << 30
"""Bytes of the largest domain that is kept."""
_AT_ONCE = 512

_stores: OrderedDict[str, DomainStore] = OrderedDict()


class DomainStore:
    """All images of one set at the protocol's size, uint8 ``[N, 3, H, W]``, filled as they are asked for."""

    def __init__(self, images: ImageSet, protocol: InputProtocol, shape: torch.Size, device: torch.device) -> None:
        self._images = images
        self._protocol = protocol
        self._pixels = torch.empty((len(images), *shape), dtype=torch.uint8, device=device)
        self._filled = np.zeros(len(images), dtype=bool)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._pixels.numel()

    def fill(self, positions: npt.NDArray[np.int64]) -> None:
        """Make sure that these images are there."""
        missing = positions[~self._filled[positions]]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            self._pixels[torch.from_numpy(part).to(self._pixels.device)] = self._made(part)
            self._filled[part] = True

    def _made(self, positions: npt.NDArray[np.int64]) -> Tensor:
        """Resized and cropped first, then corrupted, as ImageNet-C was made."""
        clean = self._images.clean if isinstance(self._images, Corrupted) else self._images
        fitted = read_fitted(clean, positions, self._protocol).to(self._pixels.device)
        return self._images.apply(fitted, positions) if isinstance(self._images, Corrupted) else fitted

    def take(self, positions: npt.NDArray[np.int64]) -> Tensor:
        """These images, which were filled before."""
        return self._pixels[torch.from_numpy(positions).to(self._pixels.device)]


def store_for(key: str, images: ImageSet, protocol: InputProtocol, device: torch.device) -> DomainStore | None:
    """The store of a domain, or None where its images would take too much memory to be kept."""
    full_key = f"{key}|{protocol.size}|{protocol.resize}|{protocol.interpolation}|{device}"
    if full_key in _stores and _stores[full_key].size <= LARGEST:
        _stores.move_to_end(full_key)
        return _stores[full_key]
    clean = images.clean if isinstance(images, Corrupted) else images
    shape = read_fitted(clean, np.zeros(1, dtype=np.int64), protocol).shape[1:]
    if len(images) * shape.numel() > LARGEST:
        return None
    store = DomainStore(images, protocol, shape, device)
    _stores[full_key] = store
    while sum(kept.size for kept in _stores.values()) > _BUDGET and len(_stores) > 1:
        # A store that a running stream still holds lives on until the stream lets go of it.
        _stores.popitem(last=False)
    return store


def read_fitted(images: ImageSet, positions: npt.NDArray[np.int64], protocol: InputProtocol) -> Tensor:
    """Images at the protocol's size; a protocol without a size needs images of one size."""
    if protocol.size is None:
        return images.images(positions)
    return torch.stack([protocol.fit(images[int(position)][0]) for position in positions])
