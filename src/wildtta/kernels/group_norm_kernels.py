"""GroupNorm, with a ReLU where one follows, as one Triton kernel forward and one backward.

With μ, σ over a sample's group of n = (C/G)·H·W values, x̂ = (x − μ)/σ and y = γ_c x̂ + β_c; z is y, or max(y, 0)::

    forward   z(x), μ and 1/σ kept
    backward  dy = dz · [y > 0],  ∂β_c = Σ dy,  ∂γ_c = Σ dy·x̂
              dx = (γ_c dy − mean(γ dy) − x̂ · mean(γ dy·x̂)) / σ

A group of a contiguous NCHW tensor is one stretch of memory, so one program per (sample, group) has all it needs. Where the
group fits into the registers of a program, x is read once and z written once, and backward reads x and dz once and writes dx:
the least that can be. torch's own layers read and write about twice as much. y is not kept: its sign is computed again from
x. Nothing is added atomically, so that results repeat bit for bit.

Importing this module needs Triton; :mod:`wildtta.kernels.fused_norms` does so when a network runs on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


def _jit(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


# Sizes are compile-time constants: a compiler that knows H·W can tell which addresses are aligned, and loads four at once.
# A group is seen as [channels, pixels] and worked on tile by tile; ``WHOLE`` says that one tile holds all of it.
# Triton reads the annotations: of what is not constant they say ``tl.tensor``, pointers and numbers too.


@_jit
def _tile(
    channels: tl.tensor, column: tl.tensor, CHANNELS: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr
) -> Any:
    """Offsets within the group [rows, columns] of pixels from ``column`` on, and which of these exist."""
    pixels = column + tl.arange(0, COLUMNS)[None, :]
    return channels * PIXELS + pixels, (channels < CHANNELS) & (pixels < PIXELS)


@_jit
def _load(pointer: tl.tensor, offsets: tl.tensor, exists: tl.tensor) -> Any:
    return tl.load(pointer + offsets, mask=exists, other=0.0).to(tl.float32)


@_jit
def _total(tile: tl.tensor) -> Any:
    return tl.sum(tl.sum(tile, axis=1), axis=0)


@_jit
def _moments(x: tl.tensor, exists: tl.tensor, count: tl.tensor) -> Any:
    """Mean and Σ(x − mean)² of the values that exist: differences first, so that a large mean costs no digits."""
    mean = _total(x) / count
    difference = tl.where(exists, x - mean, 0.0)
    return mean, _total(difference * difference)


@_jit
def _affine(x: tl.tensor, mean: tl.tensor, rstd: tl.tensor, gamma: tl.tensor, beta: tl.tensor) -> Any:
    """x̂ and y; one function for both directions, so that both see the same sign of y."""
    normal = (x - mean) * rstd
    return normal, normal * gamma + beta


@_jit
def _write(
    z: tl.tensor,
    x: tl.tensor,
    offsets: tl.tensor,
    exists: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    gamma: tl.tensor,
    beta: tl.tensor,
    RELU: tl.constexpr,
) -> None:
    _, y = _affine(x, mean, rstd, gamma, beta)
    if RELU:
        y = tl.where(y < 0.0, 0.0, y)  # as torch's: what is not a number stays none
    tl.store(z + offsets, y, mask=exists)


@_jit
def forward_kernel(
    x: tl.tensor,
    z: tl.tensor,
    gammas: tl.tensor,
    betas: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    eps: tl.tensor,
    groups: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    RELU: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    x += program.to(tl.int64) * (CHANNELS * PIXELS)
    z += program.to(tl.int64) * (CHANNELS * PIXELS)
    gammas += (program % groups) * CHANNELS
    betas += (program % groups) * CHANNELS
    if WHOLE:
        channels = tl.arange(0, ROWS)[:, None]
        offsets, exists = _tile(channels, 0, CHANNELS, PIXELS, COLUMNS)
        values = _load(x, offsets, exists)
        gamma, beta = _load(gammas, channels, channels < CHANNELS), _load(betas, channels, channels < CHANNELS)
        mean, squares = _moments(values, exists, CHANNELS * PIXELS)
        rstd = 1.0 / tl.sqrt(squares / (CHANNELS * PIXELS) + eps)
        _write(z, values, offsets, exists, mean, rstd, gamma, beta, RELU)
    else:
        mean, squares, seen = 0.0, 0.0, 0.0
        for row in range(0, CHANNELS, ROWS):
            channels = row + tl.arange(0, ROWS)[:, None]
            for column in range(0, PIXELS, COLUMNS):
                offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                # Chan's rule: the moments of two sets from the moments of each.
                count = _total(exists.to(tl.float32))
                tile_mean, tile_squares = _moments(_load(x, offsets, exists), exists, count)
                apart, share = tile_mean - mean, count / (seen + count)
                mean += apart * share
                squares += tile_squares + apart * apart * seen * share
                seen += count
        rstd = 1.0 / tl.sqrt(squares / (CHANNELS * PIXELS) + eps)
        for row in range(0, CHANNELS, ROWS):
            channels = row + tl.arange(0, ROWS)[:, None]
            gamma, beta = _load(gammas, channels, channels < CHANNELS), _load(betas, channels, channels < CHANNELS)
            for column in range(0, PIXELS, COLUMNS):
                offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                _write(z, _load(x, offsets, exists), offsets, exists, mean, rstd, gamma, beta, RELU)
    tl.store(means + program, mean)
    tl.store(rstds + program, rstd)


@_jit
def _incoming(
    dz: tl.tensor,
    x: tl.tensor,
    offsets: tl.tensor,
    exists: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    gamma: tl.tensor,
    beta: tl.tensor,
    RELU: tl.constexpr,
) -> Any:
    """x̂ and dy of a tile, 0 where nothing exists."""
    normal, y = _affine(_load(x, offsets, exists), mean, rstd, gamma, beta)
    dy = _load(dz, offsets, exists)
    if RELU:
        dy = tl.where(y <= 0.0, 0.0, dy)
    return normal, dy


@_jit
def _channel_sums(normal: tl.tensor, dy: tl.tensor) -> Any:
    """Σ dy·x̂ and Σ dy of each channel [rows, 1]. (dy is 0 where nothing exists, so its product is.)"""
    return tl.sum(dy * normal, axis=1)[:, None], tl.sum(dy, axis=1)[:, None]


@_jit
def backward_kernel(
    dz: tl.tensor,
    x: tl.tensor,
    dx: tl.tensor,
    dgammas: tl.tensor,
    dbetas: tl.tensor,
    gammas: tl.tensor,
    betas: tl.tensor,
    means: tl.tensor,
    rstds: tl.tensor,
    groups: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    RELU: tl.constexpr,
    WANTS_INPUT: tl.constexpr,
    WANTS_PARAMETERS: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    x += program.to(tl.int64) * (CHANNELS * PIXELS)
    dz += program.to(tl.int64) * (CHANNELS * PIXELS)
    dx += program.to(tl.int64) * (CHANNELS * PIXELS)
    gammas += (program % groups) * CHANNELS
    betas += (program % groups) * CHANNELS
    dgammas += program * CHANNELS
    dbetas += program * CHANNELS
    mean, rstd = tl.load(means + program), tl.load(rstds + program)
    if WHOLE:
        channels = tl.arange(0, ROWS)[:, None]
        offsets, exists = _tile(channels, 0, CHANNELS, PIXELS, COLUMNS)
        real = channels < CHANNELS
        gamma, beta = _load(gammas, channels, real), _load(betas, channels, real)
        normal, dy = _incoming(dz, x, offsets, exists, mean, rstd, gamma, beta, RELU)
        dgamma, dbeta = _channel_sums(normal, dy)
        if WANTS_PARAMETERS:
            tl.store(dgammas + channels, dgamma, mask=real)
            tl.store(dbetas + channels, dbeta, mask=real)
        if WANTS_INPUT:
            along = _total(gamma * dgamma) / (CHANNELS * PIXELS)
            level = _total(gamma * dbeta) / (CHANNELS * PIXELS)
            tl.store(dx + offsets, (gamma * dy - level - normal * along) * rstd, mask=exists)
    else:
        along, level = 0.0, 0.0
        for row in range(0, CHANNELS, ROWS):
            channels = row + tl.arange(0, ROWS)[:, None]
            real = channels < CHANNELS
            gamma, beta = _load(gammas, channels, real), _load(betas, channels, real)
            dgamma, dbeta = tl.zeros([ROWS, 1], tl.float32), tl.zeros([ROWS, 1], tl.float32)
            for column in range(0, PIXELS, COLUMNS):
                offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                normal, dy = _incoming(dz, x, offsets, exists, mean, rstd, gamma, beta, RELU)
                more_dgamma, more_dbeta = _channel_sums(normal, dy)
                dgamma += more_dgamma
                dbeta += more_dbeta
            if WANTS_PARAMETERS:
                tl.store(dgammas + channels, dgamma, mask=real)
                tl.store(dbetas + channels, dbeta, mask=real)
            along += _total(gamma * dgamma) / (CHANNELS * PIXELS)
            level += _total(gamma * dbeta) / (CHANNELS * PIXELS)
        if WANTS_INPUT:
            for row in range(0, CHANNELS, ROWS):
                channels = row + tl.arange(0, ROWS)[:, None]
                real = channels < CHANNELS
                gamma, beta = _load(gammas, channels, real), _load(betas, channels, real)
                for column in range(0, PIXELS, COLUMNS):
                    offsets, exists = _tile(channels, column, CHANNELS, PIXELS, COLUMNS)
                    normal, dy = _incoming(dz, x, offsets, exists, mean, rstd, gamma, beta, RELU)
                    tl.store(dx + offsets, (gamma * dy - level - normal * along) * rstd, mask=exists)
