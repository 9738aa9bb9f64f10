"""What a stream is made from: the labels of a data set, checked once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
"""Labels, indices, domain numbers: always int64."""


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, of Python or of numpy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_labels(labels: npt.ArrayLike) -> IntArray:
    """The labels as a one-dimensional int64 array, or an error that says what they are instead."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            "labels must be a non-empty one-dimensional sequence of class indices (integers), "
            f"got shape {array.shape} of {array.dtype}"
        )
    if int(array.min()) < 0:
        raise ValueError(f"labels must be class indices >= 0, got {int(array.min())} among them")
    return array.astype(np.int64)


def images_by_class(labels: IntArray) -> list[IntArray]:
    """For each class that occurs (ascending) the positions of its images (ascending)."""
    _, counts = np.unique(labels, return_counts=True)
    positions = np.argsort(labels, kind="stable").astype(np.int64)
    return np.split(positions, np.cumsum(counts)[:-1])


def balanced_subset(labels: npt.ArrayLike, limit: int) -> IntArray:
    """Positions of at most `limit` images, spread evenly over the classes, in ascending order.

    The first images of every class are taken; when `limit` is no multiple of the number of classes, the lower
    classes give one image more. A prefix of a set in class order would hold a few classes only.
    """
    checked = as_labels(labels)
    if limit < 1:
        raise ValueError(f"limit must be at least 1 image, got {limit}")
    rank_in_class = np.empty(len(checked), dtype=np.int64)
    for group in images_by_class(checked):
        rank_in_class[group] = np.arange(len(group))
    # First everybody's first image, then everybody's second ...: lexsort's last key is the primary one.
    order = np.lexsort((checked, rank_in_class))
    return np.sort(order[:limit]).astype(np.int64)
