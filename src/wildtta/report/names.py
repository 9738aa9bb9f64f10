"""Readable names of what journals name tersely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wildtta.methods.registry import config_classes

SHORT_CORRUPTIONS = {
    "gaussian_noise": "Gauss.",
    "shot_noise": "Shot",
    "impulse_noise": "Impul.",
    "defocus_blur": "Defoc.",
    "glass_blur": "Glass",
    "motion_blur": "Motion",
    "zoom_blur": "Zoom",
    "snow": "Snow",
    "frost": "Frost",
    "fog": "Fog",
    "brightness": "Brit.",
    "contrast": "Contr.",
    "elastic_transform": "Elastic",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
}

SCENARIOS = {
    "mild": "mild",
    "label_shift": "label shift",
    "mixed": "mixed",
    "continual": "continual",
    "continual_label_shift": "continual label shift",
    "gradual": "gradual",
    "dirichlet": "Dirichlet",
    "single": "batch size 1",
}
"""Scenarios in words, in the order in which a report shows them."""


def method_name(method: str, options: Mapping[str, Any] | None = None) -> str:
    """``SAR²``, or ``SAR² (inequity=off)`` with options; a method that is not registered keeps its name."""
    known = config_classes().get(method)
    name = known.title if known is not None else method
    if not options:
        return name
    told = ", ".join(f"{key}={option_text(value)}" for key, value in sorted(options.items()))
    return f"{name} ({told})"


def option_text(value: Any) -> str:
    """An option's value in words: None is ``off``."""
    return "off" if value is None else str(value)
