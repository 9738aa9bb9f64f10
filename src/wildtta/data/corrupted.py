"""A data set seen through a corruption that is made on the fly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wildtta.corruptions import corrupt
from wildtta.data.image_set import ImageSet


class Corrupted:
    """`image_set` under one corruption. An image's result depends on seed and position alone.

    The position in `image_set` is the corruption's index, so that order, batching and subsets change nothing. A loader
    brings images to the protocol's size first and corrupts on the device (`apply`), as ImageNet-C was made: resize,
    crop, corrupt.
    """

    def __init__(
        self,
        image_set: ImageSet,
        corruption: str,
        severity: int,
        *,
        seed: int = 0,
        constants: Literal["auto", "imagenet", "tiny"] = "auto",
        draws: Literal["device", "official"] = "device",
    ) -> None:
        self.clean = image_set
        self.corruption = corruption
        self.severity = severity
        self.seed = seed
        self.constants: Literal["auto", "imagenet", "tiny"] = constants
        self.draws: Literal["device", "official"] = draws

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        return self.clean.labels

    @property
    def classes(self) -> Sequence[str]:
        return self.clean.classes

    @property
    def outputs(self) -> npt.NDArray[np.int64] | None:
        """Positions of the classes among a network's outputs, where the clean set knows them."""
        return getattr(self.clean, "outputs", None)

    @property
    def note(self) -> str:
        """What is unusual about the clean data."""
        return getattr(self.clean, "note", "")

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        image, label = self.clean[position]
        return self.apply(image[None], [position])[0], label

    def images(self, indices: Sequence[int] | npt.NDArray[np.int64], /) -> Tensor:
        return self.apply(self.clean.images(indices), indices)

    def apply(self, images: Tensor, indices: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        """Corrupt clean uint8 images [n, 3, H, W], which stand at these positions in the set, where they are."""
        return corrupt(
            images,
            self.corruption,
            self.severity,
            seed=self.seed,
            index=[int(i) for i in indices],
            constants=self.constants,
            draws=self.draws,
        )
