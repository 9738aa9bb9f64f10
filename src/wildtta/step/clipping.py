"""Gradient clipping, the baseline of figure 7: by value or by norm."""

from __future__ import annotations

from torch import Tensor


def clip_gradient(gradient: Tensor, *, value: float | None = None, norm: float | None = None) -> Tensor:
    """Entries cut to [−value, value]; then the whole scaled down to at most ``norm`` (as torch's ``clip_grad_norm_``)."""
    if value is not None:
        gradient = gradient.clamp(-value, value)
    if norm is not None:
        gradient = gradient * (norm / (gradient.norm() + 1e-6)).clamp(max=1.0)
    return gradient
