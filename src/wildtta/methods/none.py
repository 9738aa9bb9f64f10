"""No adaptation: the network as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from wildtta.methods.base import BatchStatistics, Method
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class NoAdapt(Method):
    """The bare network in evaluation mode, with the source's BatchNorm statistics: the row that others are compared with."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "NoAdapt"
    order: ClassVar[int] = 0
    updates: ClassVar[str] = "nothing"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "no update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    def step(self, engine: Engine, images: Tensor) -> Answer:
        answer = self.predict(engine, images)
        engine.count(forwards=len(images), computed_forwards=len(images))
        return answer
