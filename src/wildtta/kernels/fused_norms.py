"""GroupNorms, with the ReLUs that follow, through one kernel each while a network runs on CUDA; torch's own everywhere else.

A network of convolutions and GroupNorms spends much of its time moving activations through memory; the kernels of
:mod:`wildtta.kernels.group_norm_kernels` move them once. Nobody has to ask for them: :mod:`wildtta.kernels.norm_fusion` finds the
layers in the first pass on CUDA, they get another ``forward`` for as long as a pass lasts, and every call that the kernels
are not made for takes the layer's own.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.kernels.triton_support import own_kernels_are_wanted

DEVICES = ("cuda",)

Kernel = Callable[..., Tensor]


@functools.cache
def kernels() -> ModuleType | None:
    """The module with the kernels; None where they were switched off, or, with a warning, where Triton cannot be imported."""
    if not own_kernels_are_wanted():
        return None
    try:
        from wildtta.kernels import group_norm
    except Exception as error:
        warnings.warn(f"GroupNorm runs as torch's own, which is slower: no Triton ({error})", stacklevel=2)
        return None
    return group_norm


def group_norm_of_torch(
    x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float, *, relu: bool, dtype: torch.dtype
) -> Tensor:
    """What the kernel computes, by torch's own operations: to find out whether a network allows it."""
    z = F.group_norm(x, groups, gamma, beta, eps)
    return (torch.relu(z) if relu else z).to(dtype)


@dataclass(eq=False)
class FusedNorm:
    """A GroupNorm and, where its result goes nowhere else, the ReLU behind it."""

    norm: nn.GroupNorm
    relu: nn.ReLU | None = None
    between: list[nn.Module] = field(default_factory=list)
    """Modules that the result of the norm enters or leaves on its way to the ReLU, both ends included."""
    narrow: bool = False
    """Whether under autocast the result may come in autocast's type, since whoever takes it casts it so anyway."""
    kernel: Kernel | None = None
    smallest: int = 0
    _through: Tensor | None = None
    """A result that has been through the ReLU and is on its way there."""

    def install(self, kernel: Kernel, smallest: int) -> None:
        """Another ``forward`` on the two modules. (Past ``nn.Module.__setattr__``, which takes its time.)"""
        self.kernel, self.smallest = kernel, smallest
        self.norm.__dict__["forward"] = self.norm_forward
        if self.relu is not None:
            self.relu.__dict__["forward"] = self.relu_forward

    def remove(self) -> None:
        """The modules' own ``forward`` again."""
        self.kernel = self._through = None
        self.norm.__dict__.pop("forward", None)
        if self.relu is not None:
            self.relu.__dict__.pop("forward", None)

    def norm_forward(self, *inputs: Any, **named: Any) -> Any:
        """Instead of the norm's ``forward``."""
        if not named and len(inputs) == 1 and self._suits(inputs[0]):
            relu = self.relu is not None and not any(is_watched(module) for module in self.between)
            result = self._run(inputs[0], relu)
            if result is not None:
                self._through = result if relu else None
                return result
        return type(self.norm).forward(self.norm, *inputs, **named)

    def relu_forward(self, *inputs: Any, **named: Any) -> Any:
        """Instead of the ReLU's: nothing more to do for what has been through it, which is known by being that object."""
        assert self.relu is not None
        through, self._through = self._through, None
        if through is not None and len(inputs) == 1 and inputs[0] is through:
            return through
        return type(self.relu).forward(self.relu, *inputs, **named)

    def _suits(self, x: Any) -> bool:
        module = kernels()
        if module is None or not isinstance(x, Tensor) or x.device.type not in DEVICES or x.numel() < self.smallest:
            return False
        # Who hooks saved tensors may run this pass again in the backward pass (checkpointing): both must save the same.
        if torch.is_grad_enabled() and _saved_tensors_are_hooked():
            return False
        return bool(module.suits(x, self.norm.num_groups, self.norm.weight, self.norm.bias))

    def _run(self, x: Tensor, relu: bool) -> Tensor | None:
        """The kernel's result; None where it failed."""
        norm, dtype = self.norm, x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type) if relu and self.narrow else torch.float32
        assert self.kernel is not None
        try:
            return self.kernel(x, norm.num_groups, norm.weight, norm.bias, norm.eps, relu=relu, dtype=dtype)
        except Exception as error:
            module = kernels()
            assert module is not None
            module.give_up(error)
            return None


def is_watched(module: nn.Module) -> bool:
    """Whether somebody's hook sees what enters or leaves ``module``, or its gradient."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _saved_tensors_are_hooked() -> bool:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


@contextlib.contextmanager
def installed(layers: list[FusedNorm], kernel: Kernel, smallest: int = 0) -> Iterator[None]:
    """``kernel`` within for tensors of at least ``smallest`` values; the modules are untouched afterwards, whatever happens."""
    try:
        for layer in layers:
            layer.install(kernel, smallest)
        yield
    finally:
        for layer in layers:
            layer.remove()
