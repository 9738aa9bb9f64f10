"""The entropy around a network's weights, and what each sample pulls on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wildtta.methods.losses import entropy
from wildtta.randomness import torch_generator

Forward = Callable[[Tensor], Tensor]


def filter_normalised_direction(parameters: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """A random direction with each filter's norm: d_f ← d_f · ‖θ_f‖ / ‖d_f‖.

    Li et al., "Visualizing the Loss Landscape of Neural Nets", 2018. A filter is a weight's slice along its first
    dimension; biases and norm layers' vectors stay where they are, as there: rescaling a network's filters would
    otherwise change how flat it looks.
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
    network: nn.Module,
    images: Sequence[Tensor],
    *,
    forward: Forward | None = None,
    span: float = 1.0,
    steps: int = 11,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Mean prediction entropy on a plane of weights, θ + a·d₁ + b·d₂ (figures 9 and C).

    Args:
        network: its weights are moved and put back exactly.
        images: batches of network inputs.
        forward: how to predict; the network itself where absent.
        span: a and b run from −span to span.
        steps: points per axis.
        seed: of the two directions.
        progress: called with (points done, points in all).

    Returns:
        ``{"axis": [steps], "entropy": [steps][steps], "centre": value at the weights themselves}``; rows are a.
    """
    predict: Forward = network if forward is None else forward
    parameters = dict(network.named_parameters())
    generator = torch_generator(seed)
    directions = [filter_normalised_direction(parameters, generator) for _ in range(2)]
    axis = np.linspace(-span, span, steps)
    kept = {name: parameters[name].detach().clone() for name in directions[0]}
    values: list[Tensor] = []
    try:
        with torch.no_grad():
            centre = _mean_entropy(predict, images)
            for a in axis:
                for b in axis:
                    for name, origin in kept.items():
                        moved = origin + float(a) * directions[0][name] + float(b) * directions[1][name]
                        parameters[name].copy_(moved)
                    values.append(_mean_entropy(predict, images))
                    if progress is not None:
                        progress(len(values), steps * steps)
    finally:
        with torch.no_grad():
            for name, origin in kept.items():
                parameters[name].copy_(origin)
    table = torch.stack(values).reshape(steps, steps).double().cpu().numpy()
    return {"axis": axis.tolist(), "entropy": table.tolist(), "centre": float(centre)}


def _mean_entropy(predict: Forward, images: Sequence[Tensor]) -> Tensor:
    return torch.cat([entropy(predict(batch)) for batch in images]).mean()


def entropy_gradient_scatter(
    network: nn.Module, images: Tensor, parameters: Sequence[nn.Parameter], *, forward: Forward | None = None
) -> dict[str, list[float]]:
    """For each sample its entropy and ‖∇E‖₂ over ``parameters`` (figure 3c); neither weights nor gradients change.

    A sample at a time: the norm of a sum says nothing about its terms.
    """
    predict: Forward = network if forward is None else forward
    entropies: list[Tensor] = []
    norms: list[Tensor] = []
    with _learning(parameters), torch.enable_grad():
        for image in images:
            value = entropy(predict(image[None])).squeeze(0)
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            entropies.append(value.detach())
            norms.append(torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt())
    return {
        "entropy": [round(value, 6) for value in torch.stack(entropies).double().cpu().tolist()],
        "gradient_norm": [float(f"{value:.6g}") for value in torch.stack(norms).double().cpu().tolist()],
    }


@contextmanager
def _learning(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, state in zip(parameters, before, strict=True):
            parameter.requires_grad_(state)
