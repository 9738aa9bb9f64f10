"""What every data set looks like: labelled uint8 images by position; sets in memory and corrupted sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.corruptions import Constants, DrawKind, corrupt
from wildtta.data.errors import DataError

Indices: TypeAlias = Sequence[int] | npt.NDArray[np.int64]
"""Positions in a set."""


@runtime_checkable
class ImageSet(Protocol):
    """A labelled set of RGB images; files, archives, arrays and rendered glyphs alike.

    `labels[i]` indexes `classes`. `self[i]` is one image, uint8 [3, H, W], and its label; `images(indices)`
    are several of one size, uint8 [n, 3, H, W].
    """

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...

    @property
    def classes(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]: ...

    def images(self, indices: Indices, /) -> Tensor: ...


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
        self.classes = class_names(self.labels, classes)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        return self._images[position], int(self.labels[position])

    def images(self, indices: Indices, /) -> Tensor:
        return self._images[torch.as_tensor(np.asarray(indices, dtype=np.int64))]


def class_names(labels: npt.ArrayLike, given: Sequence[str] | None) -> list[str]:
    """The names of the classes, by default their numbers; an error if there are too few for the labels."""
    count = int(np.max(labels, initial=-1)) + 1
    names = [str(number) for number in range(count)] if given is None else list(given)
    if count > len(names):
        raise DataError(f"labels go up to {count - 1}, but only {len(names)} class names were given")
    return names


@dataclass(frozen=True, eq=False)
class Corrupted:
    """The set `clean` under one corruption, made on the fly. An image depends on seed and position alone.

    The position in `clean` is the corruption's index, so that order, batching and subsets change nothing. A
    loader brings images to the protocol's size first and corrupts on the device (`apply`), as ImageNet-C was
    made: resize, crop, corrupt.
    """

    clean: ImageSet
    corruption: str
    severity: int
    _: KW_ONLY
    seed: int = 0
    constants: Constants = "auto"
    draws: DrawKind = "device"

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        return self.clean.labels

    @property
    def classes(self) -> Sequence[str]:
        return self.clean.classes

    @property
    def outputs(self) -> npt.NDArray[np.int64] | None:
        return getattr(self.clean, "outputs", None)

    @property
    def note(self) -> str:
        return getattr(self.clean, "note", "")

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        image, label = self.clean[position]
        return self.apply(image[None], [position])[0], label

    def images(self, indices: Indices, /) -> Tensor:
        return self.apply(self.clean.images(indices), indices)

    def apply(self, images: Tensor, indices: Indices) -> Tensor:
        """Corrupt clean uint8 images [n, 3, H, W], which have these positions in the set, where they are."""
        return corrupt(
            images,
            self.corruption,
            self.severity,
            seed=self.seed,
            index=np.asarray(indices, dtype=np.int64),
            constants=self.constants,
            draws=self.draws,
        )


def clean_set(image_set: ImageSet) -> ImageSet:
    """The set itself, or what is behind a `Corrupted` one."""
    return image_set.clean if isinstance(image_set, Corrupted) else image_set
