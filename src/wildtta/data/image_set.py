"""What every data set here looks like: labelled uint8 images by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.data.errors import DataError


@runtime_checkable
class ImageSet(Protocol):
    """A labelled set of RGB images; files, archives, arrays and rendered glyphs alike.

    `labels[i]` indexes `classes`. `self[i]` is one image, uint8 [3, H, W], and its label; `images(indices)` are several
    of one size, uint8 [n, 3, H, W].
    """

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...

    @property
    def classes(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]: ...

    def images(self, indices: Sequence[int] | npt.NDArray[np.int64], /) -> Tensor: ...


class ArrayImages:
    """Images that are in memory already: a uint8 tensor or array [N, 3, H, W] with labels."""

    def __init__(
        self, images: Tensor | npt.NDArray[np.uint8], labels: npt.ArrayLike, classes: Sequence[str] | None = None
    ) -> None:
        self._images = torch.as_tensor(images)
        if self._images.dtype != torch.uint8 or self._images.ndim != 4 or self._images.shape[1] != 3:
            raise DataError(
                f"images must be uint8 of shape [N, 3, H, W], got {self._images.dtype} {list(self._images.shape)}"
            )
        self.labels: npt.NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        if self.labels.shape != (len(self._images),):
            raise DataError(f"expected {len(self._images)} labels, one per image, got shape {self.labels.shape}")
        count = int(self.labels.max(initial=-1)) + 1
        self.classes: list[str] = [str(c) for c in range(count)] if classes is None else list(classes)
        if count > len(self.classes):
            raise DataError(f"labels go up to {count - 1}, but only {len(self.classes)} class names were given")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        return self._images[position], int(self.labels[position])

    def images(self, indices: Sequence[int] | npt.NDArray[np.int64], /) -> Tensor:
        return self._images[torch.as_tensor(np.asarray(indices, dtype=np.int64))]


def require_classes(image_set: ImageSet, outputs: int) -> None:
    """An error if a network with so many outputs cannot name this set's classes one for one."""
    if len(image_set.classes) != outputs:
        raise DataError(
            f"the data set has {len(image_set.classes)} classes, but the network has {outputs} outputs; they must be "
            "the same classes in the same order (restrict_classes takes a subset of a network's outputs)"
        )
