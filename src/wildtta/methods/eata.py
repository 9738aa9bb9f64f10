"""EATA, and ETA: EATA without its penalty on leaving the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import Rates
from wildtta.methods.gradient import EntropyMethod, threshold
from wildtta.methods.losses import mean_row
from wildtta.methods.options import AT_LEAST_ONE, POSITIVE, SHARE, Range, option
from wildtta.methods.registry import register
from wildtta.methods.source_images import SourceImages, source_batches
from wildtta.methods.tent import TENT_LEARNING_RATES
from wildtta.step.loop import Selection
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class ETA(EntropyMethod):
    """Efficient test-time adaptation (Niu et al., ICML 2022): reliable and non-redundant samples are selected.

        min over norm parameters of mean over S of  e^{E₀ − E(x)} · E(x),
        S = { x : E(x) < E₀  and  |cos(p(x), m)| < d },   m ← 0.9 m + 0.1 · mean_S p

    with E₀ = 0.4 ln C, d = 0.05, and m the moving average of the selected samples' predictions (before there is one, every
    reliable sample is selected). A batch without a selected sample changes nothing. ``recovery`` watches the plain
    entropy of the selected samples, in nats, and forgets m too.
    Paper: https://arxiv.org/abs/2204.02610. Code of its authors: https://github.com/mr-eggplant/EATA.
    """

    name: ClassVar[str] = "eta"
    title: ClassVar[str] = "ETA"
    paper: ClassVar[str] = "Niu et al., ICML 2022, https://arxiv.org/abs/2204.02610"
    order: ClassVar[int] = 30
    passes: ClassVar[str] = "1 / s (s: share of reliable, non-redundant samples)"
    learning_rates: ClassVar[Rates] = TENT_LEARNING_RATES

    reliable: float | None = option("E₀ in units of ln C; None: all samples are reliable", 0.4, within=POSITIVE)
    redundant: float = option(
        "d: samples this similar (cosine) to the average prediction are left out", 0.05, within=Range(0, 1, open=True)
    )
    prediction_keep: float = option("weight of the old value in the average prediction m", 0.9, within=SHARE)
    step_without_samples: bool = option(
        "a batch without a selected sample still moves the weights by momentum", False, needs="momentum"
    )

    @property
    def selects(self) -> bool:
        return True

    @property
    def needs_samples(self) -> bool:
        return not self.step_without_samples

    def recordable(self, engine: Engine) -> bool:
        return type(self) is ETA  # methods that extend it also look at things on the host

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        none_yet = torch.full((engine.network.classes,), math.nan, dtype=engine.dtype, device=engine.device)
        return {**super().declare(engine), "mean_prediction": none_yet}

    def select(self, engine: Engine, first: Output) -> Selection:
        uncertainty = self.uncertainty(first).detach()
        mask = torch.isfinite(uncertainty)
        weights = None
        if self.reliable is not None:
            margin = threshold(self.reliable, engine)
            mask = uncertainty < margin
            weights = (margin - uncertainty).exp()
        average = engine.memory["mean_prediction"]
        similarity = F.cosine_similarity(average[None], first.logits.detach().softmax(-1), dim=-1)
        mask = mask & (average.isnan().any() | (similarity.abs() < self.redundant))
        return Selection(mask, first.labels, weights)

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        mask = selection.mask
        assert mask is not None
        average = engine.memory["mean_prediction"]
        fresh = mean_row(first.logits.detach().softmax(-1), mask)
        moved = self.prediction_keep * average + (1 - self.prediction_keep) * fresh
        engine.keep(allowed & mask.any(), {"mean_prediction": torch.where(average.isnan(), fresh, moved)})

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
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
    order: ClassVar[int] = 40
    needs_source: ClassVar[str] = "images, for the Fisher information"

    fisher: float = option("weight β of the Fisher penalty", 2000.0, within=POSITIVE)
    fisher_batch: int = option(
        "batch size of the Fisher information, whose scale depends on it", 64, within=AT_LEAST_ONE
    )
    fisher_images: SourceImages | None = option(
        "source images: a tensor, or an iterable of batches (a data loader)", None, data=True
    )

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
            if self.fisher_images is None:
                raise ValueError(
                    "EATA weighs its parameters by the Fisher information of source images, and there are none: give "
                    "fisher_images= (a tensor, or an iterable of batches; about 2000 clean images, normalised like the "
                    "test images), or load a state of an adapter that had them. Without source images use 'eta'"
                )
            engine.memory["fisher"].copy_(fisher_diagonal(engine, self.fisher_images, self.fisher_batch))
        return super().step(engine, images)

    def adjusted(self, engine: Engine, gradient: Tensor, theta: Tensor) -> Tensor:
        assert engine.source is not None
        penalty = 2 * self.fisher * engine.memory["fisher"] * (theta - engine.source)
        return super().adjusted(engine, gradient, theta) + penalty


def fisher_diagonal(engine: Engine, source: SourceImages, batch_size: int) -> Tensor:
    """F_i = mean over batches of (∂/∂θ_i mean_b CE(f(x_b), argmax f(x_b)))² at the present weights (EATA, equation 9).

    The square is of a batch's mean gradient, so its scale depends on the batch size (D17: 64): with larger
    batches gradients cancel and F falls.
    """
    total = torch.zeros(engine.learnables.size, dtype=engine.learnables.dtype, device=engine.device)
    number = 0
    for images in source_batches(source, batch_size, engine.device, "Fisher information of the source"):
        output = engine.forward(images, grad=True)
        with losses_in_full_precision(engine.device):
            total += engine.learnables.gradient(F.cross_entropy(output.logits, output.labels)).square()
        number += 1
    if number == 0:
        raise ValueError("the source images for EATA's Fisher information are empty; give some (its authors take 2000)")
    if not bool(torch.isfinite(total).all()):
        raise ValueError(
            "the Fisher information of the source images is not finite: there are NaN or infinite values in the images "
            "or in the network's answers to them"
        )
    return total / number
