"""LAME: the network stays as it is, its answers are made to agree with the neighbourhood of the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.answering import answer_with
from wildtta.methods.base import BatchStatistics, Method
from wildtta.methods.gradient import help_text
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.parts.laplacian import AFFINITIES, Affinity, affinities, agreeing_log_probabilities
from wildtta.step.report import Answer, Output, StepReport

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


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
    paper: ClassVar[str] = "Boudiaf et al., CVPR 2022, https://arxiv.org/abs/2201.05718"
    updates: ClassVar[str] = "nothing (the batch's predictions)"
    batch_of_one: ClassVar[str] = "yes, but there are no neighbours to agree with"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "no update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    affinity: Affinity = help_text("kNN, rbf or linear", "kNN")
    neighbours: int = help_text("k of kNN; in rbf σ is the mean distance to the k-th nearest sample", 5)
    symmetric: bool = help_text("use (W + Wᵀ)/2", False)
    rounds: int = help_text("fixed-point rounds at most", 100)

    def __post_init__(self) -> None:
        if self.affinity not in AFFINITIES:
            raise ValueError(f"affinity must be one of {', '.join(AFFINITIES)}, got {self.affinity!r}")
        if self.neighbours < 1 or self.rounds < 1:
            raise ValueError(f"neighbours and rounds must be at least 1, got {self.neighbours} and {self.rounds}")

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def step(self, engine: Engine, images: Tensor) -> Answer:
        return answer_with(engine, self._agreed(engine, images), forwards=len(images))

    def predict(self, engine: Engine, images: Tensor) -> Answer:
        output = self._agreed(engine, images)
        return Answer(output, StepReport.of_prediction(output, engine))

    def _agreed(self, engine: Engine, images: Tensor) -> Output:
        output = engine.forward(images, grad=False)
        kernel = affinities(F.normalize(output.features, dim=-1), self.affinity, self.neighbours)
        if self.symmetric:
            kernel = (kernel + kernel.T) / 2
        return output.answering(agreeing_log_probabilities(output.logits, kernel, rounds=self.rounds))
