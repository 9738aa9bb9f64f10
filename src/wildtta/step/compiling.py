"""``compile=True``: the network through :func:`torch.compile`, with its features as a second result."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from wildtta.network.features import FeatureTap, HeadPasses


class _Tapped(nn.Module):
    def __init__(self, network: nn.Module, tap: FeatureTap) -> None:
        super().__init__()
        self.network = network
        self.tap = tap

    def forward(self, *arguments: Any, **named: Any) -> tuple[Any, HeadPasses]:
        return self.network(*arguments, **named), self.tap.take()


class CompiledNetwork:
    """The compiled pair (network, features), one specialised version per shape.

    A hook that is put on and taken off around every pass would make the compiler start anew each time, so this tap stays
    until :meth:`remove`.
    """

    def __init__(self, network: nn.Module, head: nn.Module) -> None:
        tap = FeatureTap()
        self._hook = head.register_forward_hook(tap.keep)
        self._compiled = torch.compile(_Tapped(network, tap), dynamic=False)

    def __call__(self, *arguments: Any, **named: Any) -> tuple[Any, HeadPasses]:
        result: tuple[Any, HeadPasses] = self._compiled(*arguments, **named)
        return result

    def remove(self) -> None:
        """Leave the network as it was."""
        self._hook.remove()


def refuse_compiled(network: nn.Module) -> None:
    """A network behind :func:`torch.compile` would be compiled anew in every pass, because of the hooks that come and go."""
    for name, module in network.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            where = f"its part {name!r}" if name else "the network"
            raise TypeError(
                f"{where} is compiled by torch.compile; give the plain network (`compiled._orig_mod`, or one without "
                ".compile()) and let wildtta compile it: wildtta.adapt(network, compile=True)"
            )
