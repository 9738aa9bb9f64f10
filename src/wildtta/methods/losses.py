"""Losses as pure functions of logits.

Notation: C classes, B samples; natural logarithm throughout.
"""

from __future__ import annotations

import math

import torch
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


def mean_row(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of the ``rows`` [B, D] where ``mask`` [B] holds; 0 where it holds nowhere."""
    if mask is None:
        return rows.mean(0)
    return rows.masked_fill(~mask[:, None], 0.0).sum(0) / mask.sum().clamp(min=1)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """H(p_target, p) = −Σ_c softmax(target)_c ln softmax(logits)_c per sample; both sides carry gradients."""
    return -(target.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def symmetric_cross_entropy(first: Tensor, second: Tensor) -> Tensor:
    """½ H(p₂, p₁) + ½ H(p₁, p₂) per sample (CoTTA, ROID)."""
    return 0.5 * cross_entropy(second, first) + 0.5 * cross_entropy(first, second)


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy of the opinion that subjective logic forms of each prediction: [B, C] to [B] (COME, arXiv 2410.10894).

    Evidence e^x makes beliefs b_c = e^{x_c}/S and an uncertainty u = C/S with S = Σ_c e^{x_c} + C; they sum to 1, and

        H = −Σ_c b_c ln b_c − u ln u

    on logits x / ‖x‖₂ · sg(‖x‖₂): the same values, with a gradient that turns the logits and does not lengthen them.
    An opinion is the softmax of the logits and one more, ln C, so that no exponential can overflow. (The authors' code
    adds 1e-7 to each mass instead.)
    """
    length = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    held = logits * (length.detach() / length.clamp(min=1e-12))
    return entropy(F.pad(held, (0, 1), value=math.log(logits.shape[-1])))
