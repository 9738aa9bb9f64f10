"""LayerNorm over the last dimension as one Triton kernel forward and one backward.

With μ, σ² over a row of D values, x̂ = (x − μ)/√(σ² + ε) and r = 1/√(σ² + ε)::

    forward   y = γ∘x̂ + β;  μ and r are kept of each row
    backward  dx = r·(γ∘dy − mean(γ∘dy) − x̂·mean(γ∘dy∘x̂)),  ∂γ = Σ_rows dy∘x̂,  ∂β = Σ_rows dy

(Ba et al. 2016, https://arxiv.org/abs/1607.06450.) A row is read once and kept in registers: its mean first, then squares of
differences, so that a large mean costs no digits. Backward, one reading of x and dy gives dx and the parameters' gradients;
torch reads both twice. Each program adds up ∂γ and ∂β of its own rows and torch adds the programs: nothing is added
atomically, and results repeat bit for bit.

The output may have another type than x: a linear layer under autocast takes bfloat16, and need not be given float32 to cast.

Importing this module needs Triton; :mod:`wildtta.kernels.faster_kernels` does so when a network runs on CUDA.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from wildtta.kernels.triton_support import (
    Kernels,
    gradients_of_torch,
    jit,
    on_device_of,
    once_differentiable,
    processors,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 8192
"""Wider rows do not fit into the registers of a program."""
TILE = 2048
"""Values that a program works on at once: narrow rows are taken several at a time."""
PROGRAMS_PER_PROCESSOR = 4
"""Backward: programs that fit onto a multiprocessor together, each with several tiles of rows."""

kernels = Kernels("LayerNorm")


# -- kernels -------------------------------------------------------------------------------------------------------------
# Triton reads the annotations: of what is not constant they say ``tl.tensor``, pointers and numbers too.


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
    columns = tl.arange(0, COLUMNS)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = (row[:, None] < rows) & (columns < WIDTH)
    offsets = row[:, None].to(tl.int64) * WIDTH + columns
    values = tl.load(x + offsets, mask=exists, other=0.0).to(tl.float32)
    mean = tl.sum(values, 1) / WIDTH
    difference = tl.where(exists, values - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(difference * difference, 1) / WIDTH + eps)
    weight = tl.load(gamma + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    shift = tl.load(beta + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    result = difference * rstd[:, None] * weight + shift
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
    sums: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WANTS_INPUT: tl.constexpr,
    WANTS_PARAMETERS: tl.constexpr,
) -> None:
    """dx of ``tiles`` times ROWS rows, and what these add to ∂γ and ∂β: ``sums`` is [2, programs, WIDTH]."""
    program = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(gamma + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    dgamma = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbeta = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        exists = (row[:, None] < rows) & (columns < WIDTH)
        offsets = row[:, None].to(tl.int64) * WIDTH + columns
        mean = tl.load(means + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstds + row, mask=row < rows, other=0.0)
        slope = tl.load(dy + offsets, mask=exists, other=0.0).to(tl.float32)
        values = tl.load(x + offsets, mask=exists, other=0.0).to(tl.float32)
        # 0 where nothing exists, since dy is.
        normal = (values - mean[:, None]) * rstd[:, None]
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
        place = sums + program * WIDTH + column
        tl.store(place, tl.sum(dgamma, 0), mask=column < WIDTH)
        tl.store(place + tl.num_programs(0) * WIDTH, tl.sum(dbeta, 0), mask=column < WIDTH)


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
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, gamma, beta)):
        return cast(Tensor, cast(Any, _LayerNorm).apply(x, gamma, beta, eps, dtype))
    return _forward(x.contiguous(), gamma, beta, eps, dtype)[0]


def _cut(width: int) -> tuple[int, int, int]:
    """Rows and columns of a tile (powers of 2, as Triton wants them), and the warps that share it."""
    columns = triton.next_power_of_2(width)
    rows = max(1, TILE // columns)
    return rows, columns, min(max(rows * columns // 512, 1), 16)


def _forward(
    x: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    width = x.shape[-1]
    count = x.numel() // width
    y = torch.empty_like(x, dtype=dtype)
    mean, rstd = torch.empty((2, count), dtype=torch.float32, device=x.device).unbind()
    rows, columns, warps = _cut(width)
    with on_device_of(x):
        forward_kernel[(triton.cdiv(count, rows),)](
            x, y, gamma, beta, mean, rstd, count, eps, WIDTH=width, ROWS=rows, COLUMNS=columns, num_warps=warps
        )
    return y, mean, rstd


def _backward(
    dy: Tensor, saved: tuple[Tensor, ...], wants_input: bool, wants_parameters: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, ∂γ and ∂β of ``saved`` (x, γ, β, μ, r)."""
    x, gamma, beta, mean, rstd = saved
    width, count = x.shape[-1], len(mean)
    rows, columns, warps = _cut(width)
    tiles_in_all = triton.cdiv(count, rows)
    tiles = triton.cdiv(tiles_in_all, PROGRAMS_PER_PROCESSOR * processors(x.device))
    programs = triton.cdiv(tiles_in_all, tiles)
    dx = torch.empty_like(x) if wants_input else x  # a kernel needs some pointer; this one is not written to
    sums = torch.empty((2, programs, width), dtype=torch.float32, device=x.device) if wants_parameters else mean
    with on_device_of(x):
        backward_kernel[(programs,)](
            dy,
            x,
            gamma,
            mean,
            rstd,
            dx,
            sums,
            count,
            tiles,
            WIDTH=width,
            ROWS=rows,
            COLUMNS=columns,
            WANTS_INPUT=wants_input,
            WANTS_PARAMETERS=wants_parameters,
            num_warps=warps,
        )
    if not wants_parameters:
        return dx, None, None
    dgamma, dbeta = sums.sum(1).unbind()
    return dx if wants_input else None, dgamma.to(gamma.dtype), dbeta.to(beta.dtype)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        y, mean, rstd = _forward(x, gamma, beta, eps, dtype)
        ctx.save_for_backward(x, gamma, beta, mean, rstd)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta, *_ = saved = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]

        def ours() -> tuple[Tensor | None, ...]:
            return _backward(dy.contiguous(), saved, wanted[0], wanted[1] or wanted[2])

        def torchs() -> tuple[Tensor | None, ...]:
            return gradients_of_torch(functools.partial(_torchs, ctx.eps), (x, gamma, beta), wanted, dy)

        return *kernels.attempt(ours, torchs), None, None


def _torchs(eps: float, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:], gamma.float(), beta.float(), eps)
