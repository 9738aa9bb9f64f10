"""How the guard acts: rungs, up by evidence, down by patience."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Rung(IntEnum):
    """What the adapter may do."""

    LEARN = 0
    """As without a guard."""
    SLOW = 1
    """Every step is cut to a quarter."""
    PAUSE = 2
    """Predict only."""
    SNAPSHOT = 3
    """Back to the last healthy weights, and a pause there."""
    TRIAL = 4
    """Learn aside: the source network answers, and the guard looks at what the adapted one would have said."""
    SOURCE = 5
    """Back to the source, which answers; nothing learns. Lasts longer every time, and so does the trial after it."""


@dataclass
class Ladder:
    """The present rung. Thresholds are those of the evidence e (a mean of wealths): P(ever e ≥ 1/α | null) ≤ α.

    A method that collapsed once on a stream will often do so again. So a return to earlier weights is followed by a rest
    that doubles every time, and within the probation after it the first alarm leads to the source. What is learned after a
    return to the source answers nobody before it has passed a trial as long as the rest: however late a method collapses,
    sooner or later it does so within its trial.
    """

    bound: float
    """α of the first rung; the next ones need 3 and 10 times the evidence."""
    patience: int = 3200
    """Healthy images in a row before one rung down; those of the first rest and of the first trial."""
    probation: int = 25_600
    """Images after the end of a rest in which the next alarm leads to the source."""
    rung: Rung = Rung.LEARN
    healthy: int = 0
    rest: int = 0
    """Images for which nothing learns, whatever is seen."""
    on_probation: int = 0
    """Images for which it lasts, rest and trial not counted."""
    returns: int = 0

    def judge(self, evidence: float, *, suspicious: bool, can_return: bool, images: int) -> Rung | None:
        """The action that one look calls for: a rung to climb or go down to, or None.

        After SNAPSHOT the ladder itself stands on PAUSE. On a return, and on every way down, the wealths start again; on
        the way up evidence goes on adding up.

        Args:
            evidence: e so far.
            suspicious: whether this look speaks against the null at all.
            can_return: whether there is a healthy snapshot.
            images: that were seen since the last look.
        """
        self.healthy = 0 if suspicious else self.healthy + images
        self.rest = max(0, self.rest - images)
        if self.rung == Rung.SOURCE:
            return None if self.rest else self._stand(Rung.TRIAL)
        if self.rung < Rung.TRIAL and not self.rest:
            self.on_probation = max(0, self.on_probation - images)
        if evidence >= (1 if self.on_probation else 10) / self.bound:
            return self._back(can_return)
        if self.rung == Rung.TRIAL:
            return self._stand(Rung.LEARN) if self.healthy >= self._length else None
        if evidence >= 3 / self.bound and self.rung < Rung.PAUSE:
            return self._stand(Rung.PAUSE)
        if evidence >= 1 / self.bound and self.rung < Rung.SLOW:
            return self._stand(Rung.SLOW)
        if self.rung > Rung.LEARN and self.healthy >= self.patience and not self.rest:
            return self._stand(Rung(self.rung - 1))
        return None

    @property
    def _length(self) -> int:
        """Images of the latest rest, and of the trial after it: patience · 2^(returns − 1)."""
        return self.patience << (self.returns - 1)

    def _stand(self, rung: Rung) -> Rung:
        self.rung, self.healthy = rung, 0
        return rung

    def _back(self, can_return: bool) -> Rung:
        first = can_return and not self.on_probation
        self.returns += 1
        self.rest, self.on_probation = self._length, self.probation
        self._stand(Rung.PAUSE if first else Rung.SOURCE)
        return Rung.SNAPSHOT if first else Rung.SOURCE
