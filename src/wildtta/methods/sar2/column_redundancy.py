"""R of the column reading as one function of the rows that change, with its gradient written out.

With μ the mean of the N rows of C^t, A = Σzzᵀ − N·μμᵀ is N times their covariance matrix; with v = diag A and a = 1/v,

    R = 1/(D−1) · Σ_{i≠j} A_ij² a_i a_j            (N cancels: R looks at correlations alone)

Only B live rows carry a gradient, and ∂R/∂z_b = 2 G (z_b − μ) with the symmetric

    G_ij = 2/(D−1) · a_i a_j A_ij  (i ≠ j),   G_ii = −a_i² · 2/(D−1) · Σ_{j≠i} A_ij² a_j  (+ the floor's share)

so that the backward pass is one product of A with B vectors: no D×D matrix of gradients is made. A itself is one product on
top of the stored sums. Left to the differentiation of its formula, R took some forty passes over D×D numbers in
float64, a fifth of a whole step of batch size 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wildtta.methods.sar2.redundancy import dead_columns


class ColumnRedundancy(torch.autograd.Function):
    """R(C^t) from the stored sums, the rows that leave and the rows that arrive (gradient for these alone)."""

    @staticmethod
    def forward(
        ctx: Any, arriving: Tensor, leaving: Tensor, outer: Tensor, total: Tensor, count: Tensor, variance_floor: float
    ) -> Tensor:
        width = arriving.shape[1]
        mean = (total - leaving.sum(0) + arriving.sum(0)) / count
        changes = torch.cat((arriving, leaving, mean[None] * count.to(mean.dtype).sqrt()))
        signs = torch.ones(len(changes), 1, dtype=mean.dtype, device=mean.device)
        signs[len(arriving) :].neg_()
        scatter = torch.addmm(outer, changes.T, signs * changes)
        spread = scatter.diagonal().clone()
        # What subtracting two nearly equal numbers leaves of a constant column.
        noise = 64 * torch.finfo(spread.dtype).eps * (spread + count * mean.square()).abs()
        dead = dead_columns(spread, noise)
        floor = variance_floor * spread.masked_fill(dead, 0.0).mean()
        floored = (spread < floor) & ~dead if variance_floor > 0 else torch.zeros_like(dead)
        inverse = torch.where(floored, floor, spread).masked_fill(dead, 1.0).reciprocal().masked_fill(dead, 0.0)
        others = scatter.square() @ inverse - spread.square() * inverse
        ctx.save_for_backward(arriving, scatter, spread, inverse, others, mean, dead, floored)
        ctx.variance_floor = variance_floor
        return (inverse * others).sum() / max(1, width - 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        arriving, scatter, spread, inverse, others, mean, dead, floored = ctx.saved_tensors
        width = arriving.shape[1]
        scale = 2 / max(1, width - 1)
        away = arriving - mean
        towards = scale * inverse * ((inverse * away) @ scatter - inverse * spread * away)
        of_spread = -scale * inverse.square() * others
        own = of_spread.masked_fill(floored, 0.0)
        if ctx.variance_floor > 0:
            shared = (of_spread * floored).sum() * ctx.variance_floor / width
            own = own + torch.zeros_like(own).masked_fill(~dead, 1.0) * shared
        rows = 2 * gradient * (towards + own * away)
        return rows, None, None, None, None, None
