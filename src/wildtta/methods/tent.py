"""Tent, and InfoMax as Tent with a diversity term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wildtta.methods.gradient import GradientMethod, help_text
from wildtta.methods.registry import register

TENT_LEARNING_RATES = {"convolutional": (2.5e-4 / 32, 2.5e-4), "transformer": (1e-3 / 64, 1e-3)}


@register
@dataclass(frozen=True, kw_only=True)
class Tent(GradientMethod):
    """Entropy minimisation on every batch (Wang et al., ICLR 2021).

        min over norm parameters of mean_b E(x_b),  E(x) = −Σ_c p_c ln p_c

    One SGD step per batch over all affine norm parameters; BatchNorm uses the batch's statistics.
    Paper: https://arxiv.org/abs/2006.10726. Code of its authors: https://github.com/DequanWang/tent.
    """

    name: ClassVar[str] = "tent"
    title: ClassVar[str] = "Tent"
    paper: ClassVar[str] = "Wang et al., ICLR 2021, https://arxiv.org/abs/2006.10726"
    updates: ClassVar[str] = "affine parameters of all norms"
    capturable: ClassVar[bool] = True
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = TENT_LEARNING_RATES


@register
@dataclass(frozen=True, kw_only=True)
class InfoMax(Tent):
    """Information maximisation: Tent's loss less the entropy of the mean prediction (Liang et al., SHOT, ICML 2020).

        mean_b H(p_b) − w · H(mean_b p_b),  H(p) = −Σ_c p_c ln(p_c + 1e-5)

    Diversity acts on averaged *outputs*: with a batch smaller than the number of classes it flattens confidence.
    Paper: https://arxiv.org/abs/2002.08546. Code of its authors: https://github.com/tim-learn/SHOT.
    """

    name: ClassVar[str] = "infomax"
    title: ClassVar[str] = "InfoMax"
    paper: ClassVar[str] = "Liang et al., ICML 2020, https://arxiv.org/abs/2002.08546"

    diversity: float | None = help_text("weight of the diversity term", 1.0)
