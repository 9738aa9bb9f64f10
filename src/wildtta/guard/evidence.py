"""What is compared between the source network and the adapted one, on the same images and without labels.

**Spread.** How far apart are a network's answers to two random images?

    G = ½ E‖p(x) − p(x')‖² = E Σ_c p_c(x)² − Σ_c p̄_c²

For a calibrated network the first term is the accuracy of an answer drawn from p(x), the second the accuracy of a guess from
the mean p̄: G is the accuracy above chance that the network claims. A network that was poisoned loses its certainty on
ordinary images, one that gives one answer to everything loses the difference; both lose G. Certainty alone can mislead: a
source that is certain and wrong has a large G, and entropy minimisation makes certain whatever it does. So half of the
statistic is G of the answers themselves (p is 1 for the answer, 0 elsewhere), which knows no certainty: the share of
pairs that get different answers; and a pair to which both networks give the same answers counts nothing. Estimates of
accuracy from agreement (AETTA, https://arxiv.org/abs/2404.01351) mend the same weakness by the entropy of the mean answer.

**Certainty.** Where the two networks disagree, which one is more certain of its answer?

    K = E 1[answers differ] (max_c p_c(x) − max_c q_c(x)),    p of the source, q of the adapted network

Where each network is right as often as it says, K is the accuracy that was lost. (Where they agree nothing is.) It sees
what spread cannot: an adapted network whose answers scatter although the stream shows one class at a time, as batch
statistics make them do. Entropy minimisation makes certain whatever it does, so a negative K proves nothing.

**Takeover.** Where a few classes take over, their share is the fastest sign: how often does the adapted network answer one of
them, and how often the source? They are the ones that have gained most so far, on the latest images and on remembered ones,
so that the bet on them is fixed before an image is seen. (A class that has its time in a stream in class order gains on the
latest alone, one that is answered better than before on the remembered alone.) Where the source gives most images a few
answers and the adapted network does not, the classes that get these images back gain too. So nothing is bet while the adapted
network's answers are bunched less than half as much as the source's, by Σ_c (share of c)², the chance that two images get
the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

_MOST_OF_A_PAIR = 0.25
"""Of the spread that one pair may add: no single pair decides, and bets can be four times as high."""
_LESS_BUNCHED = 0.5
_GROWTH = math.exp(1 / 256)
"""Of an image's weight: suspects gained among about the last 256 that were compared."""


def probabilities(logits: Tensor) -> Tensor:
    """softmax in float32; rows that are not finite become 0, which has no spread."""
    return torch.nan_to_num(logits.detach().float().softmax(1))


def spread(first: Tensor, second: Tensor) -> Tensor:
    """½‖p − p'‖² of paired rows, [n], in [0, 1]."""
    return 0.5 * (first - second).square().sum(1)


def lost_spread(reference: Tensor, present: Tensor) -> Tensor:
    """How much spread a network lost against a reference, for disjoint pairs of images, [n // 2], in [−1, 1].

    Half of it is the loss of ½‖p − p'‖², at most a quarter of which counts for one pair, half is that of 1[answers differ].
    A pair to which both networks give the same answers counts 0: however much less certain, nothing was lost there.

    Args:
        reference: probabilities of the reference, [n, C]. The images must be in random order.
        present: of the network in question on the same images.
    """
    half = len(reference) // 2
    (a, b), (c, d) = ((p[:half], p[half : 2 * half]) for p in (reference, present))
    soft = (spread(a, b) - spread(c, d)).clamp(-_MOST_OF_A_PAIR, _MOST_OF_A_PAIR) / _MOST_OF_A_PAIR
    hard = (a.argmax(1) != b.argmax(1)).float() - (c.argmax(1) != d.argmax(1)).float()
    same = (a.argmax(1) == c.argmax(1)) & (b.argmax(1) == d.argmax(1))
    return torch.where(same, 0.0, 0.5 * (soft + hard))


def lost_certainty(source: Tensor, adapted: Tensor) -> Tensor:
    """1[answers differ] (max p − max q) of each image, [n], in [−1, 1], for probabilities [n, C] of both networks."""
    (sure, answer), (now, present) = source.max(1), adapted.max(1)
    return torch.where(answer != present, sure - now, 0.0)


def taken_over(source: int, adapted: int, suspects: Collection[int]) -> float:
    """1[adapted answers one of S] − 1[source answers one of S] of one image, for the classes S = ``suspects``."""
    return float((adapted in suspects) - (source in suspects))


class Gains:
    """Which classes gained against the source's share, over the latest images."""

    def __init__(self) -> None:
        self._gains: dict[int, float] = {}
        self._source: dict[int, float] = {}
        self._weight = 1.0
        self._total = 0.0

    def follow(self, source: int, adapted: int) -> None:
        """One image more. Its weight grows instead of the others' fading, so that only two classes are touched."""
        self._weight *= _GROWTH
        self._total += self._weight
        self._gains[adapted] = self._gains.get(adapted, 0.0) + self._weight
        self._gains[source] = self._gains.get(source, 0.0) - self._weight
        self._source[source] = self._source.get(source, 0.0) + self._weight
        if self._weight > 1e12:
            self._gains = {c: gain / self._weight for c, gain in self._gains.items()}
            self._source = {c: share / self._weight for c, share in self._source.items()}
            self._total, self._weight = self._total / self._weight, 1.0

    def shares(self) -> dict[int, float]:
        """What each class gained, as a share of the images; those that gained nothing are left out."""
        return {c: gain / self._total for c, gain in self._gains.items() if gain > 0}

    def largest(self, number: int) -> tuple[int, ...]:
        """The ``number`` classes that gained most."""
        shares = self.shares()
        return tuple(sorted(shares, key=shares.__getitem__, reverse=True)[:number])

    @property
    def bunched_less(self) -> bool:
        """Whether Σ_c (share of c)² of the adapted network is less than half of the source's."""
        source = sum(share * share for share in self._source.values())
        adapted = sum((self._source.get(c, 0.0) + gain) ** 2 for c, gain in self._gains.items())
        return adapted < _LESS_BUNCHED * source

    def given_by_source(self, c: int) -> float:
        """The share of the images to which the source gives ``c``."""
        return self._source.get(c, 0.0) / max(self._total, 1e-12)


def gained_on_both(latest: Gains, remembered: Gains, number: int) -> tuple[int, ...]:
    """The ``number`` classes with the largest gain on both sets of images: the smaller of the two counts.

    A class that the source gives to half of the remembered images itself may simply be what the stream shows.
    """
    one, other = latest.shares(), remembered.shares()
    both = {c: min(gain, other[c]) for c, gain in one.items() if c in other and remembered.given_by_source(c) < 0.5}
    return tuple(sorted(both, key=both.__getitem__, reverse=True)[:number])


def correctness_lost(source: Sequence[int], adapted: Sequence[int], labels: Sequence[int]) -> list[float]:
    """1[source is right] − 1[adapted is right] of each image, where labels are known."""
    return [float((s == y) - (a == y)) for s, a, y in zip(source, adapted, labels, strict=True)]
