"""Steady, wildtta's own method: SAR²'s regularisers in one pass, with a bounded step, a source pull and a class cap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from wildtta.methods.options import POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.sar2.method import SAR2
from wildtta.methods.sar2.redundancy import Normalisation
from wildtta.step.loop import Selection
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine

_LARGEST_CAP = 0.3
_WINDOW_PER_CLASS, _SMALLEST_WINDOW = 5, 1000
_EPSILON = 2.5e-8
"""Keeps the bounded gradient finite where it is 0."""


def capped_weights(shares: Tensor, labels: Tensor, multiple: float) -> Tensor:
    """w = min(1, cap / p_i) of each sample, [B], from the classes' shares p [C] and its predicted class i.

    cap = ``multiple``/C, at most 0.3: together the samples of one class never weigh more than the cap.
    """
    cap = min(_LARGEST_CAP, multiple / len(shares))
    return (cap / shares[labels]).clamp(max=1.0)


def followed_shares(shares: Tensor, labels: Tensor) -> Tensor:
    """p ← k·p + (1−k)·(this batch's shares), k = exp(−B/window), with a window of 5·C samples, at least 1000.

    In a class-ordered stream such a window spans many classes.
    """
    classes = torch.arange(len(shares), device=shares.device)
    present = (labels[:, None] == classes).to(shares.dtype).mean(0)
    keep = math.exp(-len(labels) / max(_SMALLEST_WINDOW, _WINDOW_PER_CLASS * len(shares)))
    return keep * shares + (1 - keep) * present


@register
@dataclass(frozen=True, kw_only=True)
class Steady(SAR2):
    """wildtta's own method, the default of :func:`wildtta.adapt`: SAR²'s loss in one pass, made safe to leave on.

        g = ∇[ S(x)·w(x)·E + α·R(C^t) + β·I(C^t) ],   g ← g · min(1, b‖θ₀‖/‖g‖),   θ ← (1−p)(θ − η g) + p θ₀

    What it changes in SAR²:

    - One pass: no sharpness (``sharpness=0.05`` brings it back), no momentum, 40 times the learning rate.
    - α = 5·10³/D and β = 100. R is over columns on every network, and ζ is a tenth of the classes (at least
      10, at most half of them).
    - The gradient is at most b = 0.045 times as long as the source weights (``gradient_bound``): α in units
      of 1/D does not fit every network.
    - After every 64 samples the weights go 4 % of the way back to the source (``source_pull``): what was
      learned for one corruption harms the next. This is ROID's weight ensembling
      (https://arxiv.org/abs/2306.00650).
    - No class weighs more than ten times its even share in the entropy term (``class_cap``). Entropy
      minimisation collapses because the class predicted most has the most reliable samples; the bank has one
      row per class however often it is predicted, and does not see that.

    The measurements are in docs/results/tiny-imagenet.md.
    """

    name: ClassVar[str] = "steady"
    title: ClassVar[str] = "Steady (ours)"
    order: ClassVar[int] = 300
    paper: ClassVar[str] = "this project, after SAR² and ROID"
    passes: ClassVar[str] = "1 / 1"

    lr_scale: float = option("multiplies SAR²'s learning rate, or the given one", 40.0, within=POSITIVE)
    momentum: float = option("SGD momentum", 0.0, within=SHARE)
    sharpness: float | None = option("radius ρ; None: one pass", None, within=POSITIVE)
    redundancy: float | None = option("weight of R in units of 1/D; None: off", 5e3, within=POSITIVE)
    inequity: float | None = option("weight β of I; None: off", 100.0, within=POSITIVE)
    gradient_bound: float | None = option(
        "longest gradient, in units of the source weights' norm; None: no bound", 0.045, within=POSITIVE
    )
    source_pull: float | None = option(
        "share of the way back to the source per 64 samples; None: off", 0.04, within=SHARE
    )
    class_cap: float | None = option(
        "most that one predicted class may weigh in the entropy term, in units of 1/C; None: no cap",
        10.0,
        within=POSITIVE,
        needs="entropy",
    )

    def normalisation_of(self, network: Network) -> Normalisation:
        return "columns" if self.normalisation == "auto" else self.normalisation

    def warmup_rows(self, classes: int) -> int:
        return self.warmup if self.warmup is not None else min(max(10, classes // 10), classes // 2)

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        if self.gradient_bound is not None and engine.source_norm == 0:
            raise ValueError(
                f"gradient_bound={self.gradient_bound:g} measures the gradient by the weights that learn, but all "
                f"{engine.learnables.size} of them are zero at the start, so that nothing could be learned; give "
                "gradient_bound=None, or clip_norm="
            )
        state = super().declare(engine)
        if self.class_cap is not None:
            classes = engine.network.classes
            state["class_shares"] = torch.full((classes,), 1 / classes, dtype=engine.dtype, device=engine.device)
        return state

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        losses = super().sample_losses(engine, output, selection)
        if self.class_cap is None:
            return losses
        return losses * capped_weights(engine.memory["class_shares"], selection.labels, self.class_cap)

    def adjusted(self, engine: Engine, gradient: Tensor, theta: Tensor) -> Tensor:
        gradient = super().adjusted(engine, gradient, theta)
        if self.gradient_bound is None:
            return gradient
        longest = self.gradient_bound * engine.source_norm
        scale: Tensor = (longest / (gradient.norm() + _EPSILON)).clamp(max=1.0)
        return gradient * scale

    def updated(self, engine: Engine, theta: Tensor) -> Tensor:
        if self.source_pull is None:
            return theta
        assert engine.source is not None
        # The same share per 64 samples, whether they come together or one by one.
        kept = float((1 - self.source_pull) ** ((engine.batch_size or 64) / 64))
        return kept * theta + (1 - kept) * engine.source

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        super().remember(engine, first, selection, allowed)
        if self.class_cap is not None:
            fresh = followed_shares(engine.memory["class_shares"], first.labels)
            engine.keep(allowed, {"class_shares": fresh})

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        super().recovered(engine, trigger)
        if self.class_cap is not None:
            engine.memory["class_shares"].masked_fill_(trigger, 1 / engine.network.classes)
