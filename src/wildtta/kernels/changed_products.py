"""What R and its gradient need of a D×D matrix of sums after a few rows have changed, without writing the changed matrix.

With Σ [D, D] the stored sums, U [K, D] the rows that arrive (sign +1) and leave (−1)::

    A = Σ + Σ_k s_k u_k u_kᵀ,    q_i = Σ_j A_ij² w_j,    Y_b = A v_b

A fleet has 34 MB of such sums for each of its streams (ResNet50-GN). By torch's operations the matrix is written, squared and
read several times; here every entry is read once, and what changed is added to it on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from wildtta.kernels.operation import Gradients, Operation, jit

MOST_CHANGES = 9
"""More rows are left to torch's products: each costs a multiplication of every entry here."""
ROWS, COLUMNS, WARPS = 16, 128, 4


@jit
def products_kernel(
    stored: tl.tensor,
    changes: tl.tensor,
    weights: tl.tensor,
    vectors: tl.tensor,
    squares: tl.tensor,
    products: tl.tensor,
    WIDTH: tl.constexpr,
    ARRIVING: tl.constexpr,
    CHANGES: tl.constexpr,
    VECTORS: tl.constexpr,
    PADDED: tl.constexpr,  # VECTORS as a power of 2
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """q and Y of ROWS rows of one matrix."""
    matrix = tl.program_id(1).to(tl.int64)
    stored, changes = stored + matrix * WIDTH * WIDTH, changes + matrix * CHANGES * WIDTH
    weights, vectors = weights + matrix * WIDTH, vectors + matrix * VECTORS * WIDTH
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    places = tl.arange(0, PADDED)[None, :]
    square, product = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS, PADDED], tl.float64)
    for start in range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        exists = (rows[:, None] < WIDTH) & (columns[None, :] < WIDTH)
        entry = tl.load(stored + rows[:, None] * WIDTH + columns[None, :], mask=exists, other=0.0)
        for change in tl.static_range(CHANGES):
            of_row = tl.load(changes + change * WIDTH + rows, mask=rows < WIDTH, other=0.0)
            of_column = tl.load(changes + change * WIDTH + columns, mask=columns < WIDTH, other=0.0)
            if change < ARRIVING:
                entry += of_row[:, None] * of_column[None, :]
            else:
                entry -= of_row[:, None] * of_column[None, :]
        weight = tl.load(weights + columns, mask=columns < WIDTH, other=0.0)
        square += tl.sum(entry * entry * weight[None, :], 1)
        for vector in tl.static_range(VECTORS):
            value = tl.load(vectors + vector * WIDTH + columns, mask=columns < WIDTH, other=0.0)
            product += tl.where(places == vector, tl.sum(entry * value[None, :], 1)[:, None], 0.0)
    tl.store(squares + matrix * WIDTH + rows, square, mask=rows < WIDTH)
    wanted = (rows[:, None] < WIDTH) & (places < VECTORS)
    tl.store(products + (matrix * VECTORS + places) * WIDTH + rows[:, None], product, mask=wanted)


def suits(stored: Tensor, changes: Tensor) -> bool:
    """Whether the kernel knows this: float64 without gaps, few changes."""
    return stored.dtype == torch.float64 and stored.is_contiguous() and changes.shape[-2] <= MOST_CHANGES


@dataclass(frozen=True)
class ChangedProducts(Operation):
    """q [..., D] and Y [..., B, D] from Σ [..., D, D], U [..., K, D] (the first ``arriving`` with +1), w [..., D], v."""

    arriving: int
    name: ClassVar[str] = "SAR²'s redundancy"

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        stored, changes, weights, vectors = (value.contiguous() for value in inputs)
        width, number = stored.shape[-1], vectors.shape[-2]
        squares, products = torch.empty_like(weights), torch.empty_like(vectors)
        products_kernel[(triton.cdiv(width, ROWS), stored.numel() // width**2)](
            stored, changes, weights, vectors, squares, products,
            WIDTH=width, ARRIVING=self.arriving, CHANGES=changes.shape[-2],
            VECTORS=number, PADDED=triton.next_power_of_2(number),
            ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
        )  # fmt: skip
        return squares, products

    def backward(
        self, gradient: Tensor, inputs: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Gradients:
        raise TypeError("the gradient of R is written out (wildtta.methods.sar2.redundancy), not that of its parts")

    def by_torch(self, *inputs: Tensor) -> Tensor:
        raise TypeError("the gradient of R is written out (wildtta.methods.sar2.redundancy), not that of its parts")
