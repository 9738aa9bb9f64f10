"""CIFAR-10-C and CIFAR-100-C as published: one ``.npy`` per corruption, read where it lies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.data.errors import DataError, layout_error, some_of
from wildtta.data.image_set import Indices, class_names

SEVERITIES = 5
CIFAR_CLASSES = {"cifar-10-c": 10, "cifar-100-c": 100}
"""The sets by the name under which a benchmark asks for them, with their numbers of classes."""
LAYOUT = (
    "<root>/<corruption>.npy, uint8 [5·N, H, W, 3] with severities 1 to 5 one after the other, and <root>/labels.npy, "
    "[5·N] (N is 10,000 in the published sets)"
)


@dataclass(eq=False)
class StoredArray:
    """Images in a file of numpy, [N, H, W, 3]; only what is asked for is read."""

    path: Path
    rows: slice
    labels: npt.NDArray[np.int64]
    classes: Sequence[str]
    note: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        return self.images([position])[0], int(self.labels[position])

    def images(self, indices: Indices, /) -> Tensor:
        stored = np.load(self.path, mmap_mode="r", allow_pickle=False)[self.rows]
        pixels = np.ascontiguousarray(stored[np.asarray(indices, dtype=np.int64)].transpose(0, 3, 1, 2))
        return torch.from_numpy(pixels)


def cifar_c(name: str, root: str | os.PathLike[str], corruption: str, severity: int) -> StoredArray:
    """One corruption of ``cifar-10-c`` or ``cifar-100-c`` at one severity; `root` is the folder (or the one around it)."""
    folder = _folder(name, Path(root))
    path = folder / f"{corruption}.npy"
    if not path.is_file():
        raise layout_error(
            f"{name} in {folder}: no corruption {corruption!r}",
            expected=LAYOUT,
            found=some_of(sorted(file.name for file in folder.glob("*.npy")), shown=20),
            remedy="unpack the published archive there, completely",
        )
    if not 1 <= severity <= SEVERITIES:
        raise DataError(f"{name} is stored at severities 1 to {SEVERITIES}, got {severity}")
    labels = _array(folder / "labels.npy").astype(np.int64)
    images = _array(path)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise layout_error(
            f"{path} and its labels do not fit",
            expected=LAYOUT,
            found=f"{images.dtype} {list(images.shape)} and labels {list(labels.shape)}",
        )
    if len(images) % SEVERITIES:
        raise DataError(f"{path} has {len(images)} images, which is no multiple of {SEVERITIES} severities")
    count = len(images) // SEVERITIES
    rows = slice((severity - 1) * count, severity * count)
    classes = [str(number) for number in range(CIFAR_CLASSES[name])]
    note = "" if count == 10_000 else f"{count} images per severity instead of 10000"
    return StoredArray(path, rows, labels[rows], class_names(labels, classes), note)


def _folder(name: str, root: Path) -> Path:
    """The folder with the arrays: `root`, or the one in it that the archive unpacks to."""
    inner = root / name.upper()
    for folder in (root, inner):
        if (folder / "labels.npy").is_file():
            return folder
    found = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
    raise layout_error(
        f"{name} in {root}: no labels.npy",
        expected=LAYOUT,
        found=some_of(found) if found else "no such folder",
        remedy=f"unpack {name.upper()}.tar and name its folder",
    )


def _array(path: Path) -> npt.NDArray[np.generic]:
    try:
        array: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is no complete file of numpy ({error}); fetch or unpack it again") from error
    return array
