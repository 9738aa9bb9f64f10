"""SAR²: SAR with redundancy and inequity of class centroids: with our defaults, to the paper's letter, and in two lower costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from wildtta.methods.gradient import (
    CLASS_LIMIT_HELP,
    CLIP_RATIO_HELP,
    ENSEMBLING_HELP,
    ENTROPY_HELP,
    INEQUITY_HELP,
    MOMENTUM_HELP,
    REDUNDANCY_HELP,
    SAR2_LEARNING_RATES,
    help_text,
)
from wildtta.methods.registry import register
from wildtta.methods.sar import SAR


@register
@dataclass(frozen=True, kw_only=True)
class SAR2(SAR):
    """SAR with two regularisers that keep features from collapsing ("Adapt in the Wild").

        min over norm parameters of  S(x)·E^SA + α·R^SA(C^t) + β·I^SA(C^t)

    C^t holds the live centroids of the classes predicted in this batch and the bank's rows of all others seen before.
    R(Z) = 1/(D−1) Σ_{i≠j} 𝒞_ij² with 𝒞 the correlation matrix of the rows; I(Z) = ln C − H(softmax(h(mean row))).
    One ε from the whole loss; nothing learns until C^t has ζ rows. The bank is refreshed after the step with
    c̃_i ← (1−λ) c̃_i + λ c_i, λ = 0.9, from the first pass. R and I act also where nothing is reliable.

    What is not the paper's (``sar2-paper`` is):

    - No momentum (``momentum=0``): R says where to go from here, and with momentum the step overshoots. All terms weigh ten
      times as much in its place, which is what momentum 0.9 adds up to.
    - Beside that, all terms weigh four times as much (so that ``entropy=40``), as if the learning rate were four times the
      paper's, and R and I more beside the entropy: α = 40 · 5·10³/D, β = 40 · 100 (``redundancy``, ``inequity``).
    - A gradient is no longer than 1.8 times the norm of the source weights (``clip_ratio``): α in units of 1/D does not fit
      every network, and where it is too much for one, its step is as long, beside its weights, as that of the others.
    - After every 64 samples the weights go 4 % of the way back to the source (``ensembling``): what was learned for one
      corruption harms the next.
    - No class may weigh more than ten times its even share in the entropy term (``class_limit``): the bank has one row per class
      however often it is predicted, and does not see a class that takes over.

    The measurements are in docs/results/tiny-imagenet.md.
    """

    name: ClassVar[str] = "sar2"
    title: ClassVar[str] = "SAR²"
    paper: ClassVar[str] = "Niu et al., Adapt in the Wild (SAR²), extension of https://arxiv.org/abs/2302.12400"
    passes: ClassVar[str] = "2 / 2"
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = SAR2_LEARNING_RATES

    entropy: float = help_text(ENTROPY_HELP, 40.0)
    redundancy: float | None = help_text(REDUNDANCY_HELP, 2e5)
    inequity: float | None = help_text(INEQUITY_HELP, 4e3)
    bank: bool = help_text("R and I on the class-centroid bank; False: on the live batch", True)
    momentum: float = help_text(MOMENTUM_HELP, 0.0)
    clip_ratio: float | None = help_text(CLIP_RATIO_HELP, 1.8)
    ensembling: float | None = help_text(ENSEMBLING_HELP, 0.96)
    class_limit: float | None = help_text(CLASS_LIMIT_HELP, 10.0)


@register
@dataclass(frozen=True, kw_only=True)
class SAR2Paper(SAR2):
    """SAR² to the letter of the paper: momentum 0.9, weights 1, α = 10³/D and β = 50; no bound, no pull, no limit for a class."""

    name: ClassVar[str] = "sar2-paper"
    title: ClassVar[str] = "SAR² (as published)"

    entropy: float = help_text(ENTROPY_HELP, 1.0)
    redundancy: float | None = help_text(REDUNDANCY_HELP, 1e3)
    inequity: float | None = help_text(INEQUITY_HELP, 50.0)
    momentum: float = help_text(MOMENTUM_HELP, 0.9)
    clip_ratio: float | None = help_text(CLIP_RATIO_HELP, None)
    ensembling: float | None = help_text(ENSEMBLING_HELP, None)
    class_limit: float | None = help_text(CLASS_LIMIT_HELP, None)


@register
@dataclass(frozen=True, kw_only=True)
class SAR2Efficient(SAR2):
    """SAR²† of the paper: only reliable samples form centroids too, so that the second pass runs on them alone."""

    name: ClassVar[str] = "sar2-efficient"
    title: ClassVar[str] = "SAR²†"
    passes: ClassVar[str] = "1 + s / 2s (s: share of reliable samples)"

    centroids: Literal["all", "reliable"] = help_text("samples that form centroids", "reliable")


@register
@dataclass(frozen=True, kw_only=True)
class SAR2Single(SAR2):
    """SAR² without the sharpness pass: one forward and one backward, Tent's price. R and I do the stabilising."""

    name: ClassVar[str] = "sar2-single"
    title: ClassVar[str] = "SAR² (single pass)"
    passes: ClassVar[str] = "1 / 1"

    sharpness: float | None = help_text("radius ρ; None: a plain step", None)
