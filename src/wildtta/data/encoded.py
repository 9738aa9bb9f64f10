"""A set of image files, wherever they lie; decoded when asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.data.decoding import decode
from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.sources import Source

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


class EncodedImages:
    """Image files with labels.

    `outputs` is set where the classes are a subset of those of the networks that are usually run on the set
    (ImageNet-R: 200 of 1000): `outputs[c]` is the position of class `c` among the network's outputs. `note` says what is
    unusual about the data found (say, a reduced number of images), for the record of a result.
    """

    def __init__(
        self,
        files: Sequence[tuple[Source, str]],
        labels: npt.ArrayLike,
        classes: Sequence[str],
        *,
        outputs: npt.NDArray[np.int64] | None = None,
        note: str = "",
    ) -> None:
        self.labels: npt.NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        self.classes = list(classes)
        self.outputs = outputs
        self.note = note
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def where(self, position: int) -> str:
        """The file of an image, as a person would look for it."""
        source, name = self._files[position]
        return source.where(name)

    def encoded(self, position: int) -> bytes:
        """The bytes of an image's file."""
        source, name = self._files[position]
        try:
            return source.read(name)
        # Archives raise their own kinds (BadZipFile, zlib.error) besides OSError: for the reader it is one thing.
        except Exception as error:
            raise BrokenImage(f"{source.where(name)} cannot be read ({type(error).__name__}: {error})") from error

    def decoded(self, position: int) -> Tensor:
        """The image as a uint8 tensor [3, H, W]; a broken file is a `BrokenImage` that names it."""
        return decode(self.encoded(position), self.where(position))

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        return self.decoded(position), int(self.labels[position])

    def images(self, indices: Sequence[int] | npt.NDArray[np.int64], /) -> Tensor:
        return stack([self.decoded(int(i)) for i in indices])


def stack(images: Sequence[Tensor]) -> Tensor:
    """Images of one size as one tensor [n, 3, H, W]; an error that says what to do if their sizes differ."""
    sizes = sorted({(int(i.shape[-2]), int(i.shape[-1])) for i in images})
    if len(sizes) > 1:
        raise DataError(
            f"images of different sizes cannot form a batch: from {sizes[0][0]}x{sizes[0][1]} to "
            f"{sizes[-1][0]}x{sizes[-1][1]} (HxW); load them with a protocol that has a size: paper, timm, custom:size=..."
        )
    return torch.stack(list(images))
