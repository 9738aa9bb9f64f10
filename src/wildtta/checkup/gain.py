"""What a method gains over the unadapted network on the same images, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_NORMAL_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Gain:
    """A difference in accuracy in points, with half the width of its 95 % interval."""

    points: float
    half_width: float
    images: int

    @property
    def low(self) -> float:
        return self.points - self.half_width

    @property
    def high(self) -> float:
        return self.points + self.half_width

    def images_for(self, half_width: float) -> int:
        """How many images would give an interval of this half width: it shrinks with their square root."""
        return math.ceil(self.images * (self.half_width / half_width) ** 2)


def paired_gain(before: npt.ArrayLike, after: npt.ArrayLike) -> Gain:
    """The gain from ``before`` to ``after``: whether each image was answered rightly, [N] or [shifts, N].

    d_i is the difference at image i, the mean over its shifts, and

        gain = mean(d) ± 1.96 · sd(d) / √N

    Images are what was drawn at random, so they are what the interval is over: several copies of one image count as one.
    Where no answer differs sd is 0, which proves little. There the rule of three holds: with 95 % confidence, what did not
    happen in N draws happens in less than 3/N of all (Hanley and Lippman-Hand 1983).
    """
    difference = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    each = np.atleast_2d(difference).mean(axis=0)
    number = len(each)
    if number < 2:
        raise ValueError(f"an interval takes at least 2 images, got {number}")
    differs = bool(np.any(difference))
    half = _NORMAL_95 * float(each.std(ddof=1)) / math.sqrt(number) if differs else min(1.0, 3 / number)
    return Gain(100 * float(each.mean()), 100 * half, number)
