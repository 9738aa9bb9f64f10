"""Which classes ImageNet and its variants have: lists of wnids from timm's package data."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt


@cache
def imagenet_classes(variant: str = "") -> tuple[str, ...]:
    """The wnids in the order of a network's outputs: all 1000, or the 200 of variant "a" or "r"."""
    # Found without importing timm, which takes seconds.
    package = importlib.util.find_spec("timm")
    if package is None or not package.submodule_search_locations:
        raise ImportError("ImageNet's class lists come with timm: pip install 'wildtta[zoo]'")
    name = f"imagenet_{variant}_synsets.txt" if variant else "imagenet_synsets.txt"
    listed = Path(package.submodule_search_locations[0], "data", "_info", name).read_text(encoding="utf-8").split()
    return tuple(listed)


def outputs_of(classes: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """The positions of these wnids among the 1000 outputs of an ImageNet network."""
    position = {wnid: i for i, wnid in enumerate(imagenet_classes())}
    return np.array([position[wnid] for wnid in classes], dtype=np.int64)
