"""The kernels of :mod:`wildtta.kernels.group_norm_kernels` as a function with gradients: ``group_norm(x, …)``.

Importing this module needs Triton; :mod:`wildtta.kernels.fused_norms` does so when a network runs on CUDA.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wildtta.kernels.group_norm_kernels import backward_kernel, forward_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_VALUES = 1 << 17
"""Larger groups are left to torch: there are too few of them to fill a GPU with one program each."""
MOST_SIZES = 64
"""Each size of group is compiled once (ResNet-50 has 12); a stream that always brings new ones is left to torch."""
FORWARD_TILE, FORWARD_VALUES = 32768, 16
"""Most values of a group that a program keeps at once, and how many of them are meant for a thread: up to 32 of its registers."""
BACKWARD_TILE, BACKWARD_VALUES = 16384, 8
"""As above, for each of two tensors."""
MOST_WARPS = 32
FUSE_PRODUCTS = False
"""Whether a·b + c may be rounded once: without it y, and so the ReLU's mask, is the same number forward and backward."""

_sizes_seen: set[tuple[int, int]] = set()
_failed = False


class Cut(NamedTuple):
    """How a group is worked on: the tile, whether it holds the whole group, and the warps that share it."""

    rows: int
    columns: int
    whole: bool
    warps: int


def cut_for(channels: int, pixels: int, tile: int, values_per_thread: int) -> Cut:
    """Tiles of at most ``tile`` values, a power of 2 each way (as Triton wants them)."""
    columns = min(triton.next_power_of_2(pixels), tile)
    rows = min(triton.next_power_of_2(channels), tile // columns)
    warps = min(max(1, rows * columns // (32 * values_per_thread)), MOST_WARPS)
    return Cut(rows, columns, rows >= channels and columns >= pixels, warps)


def suits(x: Tensor, groups: int, gamma: Tensor, beta: Tensor) -> bool:
    """Whether the kernels can be used: contiguous images of a known type, no kernel failed so far, not too many sizes."""
    if _failed or type(x) is not Tensor or x.dim() != 4 or x.numel() == 0 or not x.is_contiguous():
        return False
    if x.dtype not in DTYPES or not all(_fits(parameter, x) for parameter in (gamma, beta)):
        return False
    channels, pixels = x.shape[1] // groups, x.shape[2] * x.shape[3]
    # torch has an error of its own for a single value: it is torch's to raise.
    if len(x) * channels * pixels == 1 or channels * pixels > MOST_VALUES:
        return False
    if len(_sizes_seen) < MOST_SIZES:
        _sizes_seen.add((channels, pixels))
    return (channels, pixels) in _sizes_seen


def _fits(parameter: Tensor, x: Tensor) -> bool:
    known = parameter.dtype in (torch.float32, x.dtype)
    return known and parameter.device == x.device and parameter.is_contiguous() and len(parameter) == x.shape[1]


def give_up(error: Exception) -> None:
    """No kernel is used any more in this process; says so once. (Want of memory is no fault of the kernels: it goes on.)"""
    global _failed
    if isinstance(error, torch.cuda.OutOfMemoryError):
        raise error
    if not _failed:
        warnings.warn(f"GroupNorm runs as torch's own, which is slower: a Triton kernel failed ({error})", stacklevel=3)
    _failed = True


def group_norm(
    x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float, *, relu: bool, dtype: torch.dtype
) -> Tensor:
    """``F.group_norm(x, groups, gamma, beta, eps)``, through a ReLU where ``relu``, as ``dtype``; for what :func:`suits`."""
    return cast(Tensor, _GroupNorm.apply(x, gamma, beta, groups, eps, relu, dtype))


def _on_device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device. (Only its interpreter ever sees a tensor elsewhere.)"""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, relu: bool, dtype: torch.dtype
    ) -> Tensor:
        samples, channels, pixels = len(x), x.shape[1] // groups, x.shape[2] * x.shape[3]
        z = torch.empty_like(x, dtype=dtype)
        mean, rstd = torch.empty((2, samples, groups), dtype=torch.float32, device=x.device).unbind()
        cut = cut_for(channels, pixels, FORWARD_TILE, FORWARD_VALUES)
        with _on_device_of(x):
            forward_kernel[(samples * groups,)](
                x,
                z,
                gamma,
                beta,
                mean,
                rstd,
                eps,
                groups,
                CHANNELS=channels,
                PIXELS=pixels,
                ROWS=cut.rows,
                COLUMNS=cut.columns,
                WHOLE=cut.whole,
                RELU=relu,
                num_warps=cut.warps,
                enable_fp_fusion=FUSE_PRODUCTS,
            )
        ctx.save_for_backward(x, gamma, beta, mean, rstd)
        ctx.groups, ctx.eps, ctx.relu = groups, eps, relu
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta, mean, rstd = ctx.saved_tensors
        try:
            found = _gradients(ctx, dz.contiguous(), x, gamma, beta, mean, rstd)
        except Exception as error:
            give_up(error)
            found = _gradients_of_torch(ctx, dz, x, gamma, beta)
        return *found, None, None, None, None


def _gradients(
    ctx: Any, dz: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    samples, groups = len(x), ctx.groups
    channels, pixels = x.shape[1] // groups, x.shape[2] * x.shape[3]
    wants_input, wants_parameters = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
    dx = torch.empty_like(x) if wants_input else x
    # One row per sample, summed by torch: atomic additions would make every run a little different.
    shape = (2, samples, x.shape[1]) if wants_parameters else (2, 0, 0)
    sums = torch.empty(shape, dtype=torch.float32, device=x.device)
    cut = cut_for(channels, pixels, BACKWARD_TILE, BACKWARD_VALUES)
    with _on_device_of(x):
        backward_kernel[(samples * groups,)](
            dz,
            x,
            dx,
            sums[0] if wants_parameters else mean,
            sums[1] if wants_parameters else mean,
            gamma,
            beta,
            mean,
            rstd,
            groups,
            CHANNELS=channels,
            PIXELS=pixels,
            ROWS=cut.rows,
            COLUMNS=cut.columns,
            WHOLE=cut.whole,
            RELU=ctx.relu,
            WANTS_INPUT=wants_input,
            WANTS_PARAMETERS=wants_parameters,
            num_warps=cut.warps,
            enable_fp_fusion=FUSE_PRODUCTS,
        )
    if not wants_parameters:
        return dx, None, None
    dgamma, dbeta = sums.sum(1).unbind()
    return dx if wants_input else None, dgamma.to(gamma.dtype), dbeta.to(beta.dtype)


def _gradients_of_torch(
    ctx: Any, dz: Tensor, x: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The same by torch's own operations: for a kernel that fails when its forward half has already run."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, gamma, beta)]
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        z = F.group_norm(leaves[0].float(), ctx.groups, leaves[1].float(), leaves[2].float(), ctx.eps)
        z = torch.relu(z) if ctx.relu else z
    dx, dgamma, dbeta = torch.autograd.grad(z, leaves, dz.float())
    return dx, dgamma, dbeta
