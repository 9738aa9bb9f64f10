"""What LayerNorm and GroupNorm share: y = γ∘x̂ + β with μ and 1/σ kept, and the gradients of x, γ and β."""

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
    def partial_sums(self, x: Tensor) -> int:
        """How many partial sums of ∂γ and ∂β the backward kernel writes; torch adds them."""

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
        sums = x.new_empty((2, self.partial_sums(x), len(gamma)), dtype=torch.float32) if wants_parameters else None
        given, gradients = (gradient.contiguous(), *inputs, *kept), (dx, *(kept if sums is None else sums.unbind()))
        self.launch_backward(given, gradients, WANTS_INPUT=wants_input, WANTS_PARAMETERS=wants_parameters)
        found = dx if wants_input else None
        if sums is None:
            return found, None, None
        dgamma, dbeta = sums.sum(1).unbind()
        return found, dgamma.to(gamma.dtype), dbeta.to(beta.dtype)


@jit
def load(pointer: tl.tensor, offsets: tl.tensor, exists: tl.tensor) -> Any:
    """Values as float32, 0 where nothing exists."""
    return tl.load(pointer + offsets, mask=exists, other=0.0).to(tl.float32)
