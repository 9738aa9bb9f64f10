"""Zeros for the tensors of some streams, without touching those of the others.

A recovery empties a stream's D×D sums, and a recorded step must be able to do so for every stream. By torch's operations all
sums would be read and written in every step, and nearly always to leave them as they are.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wildtta.kernels.operation import jit, on_device_of

BLOCK = 16384


@jit
def clear_kernel(values: tl.tensor, flags: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """A block of one stream's values."""
    stream = tl.program_id(1)
    if tl.load(flags + stream) != 0:
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        zeros = tl.zeros([BLOCK], values.dtype.element_ty)
        tl.store(values + stream.to(tl.int64) * SIZE + offsets, zeros, mask=offsets < SIZE)


def clear_where(values: Tensor, flags: Tensor) -> None:
    """``values`` [S, ...] (without gaps) ← 0 where ``flags`` [S] hold."""
    size = values.numel() // len(values)
    with on_device_of(values):
        clear_kernel[(triton.cdiv(size, BLOCK), len(values))](values, flags.byte(), SIZE=size, BLOCK=BLOCK, num_warps=8)
