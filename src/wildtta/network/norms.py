"""Which modules are normalisation layers, and how batch statistics are switched on and off."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from wildtta.network.changes import Changes, take_off

_NORM_TYPES = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_NORM_CLASS_NAME = re.compile(r"norm(act)?\d*d?$", re.IGNORECASE)


def is_norm(module: nn.Module) -> bool:
    """Whether ``module`` is a normalisation layer with something to learn (an affine weight).

    torch's own layers and all their subclasses (timm's and torchvision's among them) are known by type. A layer written
    as a plain module (many RMSNorms) is known by its shape: a leaf whose class is called a norm and whose weight is a
    vector.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter):
        return False
    if isinstance(module, _NORM_TYPES):
        return True
    is_leaf = next(module.children(), None) is None
    return is_leaf and weight.dim() == 1 and _NORM_CLASS_NAME.search(type(module).__name__) is not None


def is_batch_norm(module: nn.Module) -> bool:
    """Whether ``module`` normalises over the batch (BatchNorm1d/2d/3d, SyncBatchNorm, their subclasses)."""
    return isinstance(module, _BatchNorm)


class BatchStatistics:
    """Batch statistics in every BatchNorm of a network, without touching one buffer.

    A BatchNorm that trains and does not track statistics normalises by the batch's moments and neither reads nor
    writes ``running_mean``/``running_var``; so the two flags are the whole switch, and switching back is exact.
    """

    def __init__(self, network: nn.Module) -> None:
        self._on = True
        self._before = []
        for layer in filter(is_batch_norm, network.modules()):
            hook = layer.register_forward_pre_hook(self._choose)
            self._before.append((layer, layer.training, layer.track_running_stats, hook))
            layer.track_running_stats = False  # type: ignore[assignment]

    def _choose(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Forward pre-hook: normalise by the batch's own moments, or by the source's where one value has no variance."""
        batch: Tensor = inputs[0]
        module.training = self._on and batch.numel() // max(1, batch.shape[1]) > 1

    def off(self, changes: Changes) -> contextlib.AbstractContextManager[None]:
        """Within, the source's statistics."""
        return changes.set(self, _on=False)

    def remove(self) -> None:
        """Back to the statistics of the source, flags and hooks as they were."""
        for layer, training, tracked, hook in self._before:
            hook.remove()
            layer.training, layer.track_running_stats = training, tracked


def take_off_batch_statistics(network: nn.Module) -> None:
    """Back to the source's statistics where ``network`` is a copy of an adapted one, or its adapter is gone.

    The switch is part of the layers and goes into copies: one of them would answer by its batch whatever its method says.
    """
    for layer in filter(is_batch_norm, network.modules()):
        for hook in list(layer._forward_pre_hooks.values()):
            switch = getattr(hook, "__self__", None)
            if isinstance(switch, BatchStatistics):
                switch.remove()
                take_off(layer._forward_pre_hooks, hook)
