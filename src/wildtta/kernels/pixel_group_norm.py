"""GroupNorm on the CPU where a pixel's channels lie together, with a backward pass that works on whole pixels.

torch's own backward pass goes through memory group by group. A group of a ResNet-50 has 2 to 64 channels: with few of them a
processor's wide registers stay empty, and with many pixels of many channels the strides between them fall onto the same places
of the caches. It takes 2 to 4 times as long as what is done here in its place. With μ, 1/σ of a sample's group of n values,
x̂ = (x − μ)/σ and sums over the pixels of a channel (ds, db) and over the channels of a group::

    ds_c = Σ dy·x,   db_c = Σ dy,   k = (Σ_c γ db · μ − Σ_c γ ds) / (n σ³)
    dx = γ/σ · dy + k·x − (k·μ + Σ_c γ db / (n σ)),   ∂γ_c = Σ (ds − μ db)/σ,   ∂β_c = Σ db

A few samples are worked on at a time, so that what was read for the sums is still in the caches for dx.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1 << 21
"""Values that are worked on at a time: 8 MB of each of three tensors."""
SMALLEST = 5 << 17
"""Below this many values (8 maps of 256×14×14 have 401,408) the calls cost more than they save."""
REGISTER = 8
MANY_PIXELS = 2048
"""torch goes through memory pixel by pixel itself from so many pixels on; groups that fill a register are then its best case."""
PIXELS_FORWARD, CHANNELS_FORWARD = 1024, 16
"""Forward it does so from fewer pixels on, and larger groups are no hindrance: only below is it left."""

Gradients = tuple[Tensor | None, ...]


def suits(x: Tensor, groups: int, gamma: Tensor, beta: Tensor) -> bool:
    """Whether the backward pass here is the faster one."""
    if x.dim() != 4 or x.dtype != torch.float32 or x.numel() < SMALLEST or x.shape[1] % groups:
        return False
    if not x.is_contiguous(memory_format=torch.channels_last) or x.is_contiguous():
        return False
    if any(value.dtype != x.dtype or value.shape != x.shape[1:2] for value in (gamma, beta)):
        return False
    return x.shape[2] * x.shape[3] < MANY_PIXELS or x.shape[1] // groups < REGISTER


def group_norm(x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """``F.group_norm(x, groups, gamma, beta, eps)`` for what :func:`suits`."""
    return cast(Tensor, cast(Any, _PixelGroupNorm).apply(x, groups, gamma, beta, eps))


class _PixelGroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        y, mean, rstd = normalised(x, groups, gamma, beta, eps)
        ctx.save_for_backward(x, gamma, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        dx, dgamma, dbeta = gradients(dy.contiguous(memory_format=torch.channels_last), *ctx.saved_tensors)
        return dx, None, dgamma, dbeta, None


def normalised(x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y, and μ and 1/σ [B, G]."""
    number, channels, height, width = x.shape
    size = channels // groups
    if height * width >= PIXELS_FORWARD or size > CHANNELS_FORWARD:
        return torch.native_group_norm(x, gamma, beta, number, channels, height * width, groups, eps)
    y = torch.empty_like(x)
    pixels, results = _pixels(x), _pixels(y)
    sums = torch.stack((pixels.sum(1), torch.mul(pixels, pixels, out=results).sum(1)))
    mean, square = (sums.view(2, number, groups, size).sum(-1) / (size * height * width)).unbind()
    rstd = (square - mean.square()).clamp_(min=0).add_(eps).rsqrt_()
    scale = gamma.view(groups, size) * rstd[..., None]
    shift = beta.view(groups, size) - mean[..., None] * scale
    torch.addcmul(shift.view(number, 1, channels), pixels, scale.view(number, 1, channels), out=results)
    return y, mean, rstd


def gradients(dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """∂x, ∂γ and ∂β from dy and x [B, C, H, W] (channels last), γ [C], and μ and 1/σ [B, G]."""
    dx = torch.empty_like(x)
    samples = max(1, BLOCK // x[0].numel())
    gamma = gamma.view(mean.shape[1], -1)
    blocks = zip(*(torch.split(value, samples) for value in (dy, x, mean, rstd, dx)), strict=True)
    sums = torch.cat([_block(gamma, *block) for block in blocks], 1)
    ds, db = sums.unbind()
    dgamma = ((ds - db * mean[..., None]) * rstd[..., None]).sum(0)
    return dx, dgamma.view(-1), db.sum(0).view(-1)


def _block(gamma: Tensor, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, dx: Tensor) -> Tensor:
    """Fills ``dx`` of a few samples; their ds and db [2, b, G, C/G]."""
    number, channels = x.shape[:2]
    share = 1 / (gamma.shape[1] * x.shape[2] * x.shape[3])
    dy, x, dx = _pixels(dy), _pixels(x), _pixels(dx)
    sums = torch.stack((torch.mul(dy, x, out=dx).sum(1), dy.sum(1))).view(2, number, *gamma.shape)
    of_x, level = (share * (gamma * sums).sum(-1)).unbind()
    along = (level * mean - of_x) * rstd**3
    factors = torch.stack((along, -along * mean - level * rstd))[..., None].expand_as(sums).reshape(2, number, 1, channels)
    torch.addcmul(factors[1], x, factors[0], out=dx)
    dx.addcmul_(dy, (gamma * rstd[..., None]).view(number, 1, channels))
    return sums


def _pixels(maps: Tensor) -> Tensor:
    """[B, C, H, W] as [B, H·W, C], the same memory."""
    return maps.permute(0, 2, 3, 1).view(len(maps), -1, maps.shape[1])
