"""The guard's judgement: looks in, evidence and decisions out. Plain numbers on the host, no network in sight."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wildtta.guard.betting import Bettor, log_mean_wealth, log_sum
from wildtta.guard.evidence import Gains, correctness_lost, gained_on_both, taken_over
from wildtta.guard.ladder import Ladder, Rung

SPREAD_MARGIN = 0.08
"""Of the spread that a network may lose unpunished."""
TAKEOVER_MARGIN = 0.03
"""Of the answers that the suspected classes may gain unpunished, with many classes."""
CERTAINTY_MARGIN = 0.05
"""Of the certainty that may be lost where the networks disagree: 5 points of accuracy, were they calibrated."""
_MOST_SUSPECTS = 3
_CLASSES_PER_SUSPECT = 60
_FLOOD = 256
"""Latest images that are looked at for a flood of one answer."""
_LARGEST_LOG = 600.0


@dataclass(frozen=True)
class Compared:
    """Both networks on the same images."""

    spread: Sequence[float] = ()
    """Lost by each pair of images."""
    certainty: Sequence[float] = ()
    """Lost where the networks disagree, for each image."""
    source: Sequence[int] = ()
    """Answers."""
    adapted: Sequence[int] = ()


@dataclass(frozen=True)
class Look:
    """What one look saw."""

    fresh: Compared
    """On the latest images, as they were answered."""
    remembered: Compared
    """On images from memory, by the present weights."""
    mixed: bool = False
    """Whether the images of a batch take part in each other's answers (BatchNorm)."""
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
    suspects: tuple[int, ...]


class OnBoth:
    """One kind of harm, bet against on the latest images and on remembered ones: it counts where both show it.

    The wealth is the smaller of the two. Where either null holds, one of them is a supermartingale, and the smaller lies below
    it. Ordinary changes show on one side alone: a batch of odd images on the latest; a shift that was followed, on those
    remembered from before it. A network that was spoiled shows it on both.

    But while the latest images get one answer from either network, they cannot speak for the adapted one: in a flood of one
    class, answers that are drawn to this class are right, and in one of grey images all are alike. Then the remembered ones
    count alone. Half of the first wealth is for each of the two ways.
    """

    def __init__(self, margin: float) -> None:
        self.fresh = Bettor(margin)
        self.remembered = Bettor(margin)
        self.flooded = Bettor(margin)
        """On remembered images while the latest get one answer."""
        self._in_flood = False

    def observe(self, fresh: Iterable[float], remembered: Sequence[float], *, in_flood: bool) -> None:
        """Bet on both sides; ``in_flood``: whether the latest images before these got one answer."""
        self._in_flood = in_flood
        self.fresh.observe(fresh)
        self.remembered.observe(remembered)
        if in_flood:
            self.flooded.observe(remembered)

    @property
    def log_wealth(self) -> float:
        both = min(self.fresh.log_wealth, self.remembered.log_wealth)
        return log_sum(both, self.flooded.log_wealth) - math.log(2)

    @property
    def mean(self) -> float:
        return self.flooded.mean if self._in_flood else min(self.fresh.mean, self.remembered.mean)

    @property
    def suspects(self) -> bool:
        return self.remembered.suspects and (self._in_flood or self.fresh.suspects)

    def restart(self) -> None:
        for bettor in (self.fresh, self.remembered, self.flooded):
            bettor.restart()

    def forgive(self) -> None:
        for bettor in (self.fresh, self.remembered, self.flooded):
            bettor.forgive()


class Judge:
    """Bets against "the adapted network is no worse than the source on this stream", and climbs a ladder.

    The nulls that are really tested, each given the past (the chance is the guard's own draw). For the first three: on the
    images since the last look, at every look; or on the remembered images with the present weights, at every look. (On the
    remembered images, where most of the latest 256 get one answer.)

    - ``spread``: the mean lost spread is at most the margin;
    - ``certainty``: the source is not more certain where the networks disagree, by the margin on average;
    - ``takeover``: the suspected classes have at most the source's share of the answers, plus the margin (not bet on where
      the adapted network's answers to remembered images so far are bunched less than half as much as the source's);
    - ``statistics``: certainty on the images since the last look alone, where a batch's images take part in each other's
      answers: what harms them is then the batch, and no weight;
    - ``labels``: where labels come in, the adapted network is right at least as often as the source.

    The others stand for the last under the assumption that a network that is no worse than the source keeps its spread,
    is not outdone in certainty, and lets no class take over.

    Args:
        ladder: what is done.
        classes: that the network knows. With few, one class may gain much without taking over: twice an even share.
    """

    def __init__(self, ladder: Ladder, classes: int = 1000) -> None:
        self.ladder = ladder
        self._most_suspects = max(1, min(_MOST_SUSPECTS, classes // _CLASSES_PER_SUSPECT))
        self._spread = OnBoth(SPREAD_MARGIN)
        self._certainty = OnBoth(CERTAINTY_MARGIN)
        self._takeover = OnBoth(max(TAKEOVER_MARGIN, 2 * self._most_suspects / classes))
        self._statistics = Bettor(CERTAINTY_MARGIN)
        self._labels = Bettor(0.0)
        self.tests: dict[str, OnBoth | Bettor] = {
            "spread": self._spread,
            "certainty": self._certainty,
            "takeover": self._takeover,
            "statistics": self._statistics,
            "labels": self._labels,
        }
        self._gained, self._gained_again = Gains(), Gains()
        self._asked = False
        """Whether the last look was at remembered images too."""
        self._latest: deque[tuple[int, int]] = deque(maxlen=_FLOOD)
        self.looks = 0
        self.images = 0
        """Seen by the guard so far; the caller counts them."""
        self._judged = 0

    @property
    def evidence(self) -> float:
        return math.exp(min(log_mean_wealth(self.tests.values()), _LARGEST_LOG))

    @property
    def suspicious(self) -> bool:
        """Whether any test suspects something at present."""
        return any(test.suspects for test in self.tests.values())

    @property
    def alert(self) -> bool:
        """Whether more of the latest images are worth a look: they come close to speaking against a null."""
        both = (self._spread, self._certainty, self._takeover)
        return self.suspicious or any(test.fresh.suspects for test in both)

    @property
    def asks_memory(self) -> bool:
        """Whether the latest images show anything that remembered ones could confirm: else nobody needs to ask these.

        It follows from the past alone, so that the bets stay fair. A few classes that gain more than the margin on the
        latest images are reason enough.
        """
        gained = sum(self._gained.shares()[c] for c in self._gained.largest(self._most_suspects))
        return self.alert or self._in_flood or gained > self._takeover.fresh.margin

    def see(self, look: Look, *, can_return: bool) -> Decision | None:
        """Bet on a look; the decision that it leads to, if any."""
        self.looks += 1
        suspects, flood = self.suspects, self._in_flood
        fresh, again = look.fresh, look.remembered
        self._spread.observe(fresh.spread, again.spread, in_flood=flood)
        self._certainty.observe(fresh.certainty, again.certainty, in_flood=flood)
        taken, taken_again = (
            [taken_over(source, adapted, suspects) for source, adapted in zip(side.source, side.adapted, strict=True)]
            for side in (fresh, again)
        )
        # As far as the past tells: what is not bet on is chosen before it is seen.
        self._takeover.observe(taken, [] if self._gained_again.bunched_less else taken_again, in_flood=flood)
        if look.mixed:
            self._statistics.observe(look.fresh.certainty)
        self._asked = bool(again.source)
        self._latest.extend(zip(fresh.source, fresh.adapted, strict=True))
        for seen, gains in ((fresh, self._gained), (again, self._gained_again)):
            for source, adapted in zip(seen.source, seen.adapted, strict=True):
                gains.follow(source, adapted)
        return self._decide(can_return)

    @property
    def _in_flood(self) -> bool:
        """Whether most of the latest images get one answer, from either network."""
        enough = len(self._latest) >= _FLOOD // 2
        return enough and any(
            max(Counter(answered).values()) > 0.5 * len(self._latest) for answered in zip(*self._latest, strict=True)
        )

    @property
    def suspects(self) -> tuple[int, ...]:
        """The classes that are bet on in the next look: those that gained on both sides, as far as both were asked."""
        if self._asked:
            return gained_on_both(self._gained, self._gained_again, self._most_suspects)
        return self._gained.largest(self._most_suspects)

    def see_labels(
        self, source: Sequence[int], adapted: Sequence[int], labels: Sequence[int], *, can_return: bool
    ) -> Decision | None:
        """Bet on answers whose labels came in."""
        self._labels.observe(correctness_lost(source, adapted, labels))
        return self._decide(can_return)

    def restart(self) -> None:
        """All wealths at 1; the bound on a false alarm holds from here to the next restart."""
        for test in self.tests.values():
            test.restart()

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
            because=max(self.tests, key=lambda name: self.tests[name].log_wealth),
            look=self.looks,
            images=self.images,
            wealths={n: math.exp(min(t.log_wealth, _LARGEST_LOG)) for n, t in self.tests.items()},
            means={n: t.mean for n, t in self.tests.items()},
            suspects=self.suspects,
        )
        if action in (Rung.SNAPSHOT, Rung.SOURCE) or action < before:
            self.restart()
            for test in self.tests.values():
                test.forgive()
        return decision
