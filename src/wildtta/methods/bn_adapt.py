"""BN-adapt: BatchNorm with the test data's statistics, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from wildtta.methods.base import BatchStatistics, Method, answer_with
from wildtta.methods.options import NOT_NEGATIVE, Range, option
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.network.statistics import Moments, unbiased
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class BNAdapt(Method):
    """BatchNorm statistics of the test data (Nado et al. 2020; Schneider et al., NeurIPS 2020).

        μ = N/(N+n) · μ_source + n/(N+n) · μ_batch,   σ² likewise,   n: samples in the batch

    N = ``prior`` is how many samples the source's statistics are worth; 0: the batch's alone. With ``momentum`` a running
    average of the batches' statistics is kept as well, r ← (1 − m)·r + m·batch (unbiased variance), which
    ``use="running"`` normalises by: the form for small batches. Networks without BatchNorm have nothing to adapt.
    Papers: https://arxiv.org/abs/2006.10963, https://arxiv.org/abs/2006.16971. Recorded code: ``norm`` of
    https://github.com/DequanWang/tent.
    """

    name: ClassVar[str] = "bn-adapt"
    title: ClassVar[str] = "BN-adapt"
    order: ClassVar[int] = 120
    paper: ClassVar[str] = "Schneider et al., NeurIPS 2020, https://arxiv.org/abs/2006.16971"
    updates: ClassVar[str] = "statistics of BatchNorm layers"
    batch_of_one: ClassVar[str] = "yes, with prior or use='running'; else one image's statistics are all there is"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "after the update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    prior: float = option("N: how many samples the source's statistics are worth", 0.0, within=NOT_NEGATIVE)
    momentum: float | None = option(
        "weight of a batch in the running average; None: no average is kept", None, within=Range(0, 1, open=True)
    )
    fresh: bool = option("the running average starts at (0, 1), not at the source's statistics", False, needs="momentum")
    use: Literal["batch", "running"] = option("normalise by the (mixed) batch's or by the running statistics", "batch")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use == "running" and self.momentum is None:
            raise ValueError("use='running' needs a running average; give momentum, for instance 0.1")
        if self.use == "running" and self.prior:
            raise ValueError(f"prior={self.prior} has no effect while use='running'; leave it out")

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        if not engine.norms:
            raise ValueError(
                f"bn-adapt changes the statistics of BatchNorm layers, and {type(engine.network.module).__name__} has none "
                "that keep them; choose another method (lame, tent, sar2 work with every norm)"
            )
        if self.momentum is None:
            return {}
        mean, variance = engine.norms.source()
        if self.fresh:
            mean, variance = torch.zeros_like(mean), torch.ones_like(variance)
        return {"running_mean": mean, "running_var": variance}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        memory = engine.memory
        running = None if self.momentum is None else (memory["running_mean"].clone(), memory["running_var"].clone())
        output = self._forward(engine, images, running, learning=True)
        sound = torch.isfinite(output.logits).all()
        if running is not None:
            engine.keep(sound, {"running_mean": running[0], "running_var": running[1]})
        return answer_with(engine, output, forwards=len(images), skipped=~sound, learned=sound & (running is not None))

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        running = None
        if self.momentum is not None:
            running = (engine.memory["running_mean"], engine.memory["running_var"])
        return self._forward(engine, images, running, learning=False)

    def _forward(self, engine: Engine, images: Tensor, running: Moments | None, learning: bool) -> Output:
        source = engine.norms.source() if self.prior > 0 else None
        share = self.prior / (self.prior + len(images))

        def rule(place: slice, batch: Moments, count: int) -> Moments:
            mean, variance = batch
            if running is not None and learning:
                assert self.momentum is not None
                running[0][place].lerp_(mean.to(running[0].dtype), self.momentum)
                running[1][place].lerp_(unbiased(variance, count).to(running[1].dtype), self.momentum)
            if running is not None and self.use == "running":
                return running[0][place], running[1][place]
            if source is not None:
                mean = share * source[0][place] + (1 - share) * mean
                variance = share * source[1][place] + (1 - share) * variance
            return mean, variance

        with engine.normalised_by(rule):
            return engine.forward(images, grad=False)
