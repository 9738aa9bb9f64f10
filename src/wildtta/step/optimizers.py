"""Optimizer updates on flat vectors, as pure functions: state in, direction and state out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

OptimizerKind = Literal["sgd", "adam", "adamw"]


def momentum_update(
    gradient: Tensor, buffer: Tensor, *, momentum: float, nesterov: bool = False
) -> tuple[Tensor, Tensor]:
    """SGD with momentum as torch has it: b ← m·b + g; the direction is b, or g + m·b with Nesterov."""
    buffer = momentum * buffer + gradient
    return (gradient + momentum * buffer if nesterov else buffer), buffer


def adam_update(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's direction m̂/(√v̂ + ε) and its two averages; ``step`` counts from 1 (Kingma & Ba 2015, as torch has it)."""
    first = first.lerp(gradient, 1 - betas[0])
    second = betas[1] * second + (1 - betas[1]) * gradient.square()
    correction_first = 1 - betas[0] ** step
    correction_second = 1 - betas[1] ** step
    denominator = second.sqrt() / correction_second.sqrt() + epsilon
    return first / correction_first / denominator, first, second


@dataclass(frozen=True)
class FlatOptimizer:
    """SGD, Adam or AdamW on a flat vector: declares its state, and from state and gradient makes the next of both."""

    kind: OptimizerKind
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def first_state(self, like: Tensor) -> dict[str, Tensor]:
        """The state before the first update of a vector ``like`` this."""
        if self.kind == "sgd":
            return {"momentum": torch.zeros_like(like)} if self.momentum else {}
        return {
            "first_moment": torch.zeros_like(like),
            "second_moment": torch.zeros_like(like),
            "updates": torch.zeros((), dtype=like.dtype, device=like.device),
        }

    def update(
        self, values: Tensor, gradient: Tensor, state: Mapping[str, Tensor], lr: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next values and state. Weight decay is decoupled in AdamW and part of the gradient elsewhere, as in torch."""
        if self.weight_decay and self.kind == "adamw":
            values = values * (1 - lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * values
        if self.kind == "sgd":
            if not self.momentum:
                return values - lr * gradient, {}
            direction, buffer = momentum_update(
                gradient, state["momentum"], momentum=self.momentum, nesterov=self.nesterov
            )
            return values - lr * direction, {"momentum": buffer}
        count = state["updates"] + 1
        direction, first, second = adam_update(
            gradient, state["first_moment"], state["second_moment"], count, betas=self.betas
        )
        fresh = {"first_moment": first, "second_moment": second, "updates": count}
        return values - lr * direction, fresh


def clip_gradient(gradient: Tensor, *, value: float | None = None, norm: float | None = None) -> Tensor:
    """Entries cut to [−value, value]; then the whole scaled down to at most ``norm`` (as torch's ``clip_grad_norm_``)."""
    if value is not None:
        gradient = gradient.clamp(-value, value)
    if norm is not None:
        gradient = gradient * (norm / (gradient.norm() + 1e-6)).clamp(max=1.0)
    return gradient
