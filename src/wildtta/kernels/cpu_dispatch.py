"""Which of torch's functions are done in another way on the CPU, for maps whose channels lie together.

Within :class:`CpuDispatch` (:class:`~wildtta.kernels.layout.MapLayout` says when) ``F.group_norm`` goes to
:mod:`~wildtta.kernels.pixel_group_norm` where its backward pass is the faster one; every other call goes to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wildtta.kernels import pixel_group_norm
from wildtta.kernels.operation import takes


class CpuDispatch(TorchFunctionMode):
    """Takes calls for as long as the context lasts."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.group_norm and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            result = _group_norm(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor | None:
    """The result, or None where torch's own function is to give it."""
    if weight is None or bias is None or torch.is_autocast_enabled("cpu") or not takes("cpu", input, weight, bias):
        return None
    if not pixel_group_norm.suits(input, num_groups, weight, bias):
        return None
    return pixel_group_norm.group_norm(input, num_groups, weight, bias, eps)
