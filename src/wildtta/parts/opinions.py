"""Predictions as opinions: beliefs in the classes and a rest of plain uncertainty (COME)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.losses import entropy


def keep_length(logits: Tensor) -> Tensor:
    """x / ‖x‖₂ · sg(‖x‖₂): the same values, with a gradient that turns the logits and does not lengthen them."""
    length = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    held: Tensor = logits * (length.detach() / length.clamp(min=1e-12))
    return held


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy of the opinion that subjective logic forms of each prediction: [B, C] to [B] (COME, arXiv 2410.10894).

    Evidence e^x makes beliefs b_c = e^{x_c}/S and an uncertainty u = C/S with S = Σ_c e^{x_c} + C; they sum to 1, and

        H = −Σ_c b_c ln b_c − u ln u

    on logits whose length is held (:func:`keep_length`). An opinion is the softmax of the logits and one more, ln C:
    so it is computed, and no exponential can overflow. (The authors' code adds 1e-7 to each mass instead.)
    """
    return entropy(F.pad(keep_length(logits), (0, 1), value=math.log(logits.shape[-1])))
