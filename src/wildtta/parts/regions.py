"""The region around a feature: bias and variance of the prediction within it, in closed form (ReCAP).

A region is a Gaussian around the feature z with variances τσ. The closed forms need, for each pair of classes, how
far their weights are apart in the region; that is one C × C matrix, made once, and nothing larger than B × C per batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.sar2.bank import accumulation_dtype
from wildtta.parts.source_images import SourceImages, batches_in, in_batches
from wildtta.progress import shown

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

# Constants of the authors' code.
_SCALE = 0.1
_SHIFT = 0.1 / 2 * _SCALE**2


@dataclass(frozen=True)
class Region:
    """What the closed forms need of head and region.

    ``spread`` [C, C] is A_ij = exp(½ Σ_d (w_id − w_jd)² τσ_d/0.1), each row divided by its largest entry e^``peak``;
    ``shift`` [C] is 0.0005 ‖w_i‖².
    """

    spread: Tensor
    peak: Tensor
    shift: Tensor

    @classmethod
    def of_head(cls, weight: Tensor, sigma: Tensor, tau: float) -> Region:
        """From the head's weight [C, D] and the variances σ [D]. Squared distances come from a Gram matrix: no C × C × D."""
        wide = accumulation_dtype(weight.device)
        rows = weight.detach().to(wide)
        shift = _SHIFT * rows.square().sum(1)
        rows = rows * (sigma.to(wide) * (tau / _SCALE)).sqrt()
        squares = rows.square().sum(1)
        exponents = torch.addmm(squares[:, None] + squares, rows, rows.T, alpha=-2).mul_(0.5).clamp_(min=0)
        exponents.fill_diagonal_(0)
        peak = exponents.amax(1)
        return cls(exponents.sub_(peak[:, None]).exp_(), peak, shift)

    def losses(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Regional entropy L_RE and regional instability L_RI of each sample, [B] and [B] (ReCAP).

        With p = softmax(x), q_i = Σ_j A_ij p_j and p̃ = softmax(x + shift):

            L_RE = Σ_i p̃_i (ln q_i − ln p_i),   L_RI = Σ_i p_i ln q_i
        """
        log_p = F.log_softmax(logits, dim=-1)
        p = log_p.exp()
        mixed = p.to(self.spread.dtype) @ self.spread.T
        log_q = self.peak + mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()
        log_q = log_q.to(logits.dtype)
        shifted = (logits + self.shift.to(logits.dtype)).softmax(-1)
        return (shifted * (log_q - log_p)).sum(-1), (p * log_q).sum(-1)


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of rows, added batch by batch (Chan et al. 1979)."""

    count: Tensor
    mean: Tensor
    spread: Tensor

    def with_rows(self, rows: Tensor) -> Moments:
        """The moments with ``rows`` [n, D] added."""
        mean = rows.mean(0)
        spread = (rows - mean).square().sum(0)
        count = self.count + len(rows)
        gap = mean - self.mean
        return Moments(
            count,
            self.mean + gap * (len(rows) / count),
            self.spread + spread + gap.square() * (self.count * len(rows) / count),
        )

    @property
    def variance(self) -> Tensor:
        """Biased variance per column; 0 from fewer than two rows."""
        return self.spread / self.count.clamp(min=1)


def feature_moments(engine: Engine, source: SourceImages, batch_size: int = 64) -> Moments:
    """Moments of the features of source images."""
    zeros = torch.zeros(engine.network.feature_width, dtype=engine.dtype, device=engine.device)
    moments = Moments(zeros.new_zeros(()), zeros, zeros)
    batches = in_batches(source, batch_size, engine.device)
    for images in shown(batches, "feature variance of the source, batches", batches_in(source, batch_size)):
        moments = moments.with_rows(engine.forward(images, grad=False).features)
    if not bool(torch.isfinite(moments.variance).all()) or int(moments.count) < 2:
        raise ValueError(
            f"the features of the {int(moments.count)} source images have no finite variance; give at least 2 images, "
            "normalised like the test images"
        )
    return moments
