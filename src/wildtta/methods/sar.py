"""SAR: reliable samples, sharpness-aware entropy, recovery."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from wildtta.methods.base import Rates
from wildtta.methods.gradient import EntropyMethod, Recovery, threshold
from wildtta.methods.options import POSITIVE, option
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.step.loop import Gradient, Loss, Selection
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


def worst_step(gradient: Tensor, radius: float) -> Tensor:
    """ε̂ = ρ · g/‖g‖₂: the first-order worst perturbation within radius ρ; 0 where the gradient is 0.

    The 1e-12 under the norm is the authors'.
    """
    norm: Tensor = torch.linalg.vector_norm(gradient)
    return gradient * (radius / (norm + 1e-12))


@register
@dataclass(frozen=True, kw_only=True)
class SAR(EntropyMethod):
    """Sharpness-aware and reliable entropy minimisation (Niu et al., ICLR 2023).

        min over norm parameters of  S(x) · max_{‖ε‖₂ ≤ ρ} E(x; Θ + ε),  S(x) = 1[E(x) < E₀]

    with ε̂ = ρ ∇E/‖∇E‖ in first order, E₀ = 0.4 ln C, ρ = 0.05. Samples that are unreliable at Θ + ε̂ are dropped from the
    second loss. When its moving average (0.9) falls below e₀ = 0.2, everything goes back to the initial state. The top
    of the network does not learn.
    Paper: https://arxiv.org/abs/2302.12400. Code of its authors: https://github.com/mr-eggplant/SAR.
    """

    name: ClassVar[str] = "sar"
    title: ClassVar[str] = "SAR"
    order: ClassVar[int] = 200
    paper: ClassVar[str] = "Niu et al., ICLR 2023, https://arxiv.org/abs/2302.12400"
    updates: ClassVar[str] = "affine parameters of the norms below the top"
    passes: ClassVar[str] = "1 + s / 2s (s: share of reliable samples)"
    scope: ClassVar[Scope] = "norms below the top"
    learning_rates: ClassVar[Rates] = {
        "convolutional": (2.5e-4 / 16, 2.5e-4),
        "transformer": (1e-3 / 32, 1e-3),
    }

    reliable: float | None = option(
        "E₀ in units of ln C: samples with less entropy are selected; None: all", 0.4, within=POSITIVE
    )
    sharpness: float | None = option("radius ρ; None: a plain step", 0.05, within=POSITIVE)
    second_filter: bool = option(
        "drop samples that are unreliable at the perturbed weights", True, needs=("sharpness", "reliable")
    )
    recovery: Recovery = option(
        "e₀: go back to the initial state when the moving entropy falls below this; 'relative': below a fifth of the "
        "first batch's; 'asr' or an ASR: selective reset; None: never",
        0.2,
        within=POSITIVE,
    )
    step_without_samples: bool = option(
        "a batch without a selected sample still moves the weights by momentum, as the authors' code does",
        True,
        needs=("reliable", "momentum"),
    )

    @property
    def selects(self) -> bool:
        return self.reliable is not None

    @property
    def needs_samples(self) -> bool:
        return not self.step_without_samples

    def recordable(self, engine: Engine) -> bool:
        return True

    def select(self, engine: Engine, first: Output) -> Selection:
        """Samples with E(x) < E₀."""
        return Selection(self._reliable(engine, first) if self.selects else None, first.labels)

    def _reliable(self, engine: Engine, output: Output) -> Tensor:
        return self.uncertainty(output).detach() < threshold(self.reliable, engine)

    def reselect(self, engine: Engine, second: Output, selection: Selection) -> Selection:
        """The samples that are still selected at the perturbed weights."""
        if not self.selects or not self.second_filter:
            return selection
        reliable = self._reliable(engine, second)
        return replace(selection, mask=reliable if selection.mask is None else selection.mask & reliable)

    def gradient(self, engine: Engine, first: Output, selection: Selection) -> Gradient:
        """∇E at Θ + ε̂, with ε̂ from ∇E at Θ; without sharpness ∇E at Θ."""
        if self.sharpness is None:
            return super().gradient(engine, first, selection)
        loss = self.loss(engine, first, selection)
        gradient = engine.learnables.gradient(loss.total)
        perturbed, second = self.gradient_at(engine, first, selection, worst_step(gradient, self.sharpness))
        return Gradient(second, loss, perturbed, gradient.norm(), second.norm(), forwards=1, backwards=2)

    def gradient_at(
        self, engine: Engine, first: Output, selection: Selection, epsilon: Tensor, part: int | None = None
    ) -> tuple[Loss, Tensor]:
        """The loss at Θ + ε and its gradient, or that of one of its parts."""
        theta = engine.learnables.vector()
        with engine.at(theta + epsilon, back_to=theta):
            second = engine.forward(first.images, grad=True)
            with losses_in_full_precision(second.logits.device):
                loss = self.loss(engine, second, self.reselect(engine, second, selection))
                return loss, engine.learnables.gradient(loss.total if part is None else loss.parts[part])
