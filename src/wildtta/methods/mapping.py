"""Tensors within :func:`torch.vmap`: a fleet maps a method's hooks over its streams.

A hook need not know. Where torch cannot map an operation, or maps it at a high price, it can be done here on the tensors of
all streams.
"""

from __future__ import annotations

import torch
from torch import Tensor

_functorch = torch._C._functorch


def is_mapped(tensor: Tensor) -> bool:
    """Whether this stands for the tensors of many streams."""
    return _functorch.is_batchedtensor(tensor)


def streams_first(tensor: Tensor) -> Tensor:
    """The tensors of all streams behind one that is mapped, [S, ...]; changing them in place changes it."""
    if not is_mapped(tensor):
        raise ValueError(f"expected a tensor of every stream, got one of shape {tuple(tensor.shape)} that all share")
    return _functorch.get_unwrapped(tensor).movedim(_functorch.maybe_get_bdim(tensor), 0)
