"""No adaptation: the network as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wildtta.methods.base import BatchStatistics, Method
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope


@register
@dataclass(frozen=True, kw_only=True)
class NoAdaptation(Method):
    """The bare network in evaluation mode, with the source's BatchNorm statistics: the row that others are compared with."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "no adaptation"
    order: ClassVar[int] = 0
    updates: ClassVar[str] = "nothing"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "no update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"
