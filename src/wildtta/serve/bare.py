"""The network alone in the fleet's place: the same service without learning, to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wildtta.network.output import logits_of


class BareTurn:
    """Answers of the network; there is nothing to learn."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.learners: frozenset[str] = frozenset()

    def learn(self) -> None:
        """Nothing."""


class BareFleet:
    """As much of a fleet as a replica needs, where nobody learns."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network.eval()

    @contextmanager
    def turn(self, images: Tensor, streams: Sequence[str], learn: object = False) -> Iterator[BareTurn]:
        with torch.inference_mode():
            yield BareTurn(logits_of(self._network(images)))
