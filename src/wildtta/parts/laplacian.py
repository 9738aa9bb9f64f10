"""Laplacian-adjusted maximum likelihood (LAME): affinities between samples, and probabilities that agree with them."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Affinity = Literal["kNN", "rbf", "linear"]
AFFINITIES: tuple[str, ...] = get_args(Affinity)
_LOOK_EVERY = 10


def affinities(features: Tensor, kind: Affinity, neighbours: int) -> Tensor:
    """W [B, B] of L2-normalised ``features`` [B, D].

    - ``kNN``: w_ij = 1 where j is among the ``neighbours`` samples nearest to i (i itself left out);
    - ``rbf``: w_ij = exp(−‖z_i − z_j‖² / 2σ²), σ the mean distance to the k-th nearest sample (i itself counts as the first);
    - ``linear``: w_ij = z_i · z_j.

    Where σ is 0 (one sample, or only equal ones) equal samples have affinity 1 and different ones 0: the limit σ → 0.
    """
    if kind == "linear":
        return features @ features.T
    number = len(features)
    distances = (features[None] - features[:, None]).norm(dim=-1)
    if kind == "kNN":
        nearest = distances.topk(min(neighbours + 1, number), largest=False).indices[:, 1:]
        return torch.zeros_like(distances).scatter_(1, nearest, 1.0)
    width = distances.topk(min(neighbours, number), largest=False).values[:, -1].mean()
    exponent = -distances.square() / (2 * width.square())
    return torch.where(distances > 0, exponent, torch.zeros_like(exponent)).exp()


def agreeing_log_probabilities(logits: Tensor, kernel: Tensor, *, rounds: int = 100, tolerance: float = 1e-8) -> Tensor:
    """ln Y for the Y that minimises Σ_i KL(y_i ‖ p_i) − Σ_ij w_ij y_iᵀ y_j, by the concave–convex procedure.

        y_i ∝ p_i ⊙ exp(Σ_j w_ij y_j)

    repeated until the energy Σ (u·Y − (W Y)·Y + Y ln Y), u = −ln(p + 1e-10), changes by at most ``tolerance`` of itself
    (looked at from the third round on), at most ``rounds`` times. What has settled stays as it is, so that the host need
    look only now and then.
    """
    unary = -(logits.softmax(-1) + 1e-10).log()
    answer = F.log_softmax(-unary, dim=-1)
    energy = torch.full((), torch.inf, dtype=logits.dtype, device=logits.device)
    settled = torch.zeros((), dtype=torch.bool, device=logits.device)
    for number in range(rounds):
        pairwise = kernel @ answer.exp()
        fresh = F.log_softmax(pairwise - unary, dim=-1)
        shares = fresh.exp()
        new_energy = (unary * shares - pairwise * shares + shares * shares.clamp(min=1e-20).log()).sum()
        answer = torch.where(settled, answer, fresh)
        if number > 1:
            settled = settled | ((new_energy - energy).abs() <= tolerance * energy.abs())
        energy = torch.where(settled, energy, new_energy)
        if number % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(settled):
            break
    return answer
