"""What LayerNorm and GroupNorm share: y = γ∘x̂ + β with μ and 1/σ kept, and the gradients of x, γ and β.

γ and β are one vector [C] for all samples, or each sample has its own row of [B, C] (a fleet's streams in one batch). A
kernel takes both by the stride from one sample's row to the next, which is 0 where they share one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from wildtta.kernels.operation import Gradients, Operation, jit

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Norm(Operation):
    """An :class:`Operation` of x, γ and β that keeps μ and 1/σ."""

    @abstractmethod
    def partial_sums(self, x: Tensor, gamma: Tensor) -> int:
        """How many partial sums of ∂γ and ∂β the backward kernel writes, those of a sample together; torch adds them."""

    @abstractmethod
    def launch_backward(self, given: Sequence[Tensor], gradients: Sequence[Tensor], **wanted: bool) -> None:
        """From ``given`` (dy, x, γ, β, μ, 1/σ) fill ``gradients`` (dx, and the partial sums of ∂γ and of ∂β)."""

    def backward(
        self, gradient: Tensor, inputs: Sequence[Tensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> Gradients:
        x, gamma, beta = inputs
        wants_input, wants_parameters = wanted[0], wanted[1] or wanted[2]
        # A kernel needs some pointer for what is not wanted; nothing is written there.
        dx = torch.empty_like(x) if wants_input else x
        shape = (2, self.partial_sums(x, gamma), gamma.shape[-1])
        sums = x.new_empty(shape, dtype=torch.float32) if wants_parameters else None
        given, gradients = (gradient.contiguous(), *inputs, *kept), (dx, *(kept if sums is None else sums.unbind()))
        self.launch_backward(given, gradients, WANTS_INPUT=wants_input, WANTS_PARAMETERS=wants_parameters)
        found = dx if wants_input else None
        if sums is None:
            return found, None, None
        parts = sums.view(2, *gamma.shape[:-1], -1, gamma.shape[-1])
        dgamma, dbeta = (parts.sum(-2) if parts.shape[-2] > 1 else parts.squeeze(-2)).unbind()
        return found, dgamma.to(gamma.dtype), dbeta.to(beta.dtype)


def fit_together(gamma: Tensor, beta: Tensor) -> bool:
    """Whether γ and β are vectors, or rows of two tables with the same stride, without gaps between values."""
    if gamma.shape != beta.shape or gamma.dim() not in (1, 2) or gamma.device != beta.device:
        return False
    return gamma.stride() == beta.stride() and gamma.stride(-1) == 1


def row_stride(gamma: Tensor) -> int:
    """From one sample's values to the next one's; 0 where all samples share them."""
    return 0 if gamma.dim() == 1 else gamma.stride(0)


@jit
def load(pointer: tl.tensor, offsets: tl.tensor, exists: tl.tensor) -> Any:
    """Values as float32, 0 where nothing exists."""
    return tl.load(pointer + offsets, mask=exists, other=0.0).to(tl.float32)
