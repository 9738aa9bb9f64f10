"""A network of a user's own, as a cell names it: `tests/bench_parts/small_network.py:network`.

Every time it is made it adds a line to the file that WILDTTA_TEST_LOG names, so that a test can count runs.
"""

from __future__ import annotations

import os

import torch
from torch import nn


class SmallNetwork(nn.Module):
    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2),
            nn.GroupNorm(2, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2),
            nn.GroupNorm(2, width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


def network(classes: int = 10, width: int = 8, sharpen: float = 20.0) -> nn.Module:
    """Random but sure of itself, so that methods that look for confident samples find some."""
    made = SmallNetwork(classes, width)
    with torch.no_grad():
        made.head.weight.mul_(sharpen)
    log = os.environ.get("WILDTTA_TEST_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
    return made


def exploding_network(classes: int = 10) -> nn.Module:
    """Its logits are not finite."""
    made = SmallNetwork(classes, 8)
    with torch.no_grad():
        made.head.weight.fill_(float("nan"))
    return made


def hungry_network(classes: int = 10) -> nn.Module:
    """Cannot be made."""
    raise MemoryError("no room for the network")
