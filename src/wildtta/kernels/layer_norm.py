"""LayerNorm over the last dimension as one Triton kernel forward and one backward.

With μ, σ² over a row of D values, x̂ = (x − μ)/√(σ² + ε) and r = 1/√(σ² + ε)::

    forward   y = γ∘x̂ + β;  μ and r are kept of each row
    backward  dx = r·(γ∘dy − mean(γ∘dy) − x̂·mean(γ∘dy∘x̂)),  ∂γ = Σ_rows dy∘x̂,  ∂β = Σ_rows dy

(Ba et al. 2016, https://arxiv.org/abs/1607.06450.) A row is read once and kept in registers: its mean first, then squares
of differences, so that a large mean costs no digits. The backward kernel reads x and dy once for dx and the parameters'
gradients; torch reads both twice. Each program adds up ∂γ and ∂β of its own rows, and torch adds the programs.

The output may have another type than x: a linear layer under autocast takes bfloat16, so float32 need not be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from wildtta.kernels.norm import DTYPES, Norm, load
from wildtta.kernels.operation import jit, processors

WIDEST = 8192
"""Wider rows do not fit into the registers of a program."""
TILE = 2048
"""Values that a program works on at once: narrow rows are taken several at a time."""
PROGRAMS_PER_PROCESSOR = 4
"""Backward: programs that fit onto a multiprocessor together, each with several tiles of rows."""


# -- kernels -------------------------------------------------------------------------------------------------------------
# Triton reads the annotations: of what is not constant they say ``tl.tensor``, pointers and numbers too.


@jit
def _tile(first: tl.tensor, rows: tl.tensor, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> Any:
    """Rows from ``first`` on, offsets of their values [ROWS, COLUMNS], and which of these exist."""
    row = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)[None, :]
    return row, row[:, None].to(tl.int64) * WIDTH + columns, (row[:, None] < rows) & (columns < WIDTH)


@jit
def forward_kernel(
    x: tl.tensor,
    y: tl.tensor,
    gamma: tl.tensor,
    beta: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """y, μ and r of ROWS rows."""
    row, offsets, exists = _tile(tl.program_id(0) * ROWS, rows, WIDTH, ROWS, COLUMNS)
    columns = tl.arange(0, COLUMNS)[None, :]
    values = load(x, offsets, exists)
    mean = tl.sum(values, 1) / WIDTH
    difference = tl.where(exists, values - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(difference * difference, 1) / WIDTH + eps)
    result = difference * rstd[:, None] * load(gamma, columns, columns < WIDTH) + load(beta, columns, columns < WIDTH)
    tl.store(y + offsets, result.to(y.dtype.element_ty), mask=exists)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(rstds + row, rstd, mask=row < rows)


@jit
def backward_kernel(
    dy: tl.tensor,
    x: tl.tensor,
    gamma: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    dx: tl.tensor,
    dgammas: tl.tensor,
    dbetas: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WANTS_INPUT: tl.constexpr,
    WANTS_PARAMETERS: tl.constexpr,
) -> None:
    """dx of ``tiles`` times ROWS rows, and what these add to ∂γ and ∂β: both are [programs, WIDTH]."""
    program = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)[None, :]
    weight = load(gamma, columns, columns < WIDTH)
    dgamma = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbeta = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        row, offsets, exists = _tile((program * tiles + tile) * ROWS, rows, WIDTH, ROWS, COLUMNS)
        mean, rstd = load(means, row, row < rows), load(rstds, row, row < rows)
        slope = load(dy, offsets, exists)
        # 0 where nothing exists, since dy is.
        normal = (load(x, offsets, exists) - mean[:, None]) * rstd[:, None]
        if WANTS_PARAMETERS:
            dgamma += slope * normal
            dbeta += slope
        if WANTS_INPUT:
            weighted = slope * weight
            along = tl.sum(weighted * normal, 1) / WIDTH
            level = tl.sum(weighted, 1) / WIDTH
            gradient = (weighted - level[:, None] - normal * along[:, None]) * rstd[:, None]
            tl.store(dx + offsets, gradient.to(dx.dtype.element_ty), mask=exists)
    if WANTS_PARAMETERS:
        column = tl.arange(0, COLUMNS)
        tl.store(dgammas + program * WIDTH + column, tl.sum(dgamma, 0), mask=column < WIDTH)
        tl.store(dbetas + program * WIDTH + column, tl.sum(dbeta, 0), mask=column < WIDTH)


# -- launching -----------------------------------------------------------------------------------------------------------


def suits(x: Tensor, shape: tuple[int, ...], gamma: Tensor, beta: Tensor) -> bool:
    """Whether the kernels know this: one normalised dimension, γ and β, types of at most 32 bits."""
    if len(shape) != 1 or x.dim() < 1 or x.numel() == 0 or not 1 < x.shape[-1] == shape[0] <= WIDEST:
        return False
    known = all(tensor.dtype in DTYPES for tensor in (x, gamma, beta))
    placed = x.device == gamma.device == beta.device and gamma.is_contiguous() and beta.is_contiguous()
    return known and placed and gamma.shape == beta.shape == x.shape[-1:]


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``F.layer_norm(x, x.shape[-1:], gamma, beta, eps)`` as ``dtype``, for what :func:`suits`."""
    return LayerNorm(eps, dtype)(x.contiguous(), gamma, beta)


@dataclass(frozen=True)
class LayerNorm(Norm):
    eps: float
    dtype: torch.dtype
    name: ClassVar[str] = "LayerNorm"

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        x = inputs[0]
        count = x.numel() // x.shape[-1]
        y = torch.empty_like(x, dtype=self.dtype)
        mean, rstd = torch.empty((2, count), dtype=torch.float32, device=x.device).unbind()
        tile = _tile_for(x)
        forward_kernel[(triton.cdiv(count, tile["ROWS"]),)](x, y, *inputs[1:], mean, rstd, count, self.eps, **tile)
        return y, mean, rstd

    def partial_sums(self, x: Tensor) -> int:
        return _programs_and_tiles(x)[0]

    def launch_backward(self, given: Sequence[Tensor], gradients: Sequence[Tensor], **wanted: bool) -> None:
        dy, x, gamma, _, mean, rstd = given
        programs, tiles = _programs_and_tiles(x)
        sizes = (len(mean), tiles)
        backward_kernel[(programs,)](dy, x, gamma, mean, rstd, *gradients, *sizes, **_tile_for(x), **wanted)

    def by_torch(self, *inputs: Tensor) -> Tensor:
        x, gamma, beta = (value.float() for value in inputs)
        return F.layer_norm(x, x.shape[-1:], gamma, beta, self.eps)


def _tile_for(x: Tensor) -> dict[str, int]:
    """Rows and columns of a tile (powers of 2, as Triton wants them), and the warps that share it."""
    columns = triton.next_power_of_2(x.shape[-1])
    rows = max(1, TILE // columns)
    warps = min(max(rows * columns // 512, 1), 16)
    return {"WIDTH": x.shape[-1], "ROWS": rows, "COLUMNS": columns, "num_warps": warps}


def _programs_and_tiles(x: Tensor) -> tuple[int, int]:
    """How many programs share a backward pass, and the tiles of each."""
    in_all = triton.cdiv(x.numel() // x.shape[-1], _tile_for(x)["ROWS"])
    tiles = triton.cdiv(in_all, PROGRAMS_PER_PROCESSOR * processors(x.device))
    return triton.cdiv(in_all, tiles), tiles
