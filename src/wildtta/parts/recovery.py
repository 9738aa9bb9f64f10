"""Model recovery (SAR): start again when the entropy has become suspiciously small."""

from __future__ import annotations

import torch
from torch import Tensor


def moving_entropy(average: Tensor, loss: Tensor, happened: Tensor, keep: float = 0.9) -> Tensor:
    """e_m ← 0.9·e_m + 0.1·loss; the first value starts it (NaN = none yet); unchanged where nothing ``happened``."""
    loss = loss.to(average.dtype)
    fresh = torch.where(average.isnan(), loss, keep * average + (1 - keep) * loss)
    return torch.where(happened, fresh, average)


def needs_recovery(average: Tensor, threshold: float) -> Tensor:
    """e_m < e₀ (never before there is an average)."""
    return average < threshold
