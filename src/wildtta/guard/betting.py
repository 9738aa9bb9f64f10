"""Testing by betting: evidence against a null, valid at every moment and under any choice of when to look.

A bettor starts with a wealth of 1 and bets against ``E[X | the past] ≤ margin`` for observations X in [−1, 1]:

    W ← W · (1 + λ (X − margin)),    0 ≤ λ ≤ λ_max,    λ chosen from the past alone.

Under the null W is a non-negative supermartingale, so Ville's inequality gives P(W ever reaches 1/α) ≤ α, however long it
runs (Waudby-Smith and Ramdas, https://arxiv.org/abs/2010.09686; POEM bets in the same way against the entropies of the
source, https://arxiv.org/abs/2408.07511). A mean of such wealths is one again.

The bet is about the one that makes log W grow fastest, λ = (m − margin) / (v + (m − margin)²), with moving averages m and v
of the past. While m lies below the margin nothing is bet: a long healthy time costs no wealth, so that a change is seen as
fast after a year as in the first hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MOST = 0.9
"""Of the largest bet that cannot lose everything."""
_WINDOW = 64
"""Observations in the moving averages."""
_FIRST_VARIANCE = 0.1
_LEAST_SUSPICION = 0.03
"""A moving average so small says nothing, whatever the margin."""


@dataclass
class Bettor:
    """The wealth of one bettor, as a logarithm."""

    margin: float
    log_wealth: float = 0.0
    mean: float = 0.0
    variance: float = _FIRST_VARIANCE

    def observe(self, values: Iterable[float]) -> None:
        """Bet on each value in turn, then learn from it."""
        for value in values:
            if not -1.0 <= value <= 1.0:
                raise ValueError(f"expected an observation in [-1, 1], got {value!r}")
            self.log_wealth += math.log1p(self.bet * (value - self.margin))
            gap = value - self.mean
            self.mean += gap / _WINDOW
            self.variance += (gap * gap - self.variance) / _WINDOW

    @property
    def bet(self) -> float:
        """λ for the next observation."""
        gap = self.mean - self.margin
        if gap <= 0:
            return 0.0
        return min(gap / (self.variance + gap * gap), _MOST / (1 + self.margin))

    @property
    def suspects(self) -> bool:
        """Whether the latest observations come close to speaking against the null."""
        return self.mean > max(self.margin / 2, _LEAST_SUSPICION)

    def restart(self) -> None:
        """A new wealth of 1; what was learned about the observations stays."""
        self.log_wealth = 0.0


def log_mean_wealth(bettors: Iterable[Bettor]) -> float:
    """log of the mean of the wealths: the evidence of several bettors against all of their nulls together."""
    logs = [bettor.log_wealth for bettor in bettors]
    largest = max(logs)
    return largest + math.log(sum(math.exp(value - largest) for value in logs) / len(logs))
