"""Three lines on a plain nn.Module, with the core dependencies alone.

python docs/examples/three_lines.py
"""

import torch
from torch import nn

import wildtta


def classifier() -> nn.Module:
    """Anything with norm layers and a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


if __name__ == "__main__":
    model = wildtta.adapt(classifier())
    for _ in range(3):
        logits = model(torch.randn(16, 3, 32, 32))
    print(f"{tuple(logits.shape)} logits\n{model}\n{model.last}")
