"""LAME: the network stays as it is; predictions of a batch are made to agree with those of near features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import BatchStatistics, Method
from wildtta.methods.options import AT_LEAST_ONE, option
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Affinity = Literal["kNN", "rbf", "linear"]
_CHECK_EVERY = 10


@register
@dataclass(frozen=True, kw_only=True)
class LAME(Method):
    """Laplacian-adjusted maximum-likelihood estimation (Boudiaf et al., CVPR 2022).

        min over Y of  Σ_i KL(y_i ‖ p_i) − Σ_ij w_ij y_iᵀ y_j,   solved by  y_i ∝ p_i ⊙ exp(Σ_j w_ij y_j)

    with p the network's probabilities and w affinities of its L2-normalised features. Nothing learns and nothing is
    kept. The logits returned are ln Y, so that their softmax is Y. BatchNorm keeps the source's statistics.
    Paper: https://arxiv.org/abs/2201.05718. Code of its authors: https://github.com/fiveai/LAME.
    """

    name: ClassVar[str] = "lame"
    title: ClassVar[str] = "LAME"
    order: ClassVar[int] = 160
    paper: ClassVar[str] = "Boudiaf et al., CVPR 2022, https://arxiv.org/abs/2201.05718"
    updates: ClassVar[str] = "nothing (the batch's predictions)"
    batch_of_one: ClassVar[str] = "yes, but there are no neighbours to agree with"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "no update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    affinity: Affinity = option("kNN, rbf or linear", "kNN")
    neighbours: int = option(
        "k of kNN; in rbf σ is the mean distance to the k-th nearest sample", 5, within=AT_LEAST_ONE
    )
    symmetric: bool = option("use (W + Wᵀ)/2", False)
    rounds: int = option("fixed-point rounds at most", 100, within=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.affinity == "linear" and self.neighbours != 5:
            raise ValueError(f"neighbours={self.neighbours} has no effect while affinity='linear'; leave it out")

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        output = engine.forward(images, grad=False)
        kernel = affinities(F.normalize(output.features, dim=-1), self.affinity, self.neighbours)
        if self.symmetric:
            kernel = (kernel + kernel.T) / 2
        return output.answering(agreeing_log_probabilities(output.logits, kernel, rounds=self.rounds))


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
    (checked from the third round on), at most ``rounds`` times. A converged answer no longer changes, so that the host
    need read only now and then whether it has.
    """
    unary = -(logits.softmax(-1) + 1e-10).log()
    answer = F.log_softmax(-unary, dim=-1)
    energy = torch.full((), torch.inf, dtype=logits.dtype, device=logits.device)
    converged = torch.zeros((), dtype=torch.bool, device=logits.device)
    for number in range(rounds):
        pairwise = kernel @ answer.exp()
        fresh = F.log_softmax(pairwise - unary, dim=-1)
        shares = fresh.exp()
        new_energy = (unary * shares - pairwise * shares + shares * shares.clamp(min=1e-20).log()).sum()
        answer = torch.where(converged, answer, fresh)
        if number > 1:
            converged = converged | ((new_energy - energy).abs() <= tolerance * energy.abs())
        energy = torch.where(converged, energy, new_energy)
        if number % _CHECK_EVERY == _CHECK_EVERY - 1 and bool(converged):
            break
    return answer
