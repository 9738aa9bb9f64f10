"""What all Triton kernels need: whether they can run, a decorator that type checkers accept, and a way back to torch.

Kernels are a matter of speed alone: where Triton is missing, or a kernel fails to compile or to launch, torch's own
operations do the work.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


def own_kernels_are_wanted() -> bool:
    """Whether nobody switched our kernels off by ``WILDTTA_KERNELS=torch`` in the environment."""
    return os.environ.get("WILDTTA_KERNELS", "own") != "torch"


@functools.cache
def triton_is_installed() -> bool:
    """Whether Triton can be imported, and the GPUs that torch knows are NVIDIA's: the kernels were written for these."""
    return torch.version.hip is None and importlib.util.find_spec("triton") is not None


@functools.cache
def generation(device: torch.device) -> int:
    """The first number of a GPU's compute capability: 8 Ampere and Ada, 9 Hopper, 10 and 12 Blackwell; 0 of a CPU."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


def runs_kernels(device: torch.device) -> bool:
    """Whether Triton kernels can work on tensors of this device (before Ampere there is neither TF32 nor bfloat16)."""
    wanted = own_kernels_are_wanted()
    return wanted and device.type == "cuda" and triton_is_installed() and generation(device) >= 8


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


@functools.cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU (2 for the interpreter on a CPU, so that there is more than one)."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, typed. With TRITON_INTERPRET=1 in the environment kernels run in Python, on CPU tensors."""
    import triton

    return triton.jit(function)


def once_differentiable(backward: Callable[..., T]) -> Callable[..., T]:
    """torch's decorator, typed: gradients of gradients are refused, kernels leave no graph."""
    return cast(Callable[..., T], cast(Any, torch.autograd.function).once_differentiable(backward))


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    import triton

    return bool(triton.knobs.runtime.interpret) if hasattr(triton, "knobs") else _interpreted_by_environment()


def _interpreted_by_environment() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


class Kernels:
    """A family of kernels that is used until one of them fails; then torch does the work, and a warning says so once."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.broken = False

    def attempt(self, ours: Callable[[], T], torchs: Callable[[], T]) -> T:
        """The result of ``ours``, or of ``torchs`` where a kernel failed, now or earlier."""
        if self.broken:
            return torchs()
        try:
            return ours()
        except torch.cuda.OutOfMemoryError:  # no fault of the kernels
            raise
        except Exception as error:
            self.broken = True
            warnings.warn(
                f"{self.what} runs as torch's own, which is slower: a Triton kernel failed ({type(error).__name__}: {error})",
                stacklevel=2,
            )
            return torchs()


def gradients_of_torch(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """∂⟨gradient, function(*inputs)⟩/∂inputs by torch alone: for a kernel that fails after its forward half has run."""
    leaves = [value.detach().requires_grad_(needed) for value, needed in zip(inputs, wanted, strict=True)]
    with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
        result = function(*leaves)
    found = iter(torch.autograd.grad(result, [leaf for leaf in leaves if leaf.requires_grad], gradient.to(result.dtype)))
    return tuple(next(found) if needed else None for needed in wanted)
