"""What happened to a tenant over time, for the page: a bounded number of points, whatever the length of its life."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from wildtta.serve.npy import Array

_MOST_POINTS = 300
_WINDOW = 1000
"""Answers in the share of the top class."""
_MOST_EVENTS = 50


@dataclass(slots=True)
class Point:
    """A stretch of time. ``entropy`` and ``top_share`` are means over its images, ``distance`` is the last one."""

    time: float
    seconds: float
    requests: int = 0
    images: int = 0
    entropy: float = 0.0
    top_share: float = 0.0
    distance: float | None = None
    learned: int = 0
    dropped: int = 0
    rung: int = 0
    alarms: int = 0

    def joined(self, later: Point) -> Point:
        images = self.images + later.images

        def mean(name: str) -> float:
            first, second = getattr(self, name) * self.images, getattr(later, name) * later.images
            return (first + second) / images if images else 0.0

        return Point(
            time=self.time,
            seconds=later.time + later.seconds - self.time,
            requests=self.requests + later.requests,
            images=images,
            entropy=mean("entropy"),
            top_share=mean("top_share"),
            distance=self.distance if later.distance is None else later.distance,
            learned=self.learned + later.learned,
            dropped=self.dropped + later.dropped,
            rung=max(self.rung, later.rung),
            alarms=self.alarms + later.alarms,
        )


@dataclass
class Event:
    """Something that people should know."""

    time: float
    kind: str
    text: str


@dataclass
class History:
    """One tenant's life: totals, points of a second each (longer ones once there are many), events."""

    requests: int = 0
    images: int = 0
    learned: int = 0
    """Steps."""
    dropped: int = 0
    """Requests that were answered and not learned from under overload, or while states could not be saved."""
    alarms: int = 0
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    points: list[Point] = field(default_factory=list)
    _span: float = 1.0
    _answers: deque[int] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _shares: Counter[int] = field(default_factory=Counter)

    def point(self, now: float | None = None) -> Point:
        """The present stretch of time; a new one where the last is over."""
        now = time.time() if now is None else now
        if self.points and now < self.points[-1].time + self._span:
            return self.points[-1]
        if len(self.points) >= _MOST_POINTS:
            self._span *= 2
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [first.joined(second) for first, second in pairs]
        self.points.append(Point(math.floor(now / self._span) * self._span, self._span))
        return self.points[-1]

    def answered(self, logits: Array, requests: int, now: float | None = None) -> None:
        """Requests were answered with these logits."""
        self._count(logits.argmax(1).tolist())
        self.requests += requests
        self.images += len(logits)
        point = self.point(now)
        seen = Point(point.time, point.seconds, requests, len(logits), mean_entropy(logits), self.top_share)
        joined = point.joined(seen)
        point.requests, point.images = joined.requests, joined.images
        point.entropy, point.top_share = joined.entropy, joined.top_share

    def happened(self, kind: str, text: str, *, alarm: bool = True) -> None:
        self.events.append(Event(round(time.time(), 3), kind, text))
        if alarm:
            self.alarms += 1
            self.point().alarms += 1

    @property
    def top_share(self) -> float:
        """Share of the most frequent answer among the last 1,000."""
        return max(self._shares.values(), default=0) / max(1, len(self._answers))

    @property
    def top_class(self) -> int | None:
        return max(self._shares, key=self._shares.__getitem__, default=None)

    def told(self, since: float | None) -> dict[str, Any]:
        """As plain values; ``since``: only points that end after that time (None: no points)."""
        points = [] if since is None else [asdict(p) for p in self.points if p.time + p.seconds > since]
        return {
            "requests": self.requests,
            "images": self.images,
            "learned": self.learned,
            "dropped": self.dropped,
            "alarms": self.alarms,
            "top_share": self.top_share,
            "top_class": self.top_class,
            "events": [asdict(event) for event in self.events],
            "points": points,
        }

    def _count(self, classes: list[int]) -> None:
        for predicted in classes:
            if len(self._answers) == _WINDOW:
                oldest = self._answers[0]
                self._shares[oldest] -= 1
                if not self._shares[oldest]:
                    del self._shares[oldest]
            self._answers.append(predicted)
            self._shares[predicted] += 1


def mean_entropy(logits: Array) -> float:
    """Mean of −Σ p log p over the rows, p = softmax; infinities count as the largest float32, NaN as 0."""
    largest = float(np.finfo(np.float32).max)
    shifted = np.nan_to_num(logits.astype(np.float64), posinf=largest, neginf=-largest)
    shifted -= shifted.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(1)
    entropies = np.log(total) - (exponentials * shifted).sum(1) / total
    return float(entropies.mean())
