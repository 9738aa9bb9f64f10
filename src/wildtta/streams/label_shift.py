"""Online imbalanced label shift: the class that dominates changes over time.

Construction (SAR, section "Online Imbalanced Label Distribution Shift Simulation"): the C classes are put
into a random order; period t = 1..C has the class distribution Q_t with q_max on the t-th class of that order
and q_min = (1 - q_max) / (C - 1) on the others; M images are drawn by Q_t with replacement. The imbalance
ratio is r = q_max / q_min, hence q_min = 1 / (r + C - 1). r = 1 is uniform; r = infinity is pure class order.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wildtta.randomness import numpy_generator
from wildtta.streams.labels import IntArray, as_labels, images_by_class, is_whole

OFFICIAL_INFINITY = 500_000.0
"""The authors' generator has no infinite ratio; their files for it were made with this one."""

PUBLISHED_RATIOS = (1.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, OFFICIAL_INFINITY)
"""The ratios of the authors' published files, in the order of the one run that made them."""

_OFFICIAL_IMAGE_SEED = 2022
"""The authors' generator re-seeds numpy with this, whatever the seed of the class order."""


def label_shift(
    labels: npt.ArrayLike,
    *,
    ratio: float = math.inf,
    draws: int = 100,
    seed: int = 0,
    order: str | os.PathLike[str] = "resample",
) -> IntArray:
    """Positions of `draws` x (number of classes) images under online imbalanced label shift.

    Args:
        labels: the class index of every image.
        ratio: q_max / q_min, from 1 (uniform) to infinity (pure class order).
        draws: M, the images per period; there are as many periods as classes.
        seed: of the class order, and with "resample" of everything else too.
        order: how classes and images are drawn.
            "resample": both from `seed`, so that runs with different seeds are different samples.
            "official": as one call of the authors' generator: the class order from `seed`, always the same
            images, infinity is 500000. The set must be in class order with equally many images per class.
            "published": as "official", with the class order of the authors' published files. These come from
            one run over the ratios 1, 1000, ..., 5000, 500000, each with the next shuffle of one generator.
            Path of a `.npy` file: the stored positions; ratio, draws and seed play no part then.
    """
    checked = as_labels(labels)
    if isinstance(order, os.PathLike) or str(order).endswith(".npy"):
        return read_order(Path(order), images=len(checked))
    given = ratio
    try:
        ratio = float(ratio)  # files that cannot hold an infinity write it as "inf"
    except (TypeError, ValueError):
        ratio = math.nan
    if math.isnan(ratio) or ratio < 1:
        raise ValueError(f"ratio must be from 1 (uniform) to math.inf (pure class order), got {given!r}")
    if not is_whole(draws) or not 1 <= draws < 2**31:
        raise ValueError(f"draws must be at least 1 image per period (a whole number below 2^31), got {draws!r}")
    if order == "resample":
        return _resampled(checked, ratio, draws, seed)
    if order not in ("official", "published"):
        raise ValueError(f"order must be 'resample', 'official', 'published' or the path of a .npy file, got {order!r}")
    finite = OFFICIAL_INFINITY if math.isinf(ratio) else ratio
    if order == "official":
        return _official(checked, finite, draws, seed, shuffles=1)
    if finite not in PUBLISHED_RATIOS:
        known = ", ".join(f"{r:g}" for r in PUBLISHED_RATIOS)
        raise ValueError(f"order='published' knows the ratios {known} (= infinity), got {ratio:g}; use order='official'")
    return _official(checked, finite, draws, seed, shuffles=PUBLISHED_RATIOS.index(finite) + 1)


def read_order(path: Path, *, images: int) -> IntArray:
    """A stored index file (`.npy`, float64 or integer), checked against the number of images."""
    if not path.is_file():
        raise FileNotFoundError(f"no stored order at {path}; expected a .npy file of image positions")
    stored = np.load(path, allow_pickle=False)
    if stored.ndim != 1 or stored.size == 0 or stored.dtype.kind not in "iuf":
        raise ValueError(
            f"{path}: expected a non-empty one-dimensional array of image positions, "
            f"got {stored.dtype} of shape {stored.shape}"
        )
    if stored.dtype.kind == "f" and not np.array_equal(stored, np.floor(stored)):
        raise ValueError(f"{path}: expected whole numbers (image positions), got fractions or NaN among them")
    if stored.min() < 0 or stored.max() >= images:
        raise ValueError(
            f"{path}: positions run from {int(stored.min())} to {int(stored.max())}, "
            f"but the data set has {images} images (0 to {images - 1})"
        )
    return np.asarray(stored, dtype=np.int64)


def _drawn_classes(majors: IntArray, ratio: float, draws: int, uniforms: npt.NDArray[np.float64]) -> IntArray:
    """The class of every step by inverting Q_t's cumulative distribution at one uniform number per step."""
    minor = 1.0 / (ratio + len(majors) - 1)  # 0 for an infinite ratio
    drawn = np.empty((len(majors), draws), dtype=np.int64)
    for period, (major, chances) in enumerate(zip(majors, uniforms.reshape(len(majors), draws), strict=True)):
        probabilities = np.full(len(majors), minor)
        probabilities[major] = 1.0 if math.isinf(ratio) else minor * ratio
        cumulative = probabilities.cumsum()
        drawn[period] = (cumulative / cumulative[-1]).searchsorted(chances, side="right")
    return drawn.reshape(-1)


def _resampled(labels: IntArray, ratio: float, draws: int, seed: int) -> IntArray:
    """Class order, classes and images from one generator; classes without images take no part."""
    groups = images_by_class(labels)
    generator = numpy_generator(seed)
    class_order = generator.permutation(len(groups))
    drawn = _drawn_classes(class_order, ratio, draws, generator.random(len(groups) * draws))
    counts = np.array([len(group) for group in groups], dtype=np.int64)
    rank = generator.integers(0, counts[drawn])
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return np.concatenate(groups)[first[drawn] + rank]


def _official(labels: IntArray, ratio: float, draws: int, seed: int, *, shuffles: int) -> IntArray:
    """The authors' generator, number for number.

    Class order: Python's `random` seeded with `seed`, the `shuffles`-th shuffle of a fresh 0..C-1. All else:
    numpy's legacy generator seeded with 2022: one number per step gives the class (what `choice(C, 1, p=Q_t)`
    consumes), then for classes 0..C-1 one `randint(0, n, count)` gives the images of all its steps.
    """
    counts = np.bincount(labels)
    classes, images_per_class = len(counts), len(labels) // len(counts)
    if not np.array_equal(labels, np.repeat(np.arange(classes), images_per_class)):
        in_order = bool((np.diff(labels) >= 0).all())
        raise ValueError(
            "the official label-shift order needs images in class order with equally many per class (image i has class "
            f"i // n); got {len(labels)} labels of {classes} classes, {counts.min()} to {counts.max()} images each, "
            f"{'in' if in_order else 'not in'} class order. Use order='resample' for such a set"
        )
    python = random.Random(seed)
    for _ in range(shuffles):
        class_order = list(range(classes))
        python.shuffle(class_order)
    legacy = np.random.RandomState(_OFFICIAL_IMAGE_SEED)
    drawn = _drawn_classes(np.array(class_order), ratio, draws, legacy.random_sample(classes * draws))
    chosen = np.empty(len(drawn), dtype=np.int64)
    for label in range(classes):
        steps = np.flatnonzero(drawn == label)
        chosen[steps] = label * images_per_class + legacy.randint(0, images_per_class, len(steps))
    return chosen
