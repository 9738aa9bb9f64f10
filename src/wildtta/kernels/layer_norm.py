"""LayerNorm over the last dimension as one Triton kernel forward and one backward.

With μ, σ² over a row of D values, x̂ = (x − μ)/√(σ² + ε) and r = 1/√(σ² + ε)::

    forward   y = γ∘x̂ + β;  μ and r are kept of each row
    backward  dx = r·(γ∘dy − mean(γ∘dy) − x̂·mean(γ∘dy∘x̂)),  ∂γ = Σ_rows dy∘x̂,  ∂β = Σ_rows dy

(Ba et al. 2016, https://arxiv.org/abs/1607.06450.) A row is read once and kept in registers: its mean first, then squares
of differences, so that a large mean costs no digits. The backward kernel reads x and dy once for dx and the parameters'
gradients; torch reads both twice. Each program adds up ∂γ and ∂β of its own rows, and torch adds the programs.

A program has rows of one sample only, so that samples may have a γ and β of their own. Where all share one, the whole batch
is one sample here.

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

from wildtta.kernels.norm import DTYPES, Norm, fit_together, load, row_stride
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
def _tile(
    sample: tl.tensor, first: tl.tensor, rows: tl.tensor, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> Any:
    """Rows of a sample from ``first`` on: their numbers and which exist, the offsets of their values and which exist."""
    row = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)[None, :]
    number = sample * rows + row
    offsets = number[:, None].to(tl.int64) * WIDTH + columns
    return number, row < rows, offsets, (row[:, None] < rows) & (columns < WIDTH)


@jit
def forward_kernel(
    x: tl.tensor,
    y: tl.tensor,
    gamma: tl.tensor,
    beta: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    rows: tl.tensor,  # of a sample
    tiles: tl.tensor,  # of a sample
    stride: tl.tensor,  # from one sample's γ and β to the next one's
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """y, μ and r of ROWS rows."""
    sample, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row, row_exists, offsets, exists = _tile(sample, tile * ROWS, rows, WIDTH, ROWS, COLUMNS)
    columns = tl.arange(0, COLUMNS)[None, :]
    gamma, beta = gamma + sample.to(tl.int64) * stride, beta + sample.to(tl.int64) * stride
    values = load(x, offsets, exists)
    mean = tl.sum(values, 1) / WIDTH
    difference = tl.where(exists, values - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(difference * difference, 1) / WIDTH + eps)
    result = difference * rstd[:, None] * load(gamma, columns, columns < WIDTH) + load(beta, columns, columns < WIDTH)
    tl.store(y + offsets, result.to(y.dtype.element_ty), mask=exists)
    tl.store(means + row, mean, mask=row_exists)
    tl.store(rstds + row, rstd, mask=row_exists)


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
    rows: tl.tensor,  # of a sample
    parts: tl.tensor,  # programs that share a sample
    tiles: tl.tensor,  # of each of them
    stride: tl.tensor,  # from one sample's γ to the next one's
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WANTS_INPUT: tl.constexpr,
    WANTS_PARAMETERS: tl.constexpr,
) -> None:
    """dx of ``tiles`` times ROWS rows, and what these add to ∂γ and ∂β: both are [programs, WIDTH]."""
    program = tl.program_id(0)
    sample, part = program // parts, program % parts
    columns = tl.arange(0, COLUMNS)[None, :]
    weight = load(gamma + sample.to(tl.int64) * stride, columns, columns < WIDTH)
    dgamma = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbeta = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        row, row_exists, offsets, exists = _tile(sample, (part * tiles + tile) * ROWS, rows, WIDTH, ROWS, COLUMNS)
        mean, rstd = load(means, row, row_exists), load(rstds, row, row_exists)
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
    if not known or not fit_together(gamma, beta) or x.device != gamma.device or gamma.shape[-1] != x.shape[-1]:
        return False
    return gamma.dim() == 1 or (x.dim() > 1 and len(x) % len(gamma) == 0)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``F.layer_norm(x, x.shape[-1:], gamma, beta, eps)`` as ``dtype``, for what :func:`suits`.

    With ``gamma`` and ``beta`` [B, D] every sample has its own; x begins with the samples, or with several rows of each.
    """
    return LayerNorm(eps, dtype)(x.contiguous(), gamma, beta)


@dataclass(frozen=True)
class LayerNorm(Norm):
    eps: float
    dtype: torch.dtype
    name: ClassVar[str] = "LayerNorm"

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        x, gamma = inputs[:2]
        samples, rows = _samples_and_rows(x, gamma)
        y = torch.empty_like(x, dtype=self.dtype)
        mean, rstd = torch.empty((2, samples * rows), dtype=torch.float32, device=x.device).unbind()
        tile = _tile_for(x)
        tiles = triton.cdiv(rows, tile["ROWS"])
        sizes = (rows, tiles, row_stride(gamma), self.eps)
        forward_kernel[(samples * tiles,)](x, y, *inputs[1:], mean, rstd, *sizes, **tile)
        return y, mean, rstd

    def partial_sums(self, x: Tensor, gamma: Tensor) -> int:
        return _samples_and_rows(x, gamma)[0] * _parts_and_tiles(x, gamma)[0]

    def launch_backward(self, given: Sequence[Tensor], gradients: Sequence[Tensor], **wanted: bool) -> None:
        dy, x, gamma, _, mean, rstd = given
        samples, rows = _samples_and_rows(x, gamma)
        parts, tiles = _parts_and_tiles(x, gamma)
        sizes = (rows, parts, tiles, row_stride(gamma))
        backward_kernel[(samples * parts,)](dy, x, gamma, mean, rstd, *gradients, *sizes, **_tile_for(x), **wanted)

    def by_torch(self, *inputs: Tensor) -> Tensor:
        x, gamma, beta = (value.float() for value in inputs)
        if gamma.dim() == 1:
            return F.layer_norm(x, x.shape[-1:], gamma, beta, self.eps)
        normal = F.layer_norm(x, x.shape[-1:], eps=self.eps).view(len(gamma), -1, x.shape[-1])
        return torch.addcmul(beta[:, None], normal, gamma[:, None]).view(x.shape)


def _tile_for(x: Tensor) -> dict[str, int]:
    """Rows and columns of a tile (powers of 2, as Triton wants them), and the warps that share it."""
    columns = triton.next_power_of_2(x.shape[-1])
    rows = max(1, TILE // columns)
    warps = min(max(rows * columns // 512, 1), 16)
    return {"WIDTH": x.shape[-1], "ROWS": rows, "COLUMNS": columns, "num_warps": warps}


def _samples_and_rows(x: Tensor, gamma: Tensor) -> tuple[int, int]:
    """Samples with a γ of their own (1 where all share it), and the rows of each."""
    samples = 1 if gamma.dim() == 1 else len(gamma)
    return samples, x.numel() // x.shape[-1] // samples


def _parts_and_tiles(x: Tensor, gamma: Tensor) -> tuple[int, int]:
    """How many programs share a sample's backward pass, and the tiles of each: as many as fit onto the GPU together."""
    samples, rows = _samples_and_rows(x, gamma)
    in_all = triton.cdiv(rows, _tile_for(x)["ROWS"])
    parts = max(1, PROGRAMS_PER_PROCESSOR * processors(x.device) // samples)
    tiles = triton.cdiv(in_all, parts)
    return triton.cdiv(in_all, tiles), tiles
