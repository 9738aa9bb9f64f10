"""What R and its gradient need of a D×D matrix of sums after a few rows have changed, without writing the changed matrix.

With Σ [D, D] the stored sums, U [K, D] the rows that arrive (sign +1) and leave (−1)::

    A = Σ + Σ_k s_k u_k u_kᵀ,    q_i = Σ_{j≠i} A_ij² w_j,    Y_bi = Σ_{j≠i} A_ij v_bj

A fleet has 34 MB of such sums for each of its streams (ResNet50-GN). By torch's operations the matrix is written, squared and
read several times; here every entry is read once, and what changed is added to it on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from wildtta.kernels.operation import Gradients, Operation, jit, on_device_of

MOST_CHANGES = 9
"""More rows are left to torch's products: each costs a multiplication of every entry here."""
ROWS, COLUMNS, WARPS = 8, 256, 4


@jit
def _tile(pointer: tl.tensor, rows: tl.tensor, columns: tl.tensor, WIDTH: tl.constexpr) -> Any:
    """Where the entries [rows, columns] of a matrix are, and which exist."""
    return pointer + rows[:, None] * WIDTH + columns[None, :], (rows[:, None] < WIDTH) & (columns[None, :] < WIDTH)


@jit
def _product(
    left: tl.tensor, right: tl.tensor, number: tl.constexpr, rows: tl.tensor, columns: tl.tensor, WIDTH: tl.constexpr
) -> Any:
    """l rᵀ of row ``number`` of both factors, [rows, columns]."""
    of_row = tl.load(left + number * WIDTH + rows, mask=rows < WIDTH, other=0.0)
    of_column = tl.load(right + number * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    return of_row[:, None] * of_column[None, :]


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
    """q and Y of ROWS rows of one matrix. Sums along a row are taken at the end; of several vectors, tile by tile."""
    matrix = tl.program_id(1).to(tl.int64)
    stored, changes = stored + matrix * WIDTH * WIDTH, changes + matrix * CHANGES * WIDTH
    weights, vectors = weights + matrix * WIDTH, vectors + matrix * VECTORS * WIDTH
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    places = tl.arange(0, PADDED)[None, :]
    square, along = tl.zeros([ROWS, COLUMNS], tl.float64), tl.zeros([ROWS, COLUMNS], tl.float64)
    product = tl.zeros([ROWS, PADDED], tl.float64)
    for start in range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        entries, exist = _tile(stored, rows, columns, WIDTH)
        entry = tl.load(entries, mask=exist, other=0.0)
        for change in tl.static_range(CHANGES):
            if change < ARRIVING:
                entry += _product(changes, changes, change, rows, columns, WIDTH)
            else:
                entry -= _product(changes, changes, change, rows, columns, WIDTH)
        entry = tl.where(rows[:, None] == columns[None, :], 0.0, entry)
        square += entry * entry * tl.load(weights + columns, mask=columns < WIDTH, other=0.0)[None, :]
        for vector in tl.static_range(VECTORS):
            value = tl.load(vectors + vector * WIDTH + columns, mask=columns < WIDTH, other=0.0)[None, :]
            if VECTORS == 1:
                along += entry * value
            else:
                product += tl.where(places == vector, tl.sum(entry * value, 1)[:, None], 0.0)
    if VECTORS == 1:
        product += tl.sum(along, 1)[:, None]
    tl.store(squares + matrix * WIDTH + rows, tl.sum(square, 1), mask=rows < WIDTH)
    wanted = (rows[:, None] < WIDTH) & (places < VECTORS)
    tl.store(products + (matrix * VECTORS + places) * WIDTH + rows[:, None], product, mask=wanted)


@jit
def add_kernel(
    sums: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    WIDTH: tl.constexpr,
    CHANGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Σ + lᵀr, one tile of one matrix."""
    matrix = tl.program_id(2).to(tl.int64)
    sums = sums + matrix * WIDTH * WIDTH
    left, right = left + matrix * CHANGES * WIDTH, right + matrix * CHANGES * WIDTH
    rows, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    entries, exist = _tile(sums, rows, columns, WIDTH)
    entry = tl.load(entries, mask=exist, other=0.0)
    for change in tl.static_range(CHANGES):
        entry += _product(left, right, change, rows, columns, WIDTH)
    tl.store(entries, entry, mask=exist)


def suits(stored: Tensor, changes: Tensor) -> bool:
    """Whether the kernel knows this: float64 without gaps, few changes."""
    return stored.dtype == torch.float64 and stored.is_contiguous() and changes.shape[-2] <= MOST_CHANGES


def add_products(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """sums [S, D, D] ← sums + leftᵀ right, in place, with ``left`` and ``right`` [S, K, D]; for what :func:`suits`."""
    width = sums.shape[-1]
    grid = (triton.cdiv(width, COLUMNS), triton.cdiv(width, ROWS), len(sums))
    sizes = {"WIDTH": width, "CHANGES": left.shape[-2], "ROWS": ROWS, "COLUMNS": COLUMNS}
    with on_device_of(sums):
        add_kernel[grid](sums, left.contiguous(), right.contiguous(), **sizes, num_warps=WARPS)


@dataclass(frozen=True)
class ChangedProducts(Operation):
    """q [..., D] and Y [..., B, D] from Σ [..., D, D], U [..., K, D] (the first ``arriving`` with +1), w [..., D], v."""

    arriving: int
    name: ClassVar[str] = "SAR²'s redundancy"

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        stored, changes, weights, vectors = (value.contiguous() for value in inputs)
        width, number = stored.shape[-1], vectors.shape[-2]
        squares, products = torch.empty_like(weights), torch.empty_like(vectors)
        sizes = {"VECTORS": number, "PADDED": triton.next_power_of_2(number), "ROWS": ROWS, "COLUMNS": COLUMNS}
        sizes |= {"WIDTH": width, "ARRIVING": self.arriving, "CHANGES": changes.shape[-2]}
        with on_device_of(stored):
            products_kernel[(triton.cdiv(width, ROWS), stored.numel() // width**2)](
                stored, changes, weights, vectors, squares, products, **sizes, num_warps=WARPS
            )
        return squares, products

    def backward(
        self, gradient: Tensor, inputs: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Gradients:
        raise TypeError("the gradient of R is written out (wildtta.methods.sar2.redundancy), not that of its parts")

    def by_torch(self, *inputs: Tensor) -> Tensor:
        raise TypeError("the gradient of R is written out (wildtta.methods.sar2.redundancy), not that of its parts")
