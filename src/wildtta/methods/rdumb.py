"""RDumb: ETA that goes back to the source every so many batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from wildtta.methods.eata import ETA
from wildtta.methods.options import AT_LEAST_ONE, POSITIVE, option
from wildtta.methods.registry import register
from wildtta.step.engine import COUNTERS
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class RDumb(ETA):
    """ETA with a full reset every 1000 batches (Press et al., NeurIPS 2023): the baseline that long streams rarely beat.

    Weights, momentum and the average prediction go back to their initial state; counters go on. E₀ is its code's
    (ln C)/2 − 1 at C = 1000, kept as a share of ln C.
    Paper: https://arxiv.org/abs/2306.05401. Code of its authors: https://github.com/oripress/CCC.
    """

    name: ClassVar[str] = "rdumb"
    title: ClassVar[str] = "RDumb"
    order: ClassVar[int] = 130
    paper: ClassVar[str] = "Press et al., NeurIPS 2023, https://arxiv.org/abs/2306.05401"

    reliable: float | None = option(
        "E₀ in units of ln C; None: all samples are reliable", 0.5 - 1 / math.log(1000), within=POSITIVE
    )
    reset_every: int = option("batches between resets", 1000, within=AT_LEAST_ONE)

    def step(self, engine: Engine, images: Tensor) -> Answer:
        batches = engine.host_steps // self.steps
        if batches > 0 and batches % self.reset_every == 0:
            assert engine.source is not None
            engine.learnables.assign(engine.source)
            for name, value in engine.initial_state().items():
                if name not in COUNTERS:
                    engine.memory[name].copy_(value)
            engine.count(resets=1)
        return super().step(engine, images)
