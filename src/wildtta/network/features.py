"""The features that enter a network's head: the one way to read them, and where they come from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wildtta.network.probe import undisturbed

_RELUS = frozenset([F.relu, F.relu6, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_])


class FeatureTap:
    """Keeps what enters ``head`` until :meth:`close`."""

    def __init__(self, head: nn.Module) -> None:
        self._features: Tensor | None = None
        self._handle = head.register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features = inputs[0]

    def take(self) -> Tensor | None:
        """The features of the last pass, which are then forgotten; None where the head did not run."""
        features, self._features = self._features, None
        return features

    def close(self) -> None:
        """Take the hook off."""
        self._handle.remove()


class _Rectified(TorchFunctionMode):
    """Whether a ReLU has run since the last GroupNorm."""

    value = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RELUS or func is F.group_norm:
            self.value = func in _RELUS
        return func(*args, **(kwargs or {}))


def are_rectified(network: nn.Module, head: nn.Linear, shape: tuple[int, ...]) -> bool:
    """Whether the features of random images of ``shape`` are at least 0, and a ReLU ran after the last GroupNorm.

    (Pooled over many pixels, what GELU or SiLU gives may be positive everywhere too.)
    """
    try:
        with undisturbed(network), contextlib.closing(FeatureTap(head)) as tap:
            noise = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(next(network.parameters()))
            with _Rectified() as rectified:
                network(noise)
    except Exception:
        return False
    features = tap.take()
    return rectified.value and features is not None and bool((features >= 0).all()) and bool((features > 0).any())
