"""ROID: weighted self-training that never leaves the source far behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.gradient import GradientMethod, Lesson, Terms, help_text
from wildtta.methods.losses import masked_mean
from wildtta.methods.registry import register
from wildtta.methods.tent import TENT_LEARNING_RATES
from wildtta.parts.jitter import jitter
from wildtta.parts.likelihood import smoothed_prior, soft_likelihood_ratio, stretched, symmetric_cross_entropy
from wildtta.parts.pixels import Level, pixel_scale
from wildtta.randomness import next_generator, no_draws_yet
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
    views (:func:`wildtta.parts.jitter.jitter`). Learning rates below batches of 64 follow Tent's rule: its authors give none.
    """

    name: ClassVar[str] = "roid"
    title: ClassVar[str] = "ROID"
    paper: ClassVar[str] = "Marsden et al., WACV 2024, https://arxiv.org/abs/2306.00650"
    updates: ClassVar[str] = "affine parameters of all norms"
    passes: ClassVar[str] = "1 + s / 2s (s: share of diverse samples)"
    batch_of_one: ClassVar[str] = "yes, with weight 1"
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = TENT_LEARNING_RATES

    nesterov: bool = help_text("Nesterov momentum", True)
    weighting: bool = help_text("weigh and choose samples by certainty and diversity; False: all teach alike", True)
    temperature: float = help_text("T of the weights", 1 / 3)
    prediction_keep: float = help_text("weight of the old value in the average prediction m", 0.9)
    ensembling: float | None = help_text(
        "weight of the adapted weights after each step; None: no pull to the source", 0.99
    )
    consistency: bool = help_text("add the symmetric cross-entropy with a random view", True)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = help_text("makes a view; None: jitter", None)
    prior_correction: bool = help_text("multiply the returned logits by the batch's smoothed class prior", False)
    mean: Level = help_text("pixel mean of the preprocessing (for the jitter); None: the network's, or the range", None)
    std: Level = help_text("pixel std of the preprocessing", None)
    seed: int = help_text("seed of the views", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature must be a positive number, got {self.temperature!r}")
        if not 0 <= self.prediction_keep <= 1:
            raise ValueError(f"prediction_keep must lie between 0 and 1, got {self.prediction_keep!r}")

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

    # -- who teaches, and how much ------------------------------------------------------------------------------------------

    def select(self, engine: Engine, first: Output) -> Lesson:
        logits = first.logits.detach()
        uncertainty = self.uncertainty(first).detach()
        mask = torch.isfinite(uncertainty)
        weights = torch.ones_like(uncertainty)
        if self.weighting:
            similarity = F.cosine_similarity(engine.memory["mean_prediction"][None], logits.softmax(-1), dim=-1)
            distance = stretched(1 - similarity)
            mask = distance >= distance.mean()
            weights = (distance * stretched(-uncertainty) / self.temperature).exp()
        if self.reliable is not None:
            mask = mask & (uncertainty < self.threshold(engine))
        lesson = Lesson(mask, first.labels, weights / len(weights))
        if self.consistency:
            lesson.further_forwards = lesson.further_backwards = mask.sum()
        return lesson

    def remember(self, engine: Engine, first: Output, lesson: Lesson, allowed: Tensor) -> None:
        super().remember(engine, first, lesson, allowed)
        average = engine.memory["mean_prediction"]
        fresh = first.logits.detach().softmax(-1).mean(0)
        moved = self.prediction_keep * average + (1 - self.prediction_keep) * fresh
        average.copy_(torch.where(allowed, moved, average))

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        super().recovered(engine, trigger)
        engine.memory["mean_prediction"].masked_fill_(trigger, 1 / engine.network.classes)

    # -- the loss ------------------------------------------------------------------------------------------------------------

    def terms(self, engine: Engine, output: Output, lesson: Lesson, forming: Lesson) -> Terms:
        terms = super().terms(engine, output, lesson, forming)
        terms.entropy = masked_mean(self.uncertainty(output).detach(), lesson.mask)
        # The base class averages over those who teach; here their weighted sum is divided by the whole batch.
        terms.parts[0] = terms.parts[0] * terms.teachers
        if self.consistency:
            terms.parts.append(self._inconsistency(engine, output, lesson))
        return terms

    def sample_losses(self, engine: Engine, output: Output, lesson: Lesson) -> Tensor:
        assert lesson.weights is not None
        return soft_likelihood_ratio(output.logits) * lesson.weights

    def _inconsistency(self, engine: Engine, output: Output, lesson: Lesson) -> Tensor:
        """Σ over S of w·SCE(x̂, x)/B; only those who teach are viewed."""
        assert lesson.weights is not None
        images, logits, weights = output.images, output.logits, lesson.weights
        if lesson.mask is not None:
            positions = lesson.mask.nonzero().squeeze(1)  # with batch statistics this is the step's one read
            if len(positions) == 0:
                return (logits * 0).sum()
            images, logits, weights = images[positions], logits[positions], weights[positions]
        viewed = engine.forward(self._view(engine, images), grad=True)
        return (symmetric_cross_entropy(viewed.logits, logits) * weights).sum()

    def _view(self, engine: Engine, images: Tensor) -> Tensor:
        generator = next_generator(engine.memory, self.seed, images.device)
        if self.augment is not None:
            return self.augment(images, generator)
        if images.dim() != 4:
            raise ValueError(
                f"ROID's random views are of images [batch, channels, height, width], got inputs of shape "
                f"{tuple(images.shape)}; give augment= (a function of (inputs, generator)) or consistency=False"
            )
        scale = pixel_scale(engine.network.module, images, self.mean, self.std)
        return scale.inputs(jitter(scale.pixels(images), generator))

    def kept_share(self, ensembling: float, batch_size: int) -> float:
        """The same in every step, as in the authors' code, whatever the batch size."""
        return ensembling

    # -- the answer ------------------------------------------------------------------------------------------------------------

    def step(self, engine: Engine, images: Tensor) -> Answer:
        return self._corrected(super().step(engine, images))

    def predict(self, engine: Engine, images: Tensor) -> Answer:
        return self._corrected(super().predict(engine, images))

    def _corrected(self, answer: Answer) -> Answer:
        if self.prior_correction:
            logits = answer.output.logits.detach()
            answer.output = answer.output.answering(logits * smoothed_prior(logits))
        return answer
