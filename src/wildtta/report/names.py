"""Readable names of what journals name tersely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS = {
    "none": "NoAdapt",
    "tent": "Tent",
    "infomax": "InfoMax",
    "eta": "ETA",
    "eata": "EATA",
    "deyo": "DeYO",
    "recap": "ReCAP",
    "roid": "ROID",
    "memo": "MEMO",
    "ttt": "TTT",
    "dda": "DDA",
    "bn-adapt": "BN adapt",
    "rdumb": "RDumb",
    "cotta": "CoTTA",
    "rotta": "RoTTA",
    "lame": "LAME",
    "come": "COME",
    "zerosiam": "ZeroSiam",
    "sar": "SAR",
    "sar2": "SAR²",
    "sar2-paper": "SAR² as published",
    "sar2-efficient": "SAR² efficient",
    "sar2-single": "SAR² single pass",
}
"""Titles, in the order in which a report shows them."""

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
    """``SAR²``, or ``SAR² (inequity=off)`` where options differ from the defaults."""
    name = METHODS.get(method, method)
    if not options:
        return name
    told = ", ".join(f"{key}={option_text(value)}" for key, value in sorted(options.items()))
    return f"{name} ({told})"


def option_text(value: Any) -> str:
    """An option's value in words: None is ``off``."""
    return "off" if value is None else str(value)


def paper_label(label: str) -> str:
    """The paper's row and column names with its typography: ``SAR2`` is SAR²."""
    if label in SHORT_CORRUPTIONS:
        return SHORT_CORRUPTIONS[label]
    for plain, fine in (("SAR2", "SAR²"), ("rho=", "ρ = "), ("alpha=", "α = "), ("beta=", "β = "), ("Avg/", "Avg ")):
        label = label.replace(plain, fine)
    head, slash, tail = label.partition("/")
    if slash:
        return f"{head} {SHORT_CORRUPTIONS.get(tail, tail.replace('level', 'level '))}"
    return {"gpu_time_s": "seconds", "label_shift": "label shift", "bs1": "batch size 1"}.get(label, label)
