"""What a method is given where its samples are pixels, unless the caller says otherwise."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from wildtta.methods.base import Method
from wildtta.methods.steady.method import Steady

_ABOUT_IMAGES: dict[str, Any] = {"recovery": None, "evidence": False}
"""Options that judge whole images, and what switches them off."""


def entropy_weight(redundancy: float, classes: int) -> float:
    """w = ``redundancy``/ln C: with it, E and R weigh alike, each in units of the largest value that it can take.

        w·E + redundancy/D·R  =  redundancy · (E/ln C + R/D),    0 ≤ E ≤ ln C,  0 ≤ R ≤ D

    E is a mean over a thousand pixels, most of them sure: its gradient is short. R is over as few rows as there are classes,
    and its gradient is as long as ever. With a weight of 1 for E it was a thousand times as long and more: a bounded step
    followed R alone.
    """
    return redundancy / math.log(max(2, classes))


def options_for_pixels(method: Method, classes: int) -> dict[str, Any]:
    """The options of ``method`` that pixels ask for, on a network of so many classes."""
    known = {item.name for item in fields(method)}
    options = {name: off for name, off in _ABOUT_IMAGES.items() if name in known}
    if isinstance(method, Steady) and method.redundancy is not None:
        options["entropy"] = entropy_weight(method.redundancy, classes)
    return options
