"""No class may own the entropy term: samples of a class that is predicted too often weigh less.

Entropy minimisation collapses by itself: the class that is predicted most has the most reliable samples, these pull further
samples over, and so on. The centroid bank of SAR² does not see it, since every class is one row of it however often it is
predicted. Here the share p_i of class i among recent predictions is followed, and a sample predicted as i weighs

    w = min(1, limit / p_i),    limit = s/C, at most 0.3

so that together the samples of one class never weigh more than ``limit`` of all: below it nothing changes. Recent means an
exponential window of 5·C samples, at least 1000: in a class-ordered stream it spans many classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_LIMIT = 0.3
WINDOW_PER_CLASS = 5
SMALLEST_WINDOW = 1000


def limited_weights(shares: Tensor, labels: Tensor, multiple: float) -> Tensor:
    """w of each sample, [B], from the classes' shares [C] and its predicted class; ``multiple`` is s."""
    limit = min(LARGEST_LIMIT, multiple / len(shares))
    return (limit / shares[labels]).clamp(max=1.0)


def followed_shares(shares: Tensor, labels: Tensor) -> Tensor:
    """p ← k·p + (1−k)·(this batch's shares), k = exp(−B/window)."""
    classes = torch.arange(len(shares), device=shares.device)
    present = (labels[:, None] == classes).to(shares.dtype).mean(0)
    keep = math.exp(-len(labels) / max(SMALLEST_WINDOW, WINDOW_PER_CLASS * len(shares)))
    return keep * shares + (1 - keep) * present
