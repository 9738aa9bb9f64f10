"""Readable names of what journals name tersely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wildtta.corruptions.constants import CORRUPTIONS
from wildtta.methods.registry import config_classes

_SHORT = "Gauss. Shot Impul. Defoc. Glass Motion Zoom Snow Frost Fog Brit. Contr. Elastic Pixel JPEG"
SHORT_CORRUPTIONS = dict(zip(CORRUPTIONS, _SHORT.split(), strict=True))

SCENARIOS = {
    "mild": "mild",
    "label_shift": "label shift",
    "mixed": "mixed",
    "continual": "continual",
    "continual_label_shift": "continual label shift",
    "gradual": "gradual",
    "dirichlet": "Dirichlet",
    "single": "batch size 1",
    "runs": "runs of a class",
    "one_class": "one class",
    "comes_and_goes": "comes and goes",
}
"""Scenarios in words, in the order in which a report shows them."""


def method_name(method: str, options: Mapping[str, Any] | None = None) -> str:
    """``SAR²``, or ``SAR² (inequity=off)`` with options; a method that is not registered keeps its (class) name."""
    known = config_classes().get(method)
    name = known.title if known is not None else method.rpartition(":")[2]
    if not options:
        return name
    told = ", ".join(f"{key}={option_text(value)}" for key, value in sorted(options.items()))
    return f"{name} ({told})"


def option_text(value: Any) -> str:
    """An option's value in words: None is ``off``."""
    return "off" if value is None else str(value)
