"""A method outside of the package, as a cell names it: `tests/bench_parts/own_method.py:Sharpened`.

It is Tent on sharpened predictions, and at a temperature of 1 it is Tent itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.distributions import Categorical

import wildtta


@wildtta.register
@dataclass(frozen=True, kw_only=True)
class Sharpened(wildtta.Tent):
    """Tent on the entropy of softmax(x / T)."""

    name: ClassVar[str] = "sharpened-of-the-tests"
    title: ClassVar[str] = "Sharpened Tent"

    temperature: float = wildtta.option("T", 1.0)

    def sample_losses(self, engine: wildtta.Engine, output: wildtta.Output, selection: wildtta.Selection) -> Tensor:
        return Categorical(logits=output.logits / self.temperature).entropy()


class NoDataclass(wildtta.Tent):
    """Forgot its decorator."""


NOT_A_METHOD = 3
