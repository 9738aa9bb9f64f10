"""The study's networks: the testbed's own by name, and a GroupNorm network with feature dimensions that are dead or nearly so.

timm's ResNet50-GN has many feature dimensions that are zero on all samples (the paper's table M); rn26_gn has none. Here half of
rn26_gn's dimensions, those that weigh least in its head, are made so:

- ``dead``: they are zero on every image;
- ``rare``: they fire on few images alone (the dimension's value less a threshold, never below 0).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

TESTBED = Path(__file__).parent / "testbed"


def _classifier(name: str) -> nn.Module:
    sys.path.insert(0, str(TESTBED))
    from load import classifier

    network: nn.Module = classifier(name)
    return network


def rn26_gn() -> nn.Module:
    """ResNet-26 with GroupNorm."""
    return _classifier("rn26_gn")


def rn26_bn() -> nn.Module:
    """ResNet-26 with BatchNorm."""
    return _classifier("rn26_bn")


def vit() -> nn.Module:
    """ViT with LayerNorm."""
    return _classifier("vit")


class Thinned(nn.Module):
    """relu(z − threshold): threshold 0 leaves a (non-negative) dimension as it is, +inf makes it dead."""

    def __init__(self, thresholds: Tensor) -> None:
        super().__init__()
        self.register_buffer("thresholds", thresholds)

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.thresholds).clamp(min=0)


def with_idle_dimensions(kind: str, share: float = 0.5, threshold: float = 2.0) -> nn.Module:
    """rn26_gn with the ``share`` of its dimensions that weigh least in the head ``dead`` or ``rare``.

    Args:
        kind: ``dead`` or ``rare``.
        share: how many of the dimensions.
        threshold: of rare dimensions; rn26_gn's features have a mean of about 0.4.
    """
    if kind not in ("dead", "rare"):
        raise ValueError(f"kind must be dead or rare, got {kind!r}")
    network = rn26_gn()
    head = network.get_submodule("fc")
    assert isinstance(head, nn.Linear)
    idle = head.weight.detach().norm(dim=0).argsort()[: int(share * head.in_features)]
    thresholds = torch.zeros(head.in_features)
    thresholds[idle] = torch.inf if kind == "dead" else threshold
    network.global_pool = nn.Sequential(network.get_submodule("global_pool"), Thinned(thresholds))  # type: ignore[assignment]
    return network.eval()
