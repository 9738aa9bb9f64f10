"""What is compared between the source network and the adapted one, on the same images and without labels.

**Spread.** How far apart are a network's answers to two random images?

    G = ½ E‖p(x) − p(x')‖² = E Σ_c p_c(x)² − Σ_c p̄_c²

For a calibrated network the first term is the accuracy of an answer drawn from p(x), the second the accuracy of a guess from
the mean p̄: G is the accuracy above chance that the network claims. A network that was poisoned loses its certainty on
ordinary images, one that gives one answer to everything loses the difference; both lose G. Estimates of accuracy from
agreement (AETTA, https://arxiv.org/abs/2404.01351) have a correction for the second case; here it is the difference itself.

**Takeover.** Entropy minimisation also makes a network more certain while one class takes over, which keeps G up for a while. So
the share of one class is compared too: how often the adapted network answers c, against twice as often as the source does.
The class is the one that gained most among the images before, so that the bet on it is fixed before the next image is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MOST_OF_A_PAIR = 0.25
"""Of the spread that one pair may add: no single pair decides, and bets can be four times as high."""
_GROWTH = math.exp(1 / 64)
"""Of an image's weight: the suspect gained among about the last 64."""


def probabilities(logits: Tensor) -> Tensor:
    """softmax in float32; rows that are not finite become 0, which has no spread."""
    return torch.nan_to_num(logits.detach().float().softmax(1))


def spread(first: Tensor, second: Tensor) -> Tensor:
    """½‖p − p'‖² of paired rows, [n], in [0, 1]."""
    return 0.5 * (first - second).square().sum(1)


def lost_spread(reference: Tensor, present: Tensor) -> Tensor:
    """How much spread a network lost against a reference, for disjoint pairs of images, [n // 2], in [−1, 1].

    Args:
        reference: probabilities of the reference, [n, C]. The images must be in random order.
        present: of the network in question on the same images.
    """
    half = len(reference) // 2
    lost = spread(reference[:half], reference[half : 2 * half]) - spread(present[:half], present[half : 2 * half])
    return lost.clamp(-_MOST_OF_A_PAIR, _MOST_OF_A_PAIR) / _MOST_OF_A_PAIR


def taken_over(source: int, adapted: int, suspect: int) -> float:
    """(1[adapted answers c] − 2·1[source answers c]) / 2 of one image, in [−1, ½], for the class c = ``suspect``."""
    return ((adapted == suspect) - 2 * (source == suspect)) / 2


class Gains:
    """Which class gained most against twice the source's share, over the latest images."""

    def __init__(self) -> None:
        self._gains: dict[int, float] = {}
        self._weight = 1.0
        self.suspect = -1
        """−1 before there is one."""

    def follow(self, source: int, adapted: int) -> None:
        """One image more. Its weight grows instead of the others' fading, so that only two classes are touched."""
        self._weight *= _GROWTH
        self._gains[adapted] = self._gains.get(adapted, 0.0) + self._weight
        self._gains[source] = self._gains.get(source, 0.0) - 2 * self._weight
        if self._gains[adapted] > self._gains.get(self.suspect, 0.0) or source == self.suspect:
            self.suspect = max(self._gains, key=self._gains.__getitem__)
        if self._weight > 1e12:
            self._gains = {c: gain / self._weight for c, gain in self._gains.items() if abs(gain) > 1e-6 * self._weight}
            self._weight = 1.0


def correctness_lost(source: Sequence[int], adapted: Sequence[int], labels: Sequence[int]) -> list[float]:
    """1[source is right] − 1[adapted is right] of each image, where labels are known."""
    return [float((s == y) - (a == y)) for s, a, y in zip(source, adapted, labels, strict=True)]
