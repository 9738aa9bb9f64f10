"""Optimizer updates on flat vectors, as pure functions: state in, direction and state out."""

from __future__ import annotations

from torch import Tensor


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
