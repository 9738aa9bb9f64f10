"""Losses and weights of ROID, as pure functions of logits."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_likelihood_ratio(logits: Tensor, *, highest: float = 0.99, epsilon: float = 1e-5) -> Tensor:
    """SLR, −Σ_c p_c ln(p_c/(1 − p_c) + ε) per sample, with p cut at ``highest``: its gradient does not fade with confidence."""
    probabilities = logits.softmax(-1).clamp(max=highest)
    return -(probabilities * (probabilities / (1 - probabilities) + epsilon).log()).sum(-1)


def symmetric_cross_entropy(first: Tensor, second: Tensor) -> Tensor:
    """½ H(p₂, p₁) + ½ H(p₁, p₂) per sample; both sides carry gradients."""
    one = (second.softmax(-1) * first.log_softmax(-1)).sum(-1)
    other = (first.softmax(-1) * second.log_softmax(-1)).sum(-1)
    return -0.5 * (one + other)


def stretched(values: Tensor) -> Tensor:
    """Values moved and scaled to [0, 1]; all 0 where they are all the same (a batch of one)."""
    low, high = values.min(), values.max()
    width = high - low
    return torch.where(width > 0, (values - low) / torch.where(width > 0, width, 1.0), torch.zeros_like(values))


def smoothed_prior(logits: Tensor) -> Tensor:
    """The batch's class prior, [C], smoothed the more the fewer samples there are and the flatter it is.

    (p̄ + s)/(1 + s·C) with p̄ the mean prediction of B samples and s = max(1/B, 1/C)/max p̄.
    """
    number, classes = logits.shape
    prior = logits.softmax(-1).mean(0)
    smooth = max(1 / number, 1 / classes) / prior.max()
    return (prior + smooth) / (1 + smooth * classes)
