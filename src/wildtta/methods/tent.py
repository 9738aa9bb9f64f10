"""Tent, and InfoMax: Tent with a diversity term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from wildtta.methods.base import Rates
from wildtta.methods.gradient import EntropyMethod
from wildtta.methods.losses import mean_row
from wildtta.methods.options import POSITIVE, option
from wildtta.methods.registry import register
from wildtta.step.loop import Loss, Selection
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

TENT_LEARNING_RATES: Rates = {"convolutional": (2.5e-4 / 32, 2.5e-4), "transformer": (1e-3 / 64, 1e-3)}
_EPSILON = 1e-5
"""Inside InfoMax's logarithms, as its authors have it."""


@register
@dataclass(frozen=True, kw_only=True)
class Tent(EntropyMethod):
    """Entropy minimisation on every batch (Wang et al., ICLR 2021).

        min over norm parameters of mean_b E(x_b),  E(x) = −Σ_c p_c ln p_c

    One SGD step per batch over all affine norm parameters; BatchNorm uses the batch's statistics.
    Paper: https://arxiv.org/abs/2006.10726. Code of its authors: https://github.com/DequanWang/tent.
    """

    name: ClassVar[str] = "tent"
    title: ClassVar[str] = "Tent"
    order: ClassVar[int] = 10
    paper: ClassVar[str] = "Wang et al., ICLR 2021, https://arxiv.org/abs/2006.10726"
    learning_rates: ClassVar[Rates] = TENT_LEARNING_RATES

    def recordable(self, engine: Engine) -> bool:
        return True


@register
@dataclass(frozen=True, kw_only=True)
class InfoMax(Tent):
    """Information maximisation: Tent's loss minus the entropy of the mean prediction (Liang et al., SHOT, ICML 2020).

        mean_b H(p_b) − w · H(mean_b p_b),  H(p) = −Σ_c p_c ln(p_c + 1e-5)

    Diversity acts on averaged *outputs*: with a batch smaller than the number of classes it flattens confidence.
    Paper: https://arxiv.org/abs/2002.08546. Code of its authors: https://github.com/tim-learn/SHOT.
    """

    name: ClassVar[str] = "infomax"
    title: ClassVar[str] = "InfoMax"
    order: ClassVar[int] = 20
    paper: ClassVar[str] = "Liang et al., ICML 2020, https://arxiv.org/abs/2002.08546"

    diversity: float = option("weight w of the diversity term", 1.0, within=POSITIVE)

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        smoothed = self.objective == "entropy"
        return smoothed_entropy(output.logits.softmax(-1)) if smoothed else self.uncertainty(output)

    def loss(self, engine: Engine, output: Output, selection: Selection) -> Loss:
        loss = super().loss(engine, output, selection)
        loss.parts.append(-self.diversity * smoothed_entropy(mean_row(output.logits.softmax(-1), selection.mask)))
        return loss


def smoothed_entropy(probabilities: Tensor) -> Tensor:
    """−Σ_c p_c ln(p_c + 1e-5)."""
    return -(probabilities * (probabilities + _EPSILON).log()).sum(-1)
