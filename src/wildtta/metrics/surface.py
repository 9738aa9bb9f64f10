"""The entropy around a network's weights, and each sample's gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from wildtta.methods.losses import entropy
from wildtta.randomness import torch_generator


def filter_normalised_direction(parameters: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """A random direction with each filter's norm: d_f ← d_f · ‖θ_f‖ / ‖d_f‖.

    Li et al., "Visualizing the Loss Landscape of Neural Nets", 2018. A filter is a weight's slice along its
    first dimension; biases and norm layers' vectors stay where they are, as there: rescaling a network's
    filters would otherwise change how flat it looks.
    """
    direction: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        if parameter.dim() < 2:
            continue
        # Drawn on the host, so that every device sees the same direction.
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter)
        norm = drawn.flatten(1).norm(dim=1).clamp(min=1e-12)
        scale = parameter.detach().flatten(1).norm(dim=1) / norm
        direction[name] = drawn * scale.reshape(-1, *[1] * (parameter.dim() - 1))
    return direction


def entropy_surface(
    network: nn.Module, images: Sequence[Tensor], *, span: float = 1.0, steps: int = 11, seed: int = 0
) -> dict[str, Any]:
    """Mean prediction entropy on a plane of weights, θ + a·d₁ + b·d₂ (figures 9 and C); θ stays.

    Args:
        network: the classifier with weights θ.
        images: batches of network inputs.
        span: a and b run from −span to span.
        steps: points per axis.
        seed: of the two directions.

    Returns:
        ``{"axis": [steps], "entropy": [steps][steps], "centre": value at the weights}``; rows are a.
    """
    parameters = dict(network.named_parameters())
    generator = torch_generator(seed)
    first, second = (filter_normalised_direction(parameters, generator) for _ in range(2))
    axis = np.linspace(-span, span, steps)

    def mean_entropy(weights: dict[str, Tensor]) -> float:
        return float(torch.cat([entropy(functional_call(network, weights, batch)) for batch in images]).mean())

    def at(a: float, b: float) -> dict[str, Tensor]:
        return {name: parameters[name] + a * first[name] + b * second[name] for name in first}

    with torch.no_grad():
        table = [[mean_entropy(at(float(a), float(b))) for b in axis] for a in axis]
        return {"axis": axis.tolist(), "entropy": table, "centre": mean_entropy({})}


def entropy_gradient_scatter(
    network: nn.Module, images: Tensor, parameters: Sequence[nn.Parameter]
) -> dict[str, list[float]]:
    """For each sample its entropy and ‖∇E‖₂ over ``parameters`` (figure 3c); the network stays as it is.

    A sample at a time: the norm of a sum says nothing about its terms.
    """
    chosen = {id(parameter) for parameter in parameters}
    leaves = {name: p.detach().requires_grad_() for name, p in network.named_parameters() if id(p) in chosen}
    found: list[Tensor] = []
    with torch.enable_grad():
        for image in images:
            value = entropy(functional_call(network, leaves, image[None])).squeeze(0)
            gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
            norm = torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt()
            found.append(torch.stack([value.detach(), norm]))
    entropies, norms = torch.stack(found).cpu().double().T.tolist()
    return {"entropy": [round(e, 6) for e in entropies], "gradient_norm": [float(f"{n:.6g}") for n in norms]}
