"""How large the values of each input are: which inputs can be used, and which are absurd in their stream.

With BatchNorm's batch statistics one finite image of 10⁵ changes nearly every other answer of its batch. What is absurd
depends on the stream (pixels may come as 0 … 1, standardised, or as 0 … 255), so that an image is compared with the ones
before it and beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

WINDOW = 256
"""Images that the range of a stream is made of."""
_FEWEST, _FEWEST_BESIDE = 3, 4
"""Levels that make a range: of two, nobody can tell which is the odd one. And those of a batch that tell of a change."""
_TIMES = 8.0
_DEVIATIONS = 8.0
_SMALLEST = 1e-30


LARGEST = {
    dtype: 1e-6 * math.sqrt(torch.finfo(dtype).max) for dtype in (torch.bfloat16, torch.float32, torch.float64)
}
"""Values above which a network overflows: norm layers square what the layers before them made larger. No image has such
(raw counts of a sensor are below 1e10, these are 2e13, 2e13 and 1e148); damaged memory does."""


def levels(images: Tensor) -> Tensor:
    """max |x| of each sample, [B]; NaN or infinite where the sample holds such a value or overflows in the network.

    One that overflows is told by its inputs and not by what comes of it: its gradient is NaN where its answer may still be
    finite, and stays NaN under a mask.
    """
    found = largest(images)
    return found.masked_fill(found > LARGEST.get(found.dtype, math.inf), math.inf)


def largest(inputs: Tensor) -> Tensor:
    """max |x| of each sample, [B]. (Tokens are always fine: 0.)"""
    if not inputs.is_floating_point():
        return torch.zeros(len(inputs), device=inputs.device)
    found: Tensor = torch.linalg.vector_norm(inputs.flatten(1), torch.inf, dim=1)
    return found


def no_levels_yet() -> Tensor:
    """The window of a stream that has not begun; on the host, where the few numbers are judged."""
    return torch.full((WINDOW,), torch.nan, dtype=torch.float64)


def with_levels(window: Tensor, fresh: Sequence[float]) -> Tensor:
    """The window with the levels of a batch, the newest last.

    Values that are not finite are no part of it, nor are images of zeros (a lens cap): they tell nothing of the range, and
    by theirs every ordinary image would be absurd.
    """
    added = np.asarray([level for level in fresh if _SMALLEST < level < math.inf])
    return torch.from_numpy(np.concatenate([window.numpy(), added])[-len(window) :])


def absurd(batch: Sequence[float], window: Tensor) -> list[bool]:
    """Which samples are absurd, by their levels: ln l > m + max(ln 8, 8·1.4826·MAD).

    m is the median of ln l over the window and the batch, MAD the median distance from it (1.4826·MAD estimates a normal
    deviation). Half of all images may be absurd before they move m. A sample like its batch (at most 8 times the batch's
    median) is not absurd: then the stream has changed.
    """
    here = _logarithms(np.asarray(batch))
    known = np.concatenate([_logarithms(window.numpy()), here])
    known = known[np.isfinite(known)]
    if len(known) < _FEWEST:
        return [False] * len(batch)
    middle = np.median(known)
    spread = 1.4826 * np.median(np.abs(known - middle))
    out = np.isfinite(here) & (here > middle + max(np.log(_TIMES), _DEVIATIONS * spread))
    beside = here[np.isfinite(here)]
    if len(beside) >= _FEWEST_BESIDE:
        out &= here > np.median(beside) + np.log(_TIMES)
    return list(map(bool, out))


def _logarithms(found: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """ln l, NaN for an image of zeros."""
    return np.log(np.where(found > _SMALLEST, found, np.nan))
