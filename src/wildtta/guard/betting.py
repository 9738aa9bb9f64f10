"""Testing by betting: evidence against a null, valid at every moment and under any choice of when to look.

A bettor starts with a wealth of 1 and bets against ``E[X | the past] ≤ margin`` for observations X in [−1, 1]:

    W ← W · (1 + λ (X − margin)),    0 ≤ λ ≤ λ_max,    λ chosen from the past alone.

Under the null W is a non-negative supermartingale, so Ville's inequality gives P(W ever reaches 1/α) ≤ α, however long it
runs (Waudby-Smith and Ramdas, https://arxiv.org/abs/2010.09686; POEM bets in the same way against the entropies of the
source, https://arxiv.org/abs/2408.07511). A mean of such wealths is one again.

The bet is about the one that makes log W grow fastest, λ = (m − margin) / (v + (m − margin)²), with moving averages m and v
of the past. While m lies below the margin nothing is bet. Chance lifts m above it now and then, and what is bet then is
mostly lost. So the first wealth is not staked at once: half of it is, and the k-th time that most of the stake is gone,
1/((k+1)(k+2)) more. (All stakes together are 1, and what is not staked is still owned: W stays a supermartingale.) A change
is then seen after a year nearly as fast as in the first hour: after k refills it takes 2 ln k more of log W.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_MOST = 0.9
"""Of the largest bet that cannot lose everything."""
_WINDOW = 128
"""Observations in the moving averages."""
_PRIOR = 16
"""Observations that the first guess counts for, so that the averages move faster in the beginning."""
_FIRST_VARIANCE = 0.1
_LEAST_SUSPICION = 0.03
"""A moving average so small says nothing, whatever the margin."""
_GONE = 2.0
"""log of the factor by which a stake may shrink before there is a new one."""


@dataclass
class Bettor:
    """The wealth of one bettor, as a logarithm."""

    margin: float
    mean: float = 0.0
    variance: float = _FIRST_VARIANCE
    seen: int = 0
    stakes: int = 1
    """How many there were so far."""
    log_staked: float = -math.log(2)
    """log of what the present stake has become."""
    log_stake: float = -math.log(2)
    """log of what it was."""

    def observe(self, values: Iterable[float]) -> None:
        """Bet on each value in turn, then learn from it."""
        for value in values:
            if not -1.0 <= value <= 1.0:
                raise ValueError(f"expected an observation in [-1, 1], got {value!r}")
            self.log_staked += math.log1p(self.bet * (value - self.margin))
            if self.log_staked < self.log_stake - _GONE:
                self._stake_again()
            self.seen += 1
            pace = 1 / min(_WINDOW, _PRIOR + self.seen)
            gap = value - self.mean
            self.mean += pace * gap
            self.variance += pace * (gap * gap - self.variance)

    @property
    def bet(self) -> float:
        """λ for the next observation."""
        gap = self.mean - self.margin
        if gap <= 0:
            return 0.0
        return min(gap / (self.variance + gap * gap), _MOST / (1 + self.margin))

    @property
    def log_wealth(self) -> float:
        """log of what is staked and what is not: 1 − Σ 1/(j(j+1)) over the first k stakes = 1/(k+1)."""
        return log_sum(self.log_staked, -math.log(self.stakes + 1))

    @property
    def suspects(self) -> bool:
        """Whether the latest observations come close to speaking against the null."""
        return self.mean > max(self.margin / 2, _LEAST_SUSPICION)

    def restart(self) -> None:
        """A new wealth of 1; what was learned about the observations stays."""
        self.stakes, self.log_staked, self.log_stake = 1, -math.log(2), -math.log(2)

    def forgive(self) -> None:
        """Suspect nothing more: what was observed belongs to other weights."""
        self.mean = min(self.mean, 0.0)

    def _stake_again(self) -> None:
        self.stakes += 1
        self.log_staked = log_sum(self.log_staked, -math.log(self.stakes * (self.stakes + 1)))
        self.log_stake = self.log_staked


def log_sum(*logs: float) -> float:
    """log Σ exp, where the largest may be far too large for exp."""
    largest = max(logs)
    return largest + math.log(sum(math.exp(value - largest) for value in logs))


class Owner(Protocol):
    """Who has a wealth."""

    @property
    def log_wealth(self) -> float: ...


def log_mean_wealth(owners: Iterable[Owner]) -> float:
    """log of the mean of the wealths: the evidence of several bettors against all of their nulls together."""
    logs = [owner.log_wealth for owner in owners]
    return log_sum(*logs) - math.log(len(logs))
