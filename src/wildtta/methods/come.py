"""COME: conservative entropy minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from wildtta.methods.options import option
from wildtta.methods.registry import register
from wildtta.methods.tent import Tent


@register
@dataclass(frozen=True, kw_only=True)
class COME(Tent):
    """Conservatively minimising entropy (Zhang et al., ICLR 2025): Tent on the entropy of an opinion.

        min over norm parameters of mean_b [ −Σ_c b_c ln b_c − u ln u ],
        b_c = e^{x_c}/(Σ_k e^{x_k} + C),  u = C/(Σ_k e^{x_k} + C)

    with the length of the logits x held by a stop-gradient (:func:`wildtta.methods.losses.opinion_entropy`): a sample
    with little evidence keeps its uncertainty u instead of being pushed to one class. It is an objective, and goes with
    other methods on the entropy: ``wildtta.adapt(network, "sar", objective="conservative")`` thresholds, minimises
    and watches the opinion's entropy as the authors' SAR variant does; ``"sar2"``, ``"eta"`` and ``"eata"`` likewise.
    Paper: https://arxiv.org/abs/2410.10894. Code of its authors: https://github.com/BlueWhaleLab/COME.
    """

    name: ClassVar[str] = "come"
    title: ClassVar[str] = "COME"
    order: ClassVar[int] = 180
    paper: ClassVar[str] = "Zhang et al., ICLR 2025, https://arxiv.org/abs/2410.10894"

    objective: Literal["entropy", "conservative"] = option("what is minimised", "conservative")
