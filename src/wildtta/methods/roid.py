"""ROID: weighted self-training that stays near the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import Rates
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.losses import masked_mean, mean_row, symmetric_cross_entropy
from wildtta.methods.options import FINITE, POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.tent import TENT_LEARNING_RATES
from wildtta.methods.views import MEAN_HELP, STD_HELP, Augment, Level, random_view
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.loop import Loss, Selection
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class ROID(GradientMethod):
    """Robust test-time adaptation for all conditions (Marsden et al., WACV 2024).

        min over norm parameters of  1/B Σ over S of  w(x) [ SLR(x) + SCE(x̂, x) ],   then  θ ← 0.99 θ + 0.01 θ⁰

    SLR = −Σ_c p_c ln(p_c/(1 − p_c)); SCE the symmetric cross-entropy between x and a random view x̂ of it. With d the
    distance 1 − cos(p, m) from the moving average m of predictions and c the negative entropy, both stretched to
    [0, 1] within the batch: w = exp(d·c/T), T = 1/3, and S holds the samples whose d is at least the mean. A batch of one,
    or of equal ones, has weight 1. ``prior_correction`` multiplies the returned logits by the batch's smoothed class prior.
    Paper: https://arxiv.org/abs/2306.00650. Code of its authors: https://github.com/mariodoebler/test-time-adaptation.

    ``augment`` is called as ``augment(images, generator)`` with network inputs and gives as many; None: CoTTA's random
    views (:func:`wildtta.methods.views.jitter`). Learning rates below batches of 64 follow Tent's rule: nobody gives any.
    """

    name: ClassVar[str] = "roid"
    title: ClassVar[str] = "ROID"
    needs_images: ClassVar[bool] = True
    paper: ClassVar[str] = "Marsden et al., WACV 2024, https://arxiv.org/abs/2306.00650"
    order: ClassVar[int] = 70
    passes: ClassVar[str] = "1 + s / 2s (s: share of diverse samples)"
    batch_of_one: ClassVar[str] = "yes, with weight 1"
    learning_rates: ClassVar[Rates] = TENT_LEARNING_RATES

    nesterov: bool = option("Nesterov momentum", True, needs="momentum")
    weighting: bool = option("weigh and select samples by certainty and diversity; False: all alike", True)
    temperature: float = option("T of the weights", 1 / 3, within=POSITIVE, needs="weighting")
    prediction_keep: float = option(
        "weight of the old value in the average prediction m", 0.9, within=SHARE, needs="weighting"
    )
    ensembling: float | None = option(
        "weight of the adapted weights after each step, the rest is the source's; None: off", 0.99, within=SHARE
    )
    consistency: bool = option("add the symmetric cross-entropy with a random view", True)
    augment: Augment | None = option("makes a view; None: jitter", None)
    prior_correction: bool = option("multiply the returned logits by the batch's smoothed class prior", False)
    mean: Level = option(MEAN_HELP, None, within=FINITE)
    std: Level = option(STD_HELP, None, within=POSITIVE)
    seed: int = option("seed of the views", 0)

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        return {} if images.dim() == 4 else {"augment": lambda inputs, generator: inputs}

    @property
    def selects(self) -> bool:
        return True

    def mixes_samples(self, engine: Engine) -> bool:
        return engine.batch_statistics or self.prior_correction

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        classes = engine.network.classes
        uniform = torch.full((classes,), 1 / classes, dtype=engine.dtype, device=engine.device)
        return {**super().declare(engine), "mean_prediction": uniform, **no_draws_yet()}

    # -- which samples, and how much ------------------------------------------------------------------------------------------

    def select(self, engine: Engine, first: Output) -> Selection:
        logits = first.logits.detach()
        uncertainty = self.uncertainty(first).detach()
        assert first.usable is not None
        usable = first.usable
        mask = usable
        weights = torch.ones_like(uncertainty)
        if self.weighting:
            similarity = F.cosine_similarity(engine.memory["mean_prediction"][None], logits.softmax(-1), dim=-1)
            distance = stretched(1 - similarity, usable)
            mask = usable & (distance >= masked_mean(distance, usable))
            weights = (distance * stretched(-uncertainty, usable) / self.temperature).exp()
        selection = Selection(mask, first.labels, weights / usable.sum().clamp(min=1))
        if self.consistency:
            selection.further_forwards = selection.further_backwards = mask.sum()
        return selection

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        average = engine.memory["mean_prediction"]
        fresh = mean_row(first.logits.detach().softmax(-1), first.usable)
        moved = self.prediction_keep * average + (1 - self.prediction_keep) * fresh
        engine.keep(allowed, {"mean_prediction": moved})

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        engine.memory["mean_prediction"].masked_fill_(trigger, 1 / engine.network.classes)

    # -- the loss ------------------------------------------------------------------------------------------------------------

    def loss(self, engine: Engine, output: Output, selection: Selection) -> Loss:
        loss = super().loss(engine, output, selection)
        # The base class averages over the selected samples; here their weighted sum is divided by the whole batch.
        loss.parts[0] = loss.parts[0] * loss.selected
        if self.consistency:
            loss.parts.append(self._inconsistency(engine, output, selection))
        return loss

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        assert selection.weights is not None
        return soft_likelihood_ratio(output.logits) * selection.weights

    def _inconsistency(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        """Σ over S of w·SCE(x̂, x)/B; only selected samples are viewed."""
        assert selection.weights is not None
        images, logits, weights = output.images, output.logits, selection.weights
        if selection.mask is not None:
            positions = engine.positions(selection.mask)  # with batch statistics a read of its own
            if len(positions) == 0:
                return (logits * 0).sum()
            images, logits, weights = images[positions], logits[positions], weights[positions]
        viewed = engine.forward(self._view(engine, images), grad=True)
        return (symmetric_cross_entropy(viewed.logits, logits) * weights).sum()

    def _view(self, engine: Engine, images: Tensor) -> Tensor:
        if self.augment is None and images.dim() != 4:
            raise ValueError(
                f"ROID's random views are of images [batch, channels, height, width], got inputs of shape "
                f"{tuple(images.shape)}; give augment= (a function of (inputs, generator)) or consistency=False"
            )
        generator = next_generator(engine.memory, self.seed, images.device)
        return random_view(engine.network.module, images, generator, self.augment, self.mean, self.std)

    def updated(self, engine: Engine, theta: Tensor) -> Tensor:
        """Weight ensembling with the source, the same in every step whatever the batch size, as in the authors' code."""
        if self.ensembling is None:
            return theta
        assert engine.source is not None
        return self.ensembling * theta + (1 - self.ensembling) * engine.source

    # -- the answer ------------------------------------------------------------------------------------------------------------

    def step(self, engine: Engine, images: Tensor) -> Answer:
        answer = super().step(engine, images)
        answer.output = self._corrected(answer.output)
        return answer

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        return self._corrected(super().predicted(engine, images))

    def _corrected(self, output: Output) -> Output:
        logits = output.logits.detach()
        return output.answering(logits * smoothed_prior(logits)) if self.prior_correction else output


def soft_likelihood_ratio(logits: Tensor, *, highest: float = 0.99, epsilon: float = 1e-5) -> Tensor:
    """SLR, −Σ_c p_c ln(p_c/(1 − p_c) + ε) per sample, with p cut at ``highest``: its gradient does not fade with confidence."""
    probabilities = logits.softmax(-1).clamp(max=highest)
    return -(probabilities * (probabilities / (1 - probabilities) + epsilon).log()).sum(-1)


def stretched(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Values moved and scaled so that those where ``mask`` holds fill [0, 1]; all 0 where these are all the same."""
    mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    low, high = values.masked_fill(~mask, torch.inf).min(), values.masked_fill(~mask, -torch.inf).max()
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
