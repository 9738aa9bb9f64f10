"""Losses as pure functions of logits.

Notation: C classes, B samples; natural logarithm throughout.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction, E(x) = −Σ_c p_c ln p_c with p = softmax(logits): [B, C] to [B] (Tent, SAR)."""
    log_probabilities = F.log_softmax(logits, dim=-1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of ``values`` where ``mask`` holds; 0 (with gradient 0) where it holds nowhere.

    Values outside the mask may be anything, NaN too: they are replaced before they are multiplied.
    """
    if mask is None:
        return values.mean() if values.numel() else values.sum()
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def diversity(logits: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Entropy of the batch's mean prediction, H(mean_b p_b) (InfoMax, SHOT); with 1e-5 inside, as its authors have it."""
    mean = logits.softmax(-1).mean(0)
    return -(mean * (mean + epsilon).log()).sum()


def smoothed_entropy(logits: Tensor, epsilon: float = 1e-5) -> Tensor:
    """InfoMax's entropy, −Σ_c p_c ln(p_c + ε), per sample."""
    probabilities = logits.softmax(-1)
    return -(probabilities * (probabilities + epsilon).log()).sum(-1)
