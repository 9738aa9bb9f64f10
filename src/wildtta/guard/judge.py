"""The guard's judgement: looks in, evidence and decisions out. Plain numbers on the host, no network in sight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from wildtta.guard.betting import Bettor, log_mean_wealth
from wildtta.guard.evidence import Gains, correctness_lost, taken_over
from wildtta.guard.ladder import Ladder, Rung

SPREAD_MARGIN = 0.08
"""Of the spread that a network may lose unpunished."""
TAKEOVER_MARGIN = 0.06
"""Of the answers that a class may gain unpunished."""
CERTAINTY_MARGIN = 0.05
"""Of the certainty that may be lost where the networks disagree: 5 points of accuracy, were they calibrated."""
_RUN = 640
"""Images after which a class that had its time in a class-ordered stream is gone."""
_LARGEST_LOG = 600.0


@dataclass(frozen=True)
class Look:
    """What one look saw: lost spread of pairs, lost certainty, and both networks' answers to the same images."""

    fresh: Sequence[float]
    """On the latest images, as they were answered."""
    remembered: Sequence[float]
    """On images from memory, by the present weights."""
    source: Sequence[int]
    adapted: Sequence[int]
    certainty: Sequence[float] = ()
    """Lost where the networks disagree on the latest images."""
    disagreement: float = math.nan
    """Share of the latest images that the two networks answer differently."""
    distance: float = math.nan
    """‖θ − θ₀‖ / ‖θ₀‖."""
    top_share: float = math.nan
    """Of the most frequent answer among the latest images."""
    source_top_share: float = math.nan


@dataclass
class Decision:
    """An action and its evidence."""

    action: Rung
    evidence: float
    """e: under the null, the chance that it ever reaches 1/α is at most α."""
    because: str
    """The test with the largest wealth."""
    look: int
    images: int
    """That the guard had seen."""
    wealths: dict[str, float]
    means: dict[str, float]
    suspect: int


@dataclass
class Judge:
    """Bets against "the adapted network is no worse than the source on this stream", and climbs a ladder.

    The nulls that are really tested, each for every look and given the past (the chance is the guard's own draw):

    - ``spread``: on the images since the last look, the mean lost spread is at most the margin;
    - ``memory``: the same on the remembered images with the present weights;
    - ``certainty``: on the images since the last look, the source is not more certain where the networks disagree, by the
      margin on average;
    - ``takeover``: the suspect class has at most the source's share of the answers, plus the margin;
    - ``labels``: where labels come in, the adapted network is right at least as often as the source.

    The others stand for the last under the assumption that a network that is no worse than the source keeps its spread,
    is not outdone in certainty, and lets no class take over.
    """

    ladder: Ladder
    bettors: dict[str, Bettor] = field(
        default_factory=lambda: {
            "spread": Bettor(SPREAD_MARGIN),
            "memory": Bettor(SPREAD_MARGIN),
            "certainty": Bettor(CERTAINTY_MARGIN),
            "takeover": Bettor(TAKEOVER_MARGIN),
            "labels": Bettor(0.0),
        }
    )
    gains: Gains = field(default_factory=Gains)
    _recent: deque[tuple[int, list[tuple[int, int]]]] = field(default_factory=deque)
    looks: int = 0
    images: int = 0
    """Seen by the guard so far; the caller counts them."""
    _judged: int = 0
    """Of them, those up to the last look."""

    @property
    def evidence(self) -> float:
        return math.exp(min(log_mean_wealth(self.bettors.values()), _LARGEST_LOG))

    @property
    def suspicious(self) -> bool:
        """Whether any test suspects something at present."""
        return any(bettor.suspects for bettor in self.bettors.values())

    def see(self, look: Look, *, can_return: bool) -> Decision | None:
        """Bet on a look; the decision that it leads to, if any."""
        self.looks += 1
        self.bettors["spread"].observe(look.fresh)
        self.bettors["memory"].observe(look.remembered)
        self.bettors["certainty"].observe(look.certainty)
        suspect = self.gains.suspect
        pairs = list(zip(look.source, look.adapted, strict=True))
        self.bettors["takeover"].observe(taken_over(source, adapted, suspect) for source, adapted in pairs)
        self._recent.append((self.images, pairs))
        while self._recent[0][0] <= self.images - _RUN:
            for source, adapted in self._recent.popleft()[1]:
                self.gains.follow(source, adapted)
        return self._decide(can_return)

    def see_labels(
        self, source: Sequence[int], adapted: Sequence[int], labels: Sequence[int], *, can_return: bool
    ) -> Decision | None:
        """Bet on answers whose labels came in."""
        self.bettors["labels"].observe(correctness_lost(source, adapted, labels))
        return self._decide(can_return)

    def restart(self) -> None:
        """All wealths at 1; the bound on a false alarm holds from here to the next restart."""
        for bettor in self.bettors.values():
            bettor.restart()

    def _decide(self, can_return: bool) -> Decision | None:
        evidence = self.evidence
        before = self.ladder.rung
        since, self._judged = self.images - self._judged, self.images
        action = self.ladder.judge(evidence, suspicious=self.suspicious, can_return=can_return, images=since)
        if action is None:
            return None
        decision = Decision(
            action=action,
            evidence=evidence,
            because=max(self.bettors, key=lambda name: self.bettors[name].log_wealth),
            look=self.looks,
            images=self.images,
            wealths={n: math.exp(min(b.log_wealth, _LARGEST_LOG)) for n, b in self.bettors.items()},
            means={n: b.mean for n, b in self.bettors.items()},
            suspect=self.gains.suspect,
        )
        if action in (Rung.SNAPSHOT, Rung.SOURCE) or action < before:
            self.restart()
            for bettor in self.bettors.values():
                bettor.mean = min(bettor.mean, 0.0)
        return decision
