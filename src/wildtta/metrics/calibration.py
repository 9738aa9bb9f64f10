"""Calibration of the top-1 confidence: are 80 % of the predictions made with 80 % confidence right?"""

from __future__ import annotations

import torch
from torch import Tensor


def expected_calibration_error(confidence: Tensor, correct: Tensor, *, bins: int = 15) -> float:
    """ECE = Σ_b (n_b / n) · |accuracy_b − confidence_b| over bins of equal width, (lo, hi], as a fraction.

    Guo et al., "On Calibration of Modern Neural Networks", 2017; L1 norm. ``confidence``: probability of the
    predicted class, ``[n]``; ``correct``: whether that class was the label, ``[n]``.
    """
    confidence, correct = _checked(confidence, correct, bins)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    # (lo, hi]: a confidence on an edge belongs to the bin below it.
    which = torch.bucketize(confidence, edges[1:-1], right=False)
    return _weighted_gap(confidence, correct, which, bins)


def adaptive_calibration_error(confidence: Tensor, correct: Tensor, *, bins: int = 15) -> float:
    """The same sum over bins of equal mass: the sorted confidences cut into runs of (nearly) equal length.

    Nixon et al., "Measuring Calibration in Deep Learning", 2019. It does not hide errors in a bin that holds
    nearly everything, as equal widths do for a network that is nearly always sure.
    """
    confidence, correct = _checked(confidence, correct, bins)
    order = torch.argsort(confidence, stable=True)
    count = len(order)
    which = torch.empty_like(order)
    which[order] = torch.arange(count, device=order.device) * bins // max(count, 1)
    return _weighted_gap(confidence, correct, which, bins)


def _weighted_gap(confidence: Tensor, correct: Tensor, which: Tensor, bins: int) -> float:
    # n_b cancels: (n_b / n) · |mean correct − mean confidence| = |Σ correct − Σ confidence| / n.
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, which, correct - confidence)
    return float(gap.abs().sum() / len(confidence))


def _checked(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    if confidence.dim() != 1 or confidence.shape != correct.shape:
        raise ValueError(
            f"expected confidence and correct as vectors of one length, got {tuple(confidence.shape)} "
            f"and {tuple(correct.shape)}"
        )
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    return confidence.double(), correct.double()
