"""How the guard acts: four rungs, up by evidence, down by patience."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Rung(IntEnum):
    """What the adapter may do. A rung includes the ones below it."""

    LEARN = 0
    """As without a guard."""
    SLOW = 1
    """Every step is cut to a quarter."""
    PAUSE = 2
    """Predict only."""
    SNAPSHOT = 3
    """Back to the last healthy weights, then slowly on."""
    SOURCE = 4
    """Back to the source, then a pause that doubles every time."""


@dataclass
class Ladder:
    """The present rung. Thresholds are those of the evidence e (a mean of wealths): P(ever e ≥ 1/α | null) ≤ α."""

    bound: float
    """α of the first rung; the next ones need 3 and 10 times the evidence."""
    patience: int = 10
    """Healthy looks in a row before one rung down."""
    probation: int = 80
    """Looks after a return to a snapshot in which the next alarm leads to the source."""
    rung: Rung = Rung.LEARN
    healthy: int = 0
    looks: int = 0
    last_return: int | None = None
    rest: int = 0
    """Looks for which a pause lasts whatever is seen."""
    returns_to_source: int = field(default=0)

    def judge(self, evidence: float, *, suspicious: bool, can_return: bool) -> Rung | None:
        """The action that one look calls for: a rung to climb or go down to, or None.

        After SNAPSHOT and SOURCE the ladder itself stands on SLOW and PAUSE. On these two, and on every way down, the
        wealths start again; on the way up evidence goes on adding up.

        Args:
            evidence: e so far.
            suspicious: whether this look speaks against the null at all.
            can_return: whether there is a healthy snapshot.
        """
        self.looks += 1
        self.rest = max(0, self.rest - 1)
        self.healthy = 0 if suspicious else self.healthy + 1
        if evidence >= 10 / self.bound:
            return self._back(can_return)
        if evidence >= 3 / self.bound and self.rung < Rung.PAUSE:
            return self._stand(Rung.PAUSE)
        if evidence >= 1 / self.bound and self.rung < Rung.SLOW:
            return self._stand(Rung.SLOW)
        if self.rung > Rung.LEARN and self.healthy >= self.patience and self.rest == 0:
            return self._stand(Rung(self.rung - 1))
        return None

    def _stand(self, rung: Rung) -> Rung:
        self.rung, self.healthy = rung, 0
        return rung

    def _back(self, can_return: bool) -> Rung:
        recent = self.last_return is not None and self.looks - self.last_return <= self.probation
        self.last_return = self.looks
        if can_return and not recent:
            self._stand(Rung.SLOW)
            return Rung.SNAPSHOT
        self._stand(Rung.PAUSE)
        self.rest = self.patience * 2**self.returns_to_source
        self.returns_to_source += 1
        return Rung.SOURCE
