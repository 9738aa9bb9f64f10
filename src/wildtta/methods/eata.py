"""EATA, and ETA: EATA without its memory of the source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.gradient import GradientMethod, Lesson, Terms, help_text
from wildtta.methods.losses import masked_mean
from wildtta.methods.registry import register
from wildtta.methods.tent import TENT_LEARNING_RATES
from wildtta.parts.fisher import fisher_diagonal
from wildtta.parts.source_images import SourceImages
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class ETA(GradientMethod):
    """Efficient test-time adaptation (Niu et al., ICML 2022): reliable and non-redundant samples teach.

        min over norm parameters of mean over S of  e^{E₀ − E(x)} · E(x),
        S = { x : E(x) < E₀  and  |cos(p(x), m)| < d },   m ← 0.9 m + 0.1 · mean_S p

    with E₀ = 0.4 ln C, d = 0.05, and m the moving average of the predictions that taught (none before the first: then
    every reliable sample teaches). A batch without a teacher changes nothing. With ``recovery`` the plain entropy of the
    teachers is watched, whose threshold e₀ is in nats, and a recovery forgets m too.
    Paper: https://arxiv.org/abs/2204.02610. Code of its authors: https://github.com/mr-eggplant/EATA.
    """

    name: ClassVar[str] = "eta"
    title: ClassVar[str] = "ETA"
    paper: ClassVar[str] = "Niu et al., ICML 2022, https://arxiv.org/abs/2204.02610"
    updates: ClassVar[str] = "affine parameters of all norms"
    passes: ClassVar[str] = "1 / s (s: share of reliable, non-redundant samples)"
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = TENT_LEARNING_RATES

    reliable: float | None = help_text("E₀ in units of ln C; None: all samples are reliable", 0.4)
    redundant: float = help_text("d: samples this similar (cosine) to the average prediction do not teach", 0.05)
    prediction_keep: float = help_text("weight of the old value in the average prediction m", 0.9)
    coast: bool = help_text("a batch without teachers still moves the weights by momentum", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.redundant <= 1:
            raise ValueError(f"redundant must lie in (0, 1] (a cosine), got {self.redundant!r}")
        if not 0 <= self.prediction_keep <= 1:
            raise ValueError(f"prediction_keep must lie between 0 and 1, got {self.prediction_keep!r}")

    @property
    def selects(self) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        none_yet = torch.full((engine.network.classes,), math.nan, dtype=engine.dtype, device=engine.device)
        return {**super().declare(engine), "mean_prediction": none_yet}

    def select(self, engine: Engine, first: Output) -> Lesson:
        uncertainty = self.uncertainty(first).detach()
        mask = torch.isfinite(uncertainty)
        weights = None
        if self.reliable is not None:
            margin = self.threshold(engine)
            mask = uncertainty < margin
            weights = (margin - uncertainty).exp()
        average = engine.memory["mean_prediction"]
        similarity = F.cosine_similarity(average[None], first.logits.detach().softmax(-1), dim=-1)
        mask = mask & (average.isnan().any() | (similarity.abs() < self.redundant))
        return Lesson(mask, first.labels, weights)

    def terms(self, engine: Engine, output: Output, lesson: Lesson, forming: Lesson) -> Terms:
        terms = super().terms(engine, output, lesson, forming)
        terms.entropy = masked_mean(self.uncertainty(output).detach(), lesson.mask)
        return terms

    def remember(self, engine: Engine, first: Output, lesson: Lesson, allowed: Tensor) -> None:
        super().remember(engine, first, lesson, allowed)
        assert lesson.mask is not None
        average = engine.memory["mean_prediction"]
        probabilities = first.logits.detach().softmax(-1)
        fresh = torch.where(lesson.mask[:, None], probabilities, 0.0).sum(0) / lesson.mask.sum().clamp(min=1)
        moved = self.prediction_keep * average + (1 - self.prediction_keep) * fresh
        updated = torch.where(average.isnan(), fresh, moved)
        average.copy_(torch.where(allowed & lesson.mask.any(), updated, average))

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        super().recovered(engine, trigger)
        engine.memory["mean_prediction"].masked_fill_(trigger, math.nan)


@register
@dataclass(frozen=True, kw_only=True)
class EATA(ETA):
    """Efficient anti-forgetting test-time adaptation (Niu et al., ICML 2022): ETA held near the source.

        ETA's loss + β Σ_i F_i (θ_i − θ_i⁰)²

    with β = 2000 and F the diagonal Fisher information of the source, from ``fisher_images`` (normalised as test images
    are; its authors take 2000 clean ones) with pseudo labels, in batches of 64. It is computed once, before the first
    batch is learned from, and belongs to the saved state: an adapter that loads one needs no source images. The passes
    over source images are not counted in ``cost``. Without source images, use ``"eta"``.
    Paper: https://arxiv.org/abs/2204.02610. Code of its authors: https://github.com/mr-eggplant/EATA.
    """

    name: ClassVar[str] = "eata"
    title: ClassVar[str] = "EATA"
    needs_source: ClassVar[str] = "images, for the Fisher information"

    fisher: float = help_text("weight β of the Fisher penalty", 2000.0)
    fisher_batch: int = help_text("batch size of the Fisher information, whose scale depends on it", 64)
    fisher_images: SourceImages | None = field(
        default=None,
        compare=False,
        repr=False,
        metadata={"help": "source images: a tensor, or an iterable of batches (a data loader)"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.fisher > 0 and math.isfinite(self.fisher)):
            raise ValueError(f"fisher must be a positive number, got {self.fisher!r}; without the penalty use 'eta'")
        if self.fisher_batch < 1:
            raise ValueError(f"fisher_batch must be at least 1, got {self.fisher_batch!r}")

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        return {"fisher_images": images}

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        learnables = engine.learnables
        known = engine.memory.get("fisher")
        if known is None:
            fisher = torch.full((learnables.size,), math.nan, dtype=learnables.dtype, device=engine.device)
        else:  # it tells of the source weights, which do not change
            fisher = known.to(engine.device, learnables.dtype, copy=True)
        return {**super().declare(engine), "fisher": fisher}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if engine.host_steps == 0 and bool(engine.memory["fisher"].isnan().any()):
            engine.memory["fisher"].copy_(self._fisher_of_source(engine))
        return super().step(engine, images)

    def _fisher_of_source(self, engine: Engine) -> Tensor:
        if self.fisher_images is None:
            raise ValueError(
                "EATA weighs its parameters by the Fisher information of source images, and there are none: give "
                "fisher_images= (a tensor, or an iterable of batches; about 2000 clean images, normalised like the test "
                "images), or load a state that was saved by an adapter that had them. Without source images use 'eta'"
            )
        return fisher_diagonal(engine, self.fisher_images, self.fisher_batch)

    def penalty_gradient(self, engine: Engine, theta: Tensor) -> Tensor | None:
        assert engine.source is not None
        return 2 * self.fisher * engine.memory["fisher"] * (theta - engine.source)
