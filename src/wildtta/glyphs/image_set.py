"""The glyphs as an image data set: labels, classes, and images by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from wildtta.glyphs.atlas import glyph_atlas
from wildtta.glyphs.characters import CHARACTERS
from wildtta.glyphs.composition import IMAGE_SIZE, Split, labels_of, render_glyphs

_RENDERED_AT_ONCE = 512


class Glyphs:
    """``count`` glyph images (uint8, 3 x 32 x 32, 200 classes), rendered when asked for.

    Image ``i`` is a function of ``(seed, split, i)`` alone: a longer set begins with the shorter one, and any
    batching gives the same pixels. Image ``i`` shows class ``i mod 200``.

    Args:
        count: How many images; the supply is unlimited.
        seed: Another seed, other images of the same classes.
        split: ``"train"``, the only one that the packaged networks saw, shares no random number with ``"test"``.
        atlas: Masks from :func:`wildtta.glyphs.load_atlas`; rendered from matplotlib's fonts by default.
    """

    def __init__(self, count: int, *, seed: int = 0, split: Split = "test", atlas: torch.Tensor | None = None) -> None:
        if count < 1:
            raise ValueError(f"count: expected at least 1 image, got {count}")
        if split not in ("train", "test"):
            raise ValueError(f"split: expected 'train' or 'test', got {split!r}")
        self.seed = seed
        self.split: Split = split
        self.classes: list[str] = list(CHARACTERS)
        self.labels: npt.NDArray[np.int64] = labels_of(torch.arange(count)).numpy()
        self._atlas = glyph_atlas() if atlas is None else atlas

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} is outside of a set of {len(self)} glyphs")
        return self.images([position])[0], int(self.labels[position])

    def images(self, indices: Sequence[int] | npt.NDArray[np.int64] | torch.Tensor) -> torch.Tensor:
        """The images at ``indices`` (any order, repeats allowed) as uint8 ``[n, 3, 32, 32]``."""
        positions = torch.as_tensor(indices, dtype=torch.int64).cpu()
        if positions.numel() == 0:
            return torch.empty(0, 3, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.uint8)
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= len(self):
            raise IndexError(f"indices: expected 0 … {len(self) - 1}, got values from {low} to {high}")
        parts = [positions[start : start + _RENDERED_AT_ONCE] for start in range(0, len(positions), _RENDERED_AT_ONCE)]
        return torch.cat([render_glyphs(part, seed=self.seed, split=self.split, atlas=self._atlas) for part in parts])
