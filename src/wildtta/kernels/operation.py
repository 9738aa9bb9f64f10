"""What every kernel shares: its gradient, the one fallback to torch, and how it is launched.

Kernels are a matter of speed alone. Where one fails to compile or to launch, torch's own operations take its place.
"""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

T = TypeVar("T")
Gradients = tuple[Tensor | None, ...]
on_device_of = cast(Any, torch.cuda.device_of)
"""Triton launches on the current device, which need not be the tensors'."""


class Operation(ABC):
    """A function of tensors with Triton kernels forward and backward. Nothing is added atomically: results repeat."""

    name: ClassVar[str]
    broken: ClassVar[bool] = False
    """Whether one of its kernels failed; none is used again in this process."""

    @abstractmethod
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The result, then what the backward pass needs besides the inputs."""

    @abstractmethod
    def backward(
        self, gradient: Tensor, inputs: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Gradients:
        """Gradients of the inputs; those that are not ``wanted`` may be left out."""

    @abstractmethod
    def by_torch(self, *inputs: Tensor) -> Tensor:
        """The result by torch alone: for a backward pass whose kernel fails after the forward pass has run."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        with on_device_of(inputs[0]):
            if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
                return cast(Tensor, cast(Any, _WithGradient).apply(self, *inputs))
            return self.forward(*inputs)[0]

    @classmethod
    def attempt(cls, ours: Callable[[], T], torchs: Callable[[], T]) -> T:
        """The result of ``ours``; of ``torchs`` where a kernel of this operation failed, now or earlier."""
        if cls.broken:
            return torchs()
        try:
            return ours()
        except torch.cuda.OutOfMemoryError:  # not the kernel's fault
            raise
        except Exception as error:
            cls.broken = True
            warnings.warn(
                f"{cls.name} runs as torch's own, which is slower: a Triton kernel failed ({type(error).__name__}: {error})",
                stacklevel=2,
            )
            return torchs()


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: Operation, *inputs: Tensor) -> Tensor:
        result, *kept = operation.forward(*inputs)
        ctx.save_for_backward(*inputs, *kept)
        ctx.operation, ctx.inputs = operation, len(inputs)
        return result

    @staticmethod
    @once_differentiable  # kernels leave no graph
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        operation: Operation = ctx.operation
        wanted = ctx.needs_input_grad[1:]
        inputs, kept = ctx.saved_tensors[: ctx.inputs], ctx.saved_tensors[ctx.inputs :]
        with on_device_of(gradient):
            found = operation.attempt(
                lambda: operation.backward(gradient, inputs, kept, wanted),
                lambda: _gradients_by_torch(operation, inputs, wanted, gradient),
            )
        return None, *found


def _gradients_by_torch(
    operation: Operation, inputs: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> Gradients:
    leaves = [value.detach().requires_grad_(needed) for value, needed in zip(inputs, wanted, strict=True)]
    with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
        result = operation.by_torch(*leaves)
    found = iter(torch.autograd.grad(result, [leaf for leaf in leaves if leaf.requires_grad], gradient.to(result.dtype)))
    return tuple(next(found) if needed else None for needed in wanted)


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, typed. With TRITON_INTERPRET=1 in the environment kernels run in Python, on CPU tensors."""
    import triton

    return triton.jit(function)


@functools.cache
def generation(device: torch.device) -> int:
    """The first number of a GPU's compute capability: 8 Ampere and Ada, 9 Hopper, 10 and 12 Blackwell; 0 of a CPU."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


@functools.cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU (2 for the interpreter on a CPU, so that there is more than one)."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2
