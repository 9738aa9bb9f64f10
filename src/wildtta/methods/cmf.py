"""CMF: ROID whose anchor is a filtered average of the weights instead of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from wildtta.methods.options import POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.roid import ROID
from wildtta.step.loop import Selection
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_REFERENCE_SIZE = 38_400
"""Norm parameters of a ViT-B/16, for which q was chosen."""
_LEAST_TRUST, _FULL_TRUST = 0.89, 0.9999


@register
@dataclass(frozen=True, kw_only=True)
class CMF(ROID):
    """Continual momentum filtering (Lee and Chang, ICLR 2024): ROID's loss, and a Kalman filter over the weights.

        h ← α h + (1 − α) θ⁰,     v ← α² v + q        (predict)
        β = r/(v + r),  r = 1 − q
        h ← β h + (1 − β) θ,      v ← β v             (update)
        θ ← γ θ + (1 − γ) h                           (ensemble)

    after each step of ROID's optimizer: h is a source model that drifts with the stream. α = γ = 0.99; q = 0.005 times
    the number of learned values over 38,400. As in the code, β is at least 0.89, and 1 from 0.9999 on.
    Paper: https://openreview.net/forum?id=BllUWdpIOA. Code, after its authors':
    https://github.com/mariodoebler/test-time-adaptation.
    """

    name: ClassVar[str] = "cmf"
    title: ClassVar[str] = "CMF"
    order: ClassVar[int] = 75
    paper: ClassVar[str] = "Lee and Chang, ICLR 2024, https://openreview.net/forum?id=BllUWdpIOA"
    updates: ClassVar[str] = "affine parameters of all norms; a filtered copy of them"

    ensembling: float | None = option(
        "γ: weight of the adapted weights after each step, the rest is the filtered model's; None: off",
        0.99,
        within=SHARE,
    )
    filter_keep: float = option(
        "α: weight of the filtered model against the source, before each update", 0.99, within=SHARE, needs="ensembling"
    )
    process_noise: float = option(
        "q: how fast the filtered model may drift, for 38,400 learned values",
        0.005,
        within=POSITIVE,
        needs="ensembling",
    )

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        assert engine.source is not None
        state = {"filtered": engine.source.clone(), "filter_variance": engine.source.new_zeros(())}
        return {**super().declare(engine), **state}

    def updated(self, engine: Engine, theta: Tensor) -> Tensor:
        if self.ensembling is None:
            return theta
        filtered, _ = self._filter(engine, theta)
        return self.ensembling * theta + (1 - self.ensembling) * filtered

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        super().remember(engine, first, selection, allowed)
        if self.ensembling is not None:
            engine.keep(allowed, dict(zip(("filtered", "filter_variance"), engine.companions["cmf"], strict=True)))

    def _filter(self, engine: Engine, theta: Tensor) -> tuple[Tensor, Tensor]:
        """h and v after a step to ``theta``; kept aside until the step has proved sound (:meth:`remember`)."""
        assert engine.source is not None
        q = self.process_noise * engine.learnables.size / _REFERENCE_SIZE
        predicted = self.filter_keep * engine.memory["filtered"] + (1 - self.filter_keep) * engine.source
        variance = self.filter_keep**2 * engine.memory["filter_variance"] + q
        trust = ((1 - q) / (variance + 1 - q)).clamp(min=_LEAST_TRUST)
        trust = torch.where(trust < _FULL_TRUST, trust, torch.ones_like(trust))
        filtered = trust * predicted + (1 - trust) * theta
        engine.companions["cmf"] = filtered, trust * variance
        return filtered, trust * variance

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        super().recovered(engine, trigger)
        assert engine.source is not None
        memory = engine.memory
        memory["filtered"].copy_(torch.where(trigger, engine.source, memory["filtered"]))
        memory["filter_variance"].mul_(~trigger)
