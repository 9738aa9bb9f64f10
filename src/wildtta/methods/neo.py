"""NEO: features are re-centred by their running mean; nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from wildtta.methods.base import BatchStatistics, Method, answer_with
from wildtta.methods.options import Range, option
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class NEO(Method):
    """No-optimisation test-time adaptation (Murphy et al., ICLR 2026): the features' mean under the shift is moved to the origin.

        logits = W (z − μ) + b,   μ: mean of all features so far, those of this batch included

    No gradient, no hyper-parameter, no source data. ``rate`` makes it NEO-Continual, for shifts that change:
    μ ← (1 − rate)·μ + rate·(mean of the batch), from 0; its authors take 0.1. Made for ViTs, whose source features have
    a mean near 0.
    Paper: https://arxiv.org/abs/2510.05635. Code of its authors: https://github.com/awesomealex1/NEO.
    """

    name: ClassVar[str] = "neo"
    title: ClassVar[str] = "NEO"
    order: ClassVar[int] = 162
    paper: ClassVar[str] = "Murphy et al., ICLR 2026, https://arxiv.org/abs/2510.05635"
    updates: ClassVar[str] = "the mean of the features"
    batch_of_one: ClassVar[str] = "yes; the first image of all is its own mean"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "after the update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    rate: float | None = option(
        "weight of a batch in a moving mean (NEO-Continual); None: the mean of all samples",
        None,
        within=Range(0, 1, open=True),
    )

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        zeros = torch.zeros(engine.network.feature_width, dtype=engine.dtype, device=engine.device)
        return {"feature_mean": zeros, "feature_count": zeros.new_zeros(())}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        output = engine.forward(images, grad=False)
        memory = engine.memory
        count = memory["feature_count"] + len(images)
        share = len(images) / count if self.rate is None else self.rate
        mean = (1 - share) * memory["feature_mean"] + share * output.features.mean(0)
        sound = torch.isfinite(mean).all()
        engine.keep(sound, {"feature_mean": mean, "feature_count": count})
        answered = self._centred(engine, output)
        return answer_with(engine, answered, forwards=len(images), learned=sound, skipped=~sound)

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        return self._centred(engine, engine.forward(images, grad=False))

    def _centred(self, engine: Engine, output: Output) -> Output:
        return output.answering(engine.head_logits(output.features - engine.memory["feature_mean"]))
