"""``compile=True``: the network through :func:`torch.compile`, with its features as a second result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TappedNetwork(nn.Module):
    """A network that also returns what enters its head.

    A hook that is put on and taken off around every pass would make the compiler start anew each time; this one stays
    until :meth:`remove`, and what it sees leaves through the compiled function like any other result.
    """

    def __init__(self, network: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.network = network
        self._seen: list[Tensor] = []
        self._handle = head.register_forward_pre_hook(self._tap)

    def _tap(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._seen.append(inputs[0])

    def forward(self, images: Tensor) -> tuple[Any, Tensor | None]:
        """What the network returns, and its features."""
        raw = self.network(images)
        features = self._seen[-1] if self._seen else None
        self._seen.clear()
        return raw, features

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()


class CompiledNetwork:
    """The compiled pair (network, features), one specialised version per shape."""

    def __init__(self, network: nn.Module, head: nn.Linear) -> None:
        self._tapped = TappedNetwork(network, head)
        self._compiled = torch.compile(self._tapped, dynamic=False)

    def __call__(self, images: Tensor) -> tuple[Any, Tensor | None]:
        result: tuple[Any, Tensor | None] = self._compiled(images)
        return result

    def remove(self) -> None:
        """Leave the network as it was."""
        self._tapped.remove()
