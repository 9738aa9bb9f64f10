"""Images kept on the device as uint8, decoded and corrupted once per process.

What an image is depends on its data set, position and corruption alone, so that keeping it changes no number.
The clean images behind corrupted ones are kept too: every corruption of a set begins with them. The sets that were
used last share a budget of memory.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch

from wildtta.data.batch_reading import read_fitted
from wildtta.data.image_set import Corrupted, ImageSet
from wildtta.data.preprocessing import InputProtocol
from wildtta.streams.labels import IntArray

_BUDGET = 2 << 30
_LARGEST = 1 << 30
_AT_ONCE = 512

_kept: OrderedDict[tuple[object, ...], KeptImages] = OrderedDict()


class KeptImages:
    """All images of one set at the protocol's size, uint8 ``[N, 3, H, W]``, filled as they are asked for."""

    def __init__(self, image_set: ImageSet, protocol: InputProtocol, shape: torch.Size, device: torch.device) -> None:
        self._set = image_set
        self._protocol = protocol
        self._filled = np.zeros(len(image_set), dtype=bool)
        self.pixels = torch.empty((len(image_set), *shape), dtype=torch.uint8, device=device)

    def fill(self, positions: IntArray) -> None:
        """Make sure that these images are there: fitted first, then corrupted, as ImageNet-C was made."""
        missing = positions[~self._filled[positions]]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            self.pixels[torch.from_numpy(part)] = self._made(part)
            self._filled[part] = True

    def _made(self, positions: IntArray) -> torch.Tensor:
        if not isinstance(self._set, Corrupted):
            return read_fitted(self._set, positions, self._protocol).to(self.pixels.device)
        clean = kept_images(self._set.clean, self._protocol, self.pixels.device)
        assert clean is not None, "clean images are as large as corrupted ones"
        clean.fill(positions)
        return self._set.apply(clean.pixels[torch.from_numpy(positions)], positions)


def kept_images(image_set: ImageSet, protocol: InputProtocol, device: torch.device) -> KeptImages | None:
    """The kept images of a set, or None where they would take too much memory."""
    key = (id(image_set), protocol.size, protocol.resize, protocol.interpolation, device)
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    if isinstance(image_set, Corrupted):
        clean = kept_images(image_set.clean, protocol, device)
        if clean is None:
            return None
        shape = clean.pixels.shape[1:]
    else:
        shape = read_fitted(image_set, [0], protocol).shape[1:]
        if len(image_set) * shape.numel() > _LARGEST:
            return None
    _kept[key] = KeptImages(image_set, protocol, shape, device)
    while sum(kept.pixels.numel() for kept in _kept.values()) > _BUDGET and len(_kept) > 1:
        # What a running stream still holds lives on until the stream lets go of it.
        _kept.popitem(last=False)
    return _kept[key]
