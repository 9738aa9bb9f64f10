"""Sharpness-aware minimisation: where to look for the worst neighbour (SAR, Foret et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor


def worst_step(gradient: Tensor, radius: float) -> Tensor:
    """ε̂ = ρ · g/‖g‖₂: the first-order worst perturbation within radius ρ; 0 where the gradient is 0.

    The 1e-12 under the norm is the authors'.
    """
    norm: Tensor = torch.linalg.vector_norm(gradient)
    return gradient * (radius / (norm + 1e-12))
