"""How much of a stream the shadow looks at."""

from __future__ import annotations

START = 640
"""Images of the beginning, where every image is looked at."""
CLOSER = 10.0
"""The shadow's share is so many times as large at the start and on an alert: every image by default."""


def share_of(usual: float, age: int, *, alert: bool) -> float:
    """The share of images that the shadow answers, for a network that has learned for ``age`` images.

    It falls as 1/age after the start. A collapse that takes T images to develop is then seen by about as many looks
    whatever T is, until the usual share is reached at ten times the start.
    """
    closer = CLOSER if alert else CLOSER * START / max(age, START)
    return min(1.0, usual * max(1.0, closer))
