"""GroupNorm, with a ReLU where one follows, as one Triton kernel forward and one backward.

With μ, σ over a sample's group of n = (C/G)·H·W values, x̂ = (x − μ)/σ and y = γ_c x̂ + β_c; z is y, or max(y, 0)::

    forward   z(x), μ and 1/σ kept
    backward  dy = dz · [y > 0],  ∂β_c = Σ dy,  ∂γ_c = Σ dy·x̂
              dx = (γ_c dy − mean(γ dy) − x̂ · mean(γ dy·x̂)) / σ

A group of a contiguous NCHW tensor is one stretch of memory, so one program per (sample, group) has all it needs. Where
the group fits into the registers of a program, x is read once and z written once, and backward reads x and dz once and
writes dx: the least that can be. torch's own layers read and write about twice as much. y is not kept: its sign is
computed again from x.
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
from wildtta.kernels.operation import jit

MOST_VALUES = 1 << 17
"""Larger groups are left to torch: there are too few of them to fill a GPU with one program each."""
MOST_SIZES = 64
"""Each size of group is compiled once (ResNet-50 has 12); a stream that always brings new ones is left to torch."""
FORWARD_TILE, FORWARD_VALUES = 32768, 16
"""Most values of a group that a program keeps at once, and how many of them are meant for a thread: up to 32 registers."""
BACKWARD_TILE, BACKWARD_VALUES = 16384, 8
"""As above, for each of two tensors."""
MOST_WARPS = 32
FUSE_PRODUCTS = False
"""Whether a·b + c may be rounded once: without it y, and so the ReLU's mask, is the same number forward and backward."""

_sizes_seen: set[tuple[int, int]] = set()


# -- kernels -------------------------------------------------------------------------------------------------------------
# Sizes are compile-time constants: a compiler that knows H·W can tell which addresses are aligned, and loads four at once.
# A group is seen as [channels, pixels] and worked on tile by tile; ``WHOLE`` says that one tile holds all of it.
# Triton reads the annotations: of what is not constant they say ``tl.tensor``, pointers and numbers too.


@jit
def _tile(
    channels: tl.tensor, column: tl.tensor, CHANNELS: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr
) -> Any:
    """Offsets within the group [rows, columns] of pixels from ``column`` on, and which of these exist."""
    pixels = column + tl.arange(0, COLUMNS)[None, :]
    return channels * PIXELS + pixels, (channels < CHANNELS) & (pixels < PIXELS)


@jit
def _first_parameter(program: tl.tensor, groups: tl.tensor, stride: tl.tensor, CHANNELS: tl.constexpr) -> Any:
    """Where the γ and β of this program's sample and group begin."""
    return (program // groups).to(tl.int64) * stride + (program % groups) * CHANNELS


@jit
def _parameters(gammas: tl.tensor, betas: tl.tensor, row: tl.tensor, CHANNELS: tl.constexpr, ROWS: tl.constexpr) -> Any:
    """Channels from ``row`` on [rows, 1], with their γ and β."""
    channels = row + tl.arange(0, ROWS)[:, None]
    return channels, load(gammas, channels, channels < CHANNELS), load(betas, channels, channels < CHANNELS)


@jit
def _total(tile: tl.tensor) -> Any:
    return tl.sum(tl.sum(tile, axis=1), axis=0)


@jit
def _moments(x: tl.tensor, exists: tl.tensor, count: tl.tensor) -> Any:
    """Mean and Σ(x − mean)² of the values that exist: differences first, so that a large mean costs no digits."""
    mean = _total(x) / count
    difference = tl.where(exists, x - mean, 0.0)
    return mean, _total(difference * difference)


@jit
def _affine(x: tl.tensor, mean: tl.tensor, rstd: tl.tensor, gamma: tl.tensor, beta: tl.tensor) -> Any:
    """x̂ and y; one function for both directions, so that both see the same sign of y."""
    normal = (x - mean) * rstd
    return normal, normal * gamma + beta


@jit
def _rectified(y: tl.tensor, RELU: tl.constexpr) -> Any:
    if RELU:
        y = tl.where(y < 0.0, 0.0, y)  # as torch's: what is not a number stays none
    return y


@jit
def forward_kernel(
    x: tl.tensor,
    z: tl.tensor,
    gammas: tl.tensor,
    betas: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    eps: tl.tensor,
    groups: tl.tensor,
    stride: tl.tensor,  # from one sample's γ and β to the next one's
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr,  # of a group
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,  # of a tile
    RELU: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    start, first = program.to(tl.int64) * (CHANNELS * PIXELS), _first_parameter(program, groups, stride, CHANNELS)
    x, z, gammas, betas = x + start, z + start, gammas + first, betas + first
    if WHOLE:
        channels, gamma, beta = _parameters(gammas, betas, 0, CHANNELS, ROWS)
        offsets, exists = _tile(channels, 0, CHANNELS, PIXELS, COLUMNS)
        values = load(x, offsets, exists)
        mean, squares = _moments(values, exists, CHANNELS * PIXELS)
        rstd = 1.0 / tl.sqrt(squares / (CHANNELS * PIXELS) + eps)
        _, y = _affine(values, mean, rstd, gamma, beta)
        tl.store(z + offsets, _rectified(y, RELU), mask=exists)
    else:
        mean, squares, seen = 0.0, 0.0, 0.0
        for row in range(0, CHANNELS, ROWS):
            channels = row + tl.arange(0, ROWS)[:, None]
            for column in range(0, PIXELS, COLUMNS):
                offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                # Chan's rule: the moments of two sets from the moments of each.
                count = _total(exists.to(tl.float32))
                tile_mean, tile_squares = _moments(load(x, offsets, exists), exists, count)
                apart, share = tile_mean - mean, count / (seen + count)
                mean += apart * share
                squares += tile_squares + apart * apart * seen * share
                seen += count
        rstd = 1.0 / tl.sqrt(squares / (CHANNELS * PIXELS) + eps)
        for row in range(0, CHANNELS, ROWS):
            channels, gamma, beta = _parameters(gammas, betas, row, CHANNELS, ROWS)
            for column in range(0, PIXELS, COLUMNS):
                offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                _, y = _affine(load(x, offsets, exists), mean, rstd, gamma, beta)
                tl.store(z + offsets, _rectified(y, RELU), mask=exists)
    tl.store(means + program, mean)
    tl.store(rstds + program, rstd)


@jit
def _incoming(
    dz: tl.tensor, x: tl.tensor, offsets: tl.tensor, exists: tl.tensor,
    mean: tl.tensor, rstd: tl.tensor, gamma: tl.tensor, beta: tl.tensor,
    RELU: tl.constexpr,
) -> Any:
    """x̂ and dy of a tile, 0 where nothing exists."""
    normal, y = _affine(load(x, offsets, exists), mean, rstd, gamma, beta)
    dy = load(dz, offsets, exists)
    if RELU:
        dy = tl.where(y <= 0.0, 0.0, dy)
    return normal, dy


@jit
def _channel_sums(normal: tl.tensor, dy: tl.tensor) -> Any:
    """Σ dy·x̂ and Σ dy of each channel [rows, 1]. (dy is 0 where nothing exists, so its product is.)"""
    return tl.sum(dy * normal, axis=1)[:, None], tl.sum(dy, axis=1)[:, None]


@jit
def _store_sums(
    dgammas: tl.tensor, dbetas: tl.tensor, channels: tl.tensor, dgamma: tl.tensor, dbeta: tl.tensor,
    CHANNELS: tl.constexpr, WANTED: tl.constexpr,
) -> None:
    if WANTED:
        tl.store(dgammas + channels, dgamma, mask=channels < CHANNELS)
        tl.store(dbetas + channels, dbeta, mask=channels < CHANNELS)


@jit
def _means(gamma: tl.tensor, dgamma: tl.tensor, dbeta: tl.tensor, COUNT: tl.constexpr) -> Any:
    """mean(γ dy·x̂) and mean(γ dy)."""
    return _total(gamma * dgamma) / COUNT, _total(gamma * dbeta) / COUNT


@jit
def backward_kernel(
    dz: tl.tensor,
    x: tl.tensor,
    gammas: tl.tensor,
    betas: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    dx: tl.tensor,
    dgammas: tl.tensor,
    dbetas: tl.tensor,
    groups: tl.tensor,
    stride: tl.tensor,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
    RELU: tl.constexpr, WANTS_INPUT: tl.constexpr, WANTS_PARAMETERS: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    start, first = program.to(tl.int64) * (CHANNELS * PIXELS), _first_parameter(program, groups, stride, CHANNELS)
    x, dz, dx, gammas, betas = x + start, dz + start, dx + start, gammas + first, betas + first
    dgammas, dbetas = dgammas + program * CHANNELS, dbetas + program * CHANNELS
    mean, rstd = tl.load(means + program), tl.load(rstds + program)
    if WHOLE:
        channels, gamma, beta = _parameters(gammas, betas, 0, CHANNELS, ROWS)
        offsets, exists = _tile(channels, 0, CHANNELS, PIXELS, COLUMNS)
        normal, dy = _incoming(dz, x, offsets, exists, mean, rstd, gamma, beta, RELU)
        dgamma, dbeta = _channel_sums(normal, dy)
        _store_sums(dgammas, dbetas, channels, dgamma, dbeta, CHANNELS, WANTS_PARAMETERS)
        along, level = _means(gamma, dgamma, dbeta, CHANNELS * PIXELS)
        if WANTS_INPUT:
            tl.store(dx + offsets, (gamma * dy - level - normal * along) * rstd, mask=exists)
    else:
        along, level = 0.0, 0.0
        for row in range(0, CHANNELS, ROWS):
            channels, gamma, beta = _parameters(gammas, betas, row, CHANNELS, ROWS)
            dgamma, dbeta = tl.zeros([ROWS, 1], tl.float32), tl.zeros([ROWS, 1], tl.float32)
            for column in range(0, PIXELS, COLUMNS):
                offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                normal, dy = _incoming(dz, x, offsets, exists, mean, rstd, gamma, beta, RELU)
                more_dgamma, more_dbeta = _channel_sums(normal, dy)
                dgamma += more_dgamma
                dbeta += more_dbeta
            _store_sums(dgammas, dbetas, channels, dgamma, dbeta, CHANNELS, WANTS_PARAMETERS)
            more_along, more_level = _means(gamma, dgamma, dbeta, CHANNELS * PIXELS)
            along += more_along
            level += more_level
        if WANTS_INPUT:
            for row in range(0, CHANNELS, ROWS):
                channels, gamma, beta = _parameters(gammas, betas, row, CHANNELS, ROWS)
                for column in range(0, PIXELS, COLUMNS):
                    offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                    normal, dy = _incoming(dz, x, offsets, exists, mean, rstd, gamma, beta, RELU)
                    tl.store(dx + offsets, (gamma * dy - level - normal * along) * rstd, mask=exists)


# -- launching -----------------------------------------------------------------------------------------------------------


def suits(x: Tensor, groups: int, gamma: Tensor, beta: Tensor) -> bool:
    """Whether the kernels can be used: contiguous images of a known type, groups not too large, not too many sizes."""
    if x.dim() != 4 or x.numel() == 0 or not x.is_contiguous() or x.dtype not in DTYPES:
        return False
    if not fit_together(gamma, beta) or gamma.shape[-1] != x.shape[1] or (gamma.dim() == 2 and len(gamma) != len(x)):
        return False
    if any(value.dtype not in (torch.float32, x.dtype) or value.device != x.device for value in (gamma, beta)):
        return False
    channels, pixels = x.shape[1] // groups, x.shape[2] * x.shape[3]
    # torch has an error of its own for a single value: it is torch's to raise.
    if len(x) * channels * pixels == 1 or channels * pixels > MOST_VALUES:
        return False
    if len(_sizes_seen) < MOST_SIZES:
        _sizes_seen.add((channels, pixels))
    return (channels, pixels) in _sizes_seen


def group_norm(
    x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float, *, relu: bool, dtype: torch.dtype
) -> Tensor:
    """``F.group_norm(x, groups, gamma, beta, eps)``, through a ReLU where ``relu``, as ``dtype``; for what :func:`suits`.

    With ``gamma`` and ``beta`` [B, C] every sample has its own.
    """
    return GroupNorm(groups, eps, relu, dtype)(x, gamma, beta)


@dataclass(frozen=True)
class GroupNorm(Norm):
    groups: int
    eps: float
    relu: bool
    dtype: torch.dtype
    name: ClassVar[str] = "GroupNorm"

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        x = inputs[0]
        z = torch.empty_like(x, dtype=self.dtype)
        mean, rstd = torch.empty((2, len(x), self.groups), dtype=torch.float32, device=x.device).unbind()
        constants = self._constants(x, FORWARD_TILE, FORWARD_VALUES)
        sizes = (self.eps, self.groups, row_stride(inputs[1]))
        forward_kernel[(mean.numel(),)](x, z, *inputs[1:], mean, rstd, *sizes, **constants)
        return z, mean, rstd

    def partial_sums(self, x: Tensor, gamma: Tensor) -> int:
        return len(x)

    def launch_backward(self, given: Sequence[Tensor], gradients: Sequence[Tensor], **wanted: bool) -> None:
        x, gamma = given[1:3]
        constants = self._constants(x, BACKWARD_TILE, BACKWARD_VALUES)
        sizes = (self.groups, row_stride(gamma))
        backward_kernel[(len(x) * self.groups,)](*given, *gradients, *sizes, **constants, **wanted)

    def by_torch(self, *inputs: Tensor) -> Tensor:
        x, gamma, beta = (value.float() for value in inputs)
        if gamma.dim() == 1:
            y = F.group_norm(x, self.groups, gamma, beta, self.eps)
        else:
            pixels = (..., *[None] * (x.dim() - 2))
            y = torch.addcmul(beta[pixels], F.group_norm(x, self.groups, eps=self.eps), gamma[pixels])
        return torch.relu(y) if self.relu else y

    def _constants(self, x: Tensor, tile: int, values_per_thread: int) -> dict[str, Any]:
        """Sizes, tiles of at most ``tile`` values, a power of 2 each way (as Triton wants them), and the warps."""
        channels, pixels = x.shape[1] // self.groups, x.shape[2] * x.shape[3]
        columns = min(triton.next_power_of_2(pixels), tile)
        rows = min(triton.next_power_of_2(channels), tile // columns)
        return {
            "CHANNELS": channels,
            "PIXELS": pixels,
            "ROWS": rows,
            "COLUMNS": columns,
            "WHOLE": rows >= channels and columns >= pixels,
            "RELU": self.relu,
            "num_warps": min(max(1, rows * columns // (32 * values_per_thread)), MOST_WARPS),
            "enable_fp_fusion": FUSE_PRODUCTS,
        }
