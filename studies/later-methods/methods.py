"""All methods that run without parts of their own (TTT's branch, DDA's diffusion model), and which network takes which."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "no-harm"))

import networks  # the battery's module, found by the line above

ALL = (
    "none", "bn-adapt", "lame", "neo", "t3a", "foa", "tent", "come", "infomax", "shot", "eta", "eata", "rdumb", "roid", "cmf",
    "deyo", "recap", "memo", "cotta", "rotta", "zerosiam", "spa", "poem", "sar", "sar2", "sar2-efficient", "steady",
)  # fmt: skip
FOR_TRANSFORMERS = {"foa"}
FOR_BATCH_NORM = {"bn-adapt"}


def methods_for(network: str) -> list[str]:
    """Those that mean something on a network of the battery."""
    base, _ = networks.split_name(network)
    transformer = networks.RECIPES[base].transformer
    batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in networks.build(base).modules())
    left_out = (set() if transformer else FOR_TRANSFORMERS) | (set() if batch_norm else FOR_BATCH_NORM)
    return [method for method in ALL if method not in left_out]
