"""All methods that run without parts of their own (TTT's branch, DDA's diffusion model), and which network takes which."""

from __future__ import annotations

ALL = (
    "none", "bn-adapt", "lame", "neo", "t3a", "foa", "tent", "come", "infomax", "shot", "eta", "eata", "rdumb", "roid", "cmf",
    "deyo", "recap", "memo", "cotta", "rotta", "zerosiam", "spa", "poem", "sar", "sar2", "sar2-efficient", "steady",
)  # fmt: skip
FOR_TRANSFORMERS = {"foa"}
FOR_BATCH_NORM = {"bn-adapt"}
NO_PRECISION = {"none"}


def methods_for(network: str) -> list[str]:
    """Those that mean something on a network of the battery."""
    transformer, batch_norm = "vit" in network, "bn" in network
    left_out = (set() if transformer else FOR_TRANSFORMERS) | (set() if batch_norm else FOR_BATCH_NORM)
    return [method for method in ALL if method not in left_out]
