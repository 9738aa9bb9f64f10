"""A module as a pure function of its weights: one flat vector in, so that the weights can be declared state."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class FunctionalModule:
    """``module`` in evaluation mode, called as ``f(weights, inputs)`` with all parameters from one vector."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module).eval().requires_grad_(False)
        self._shapes = {name: parameter.shape for name, parameter in self._module.named_parameters()}

    def first_weights(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The module's own parameters as a vector."""
        parameters = [parameter.reshape(-1) for parameter in self._module.parameters()]
        return torch.cat(parameters).detach().to(device, dtype).clone()

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters (views)."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        pieces = torch.split(weights, sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def __call__(self, weights: Tensor, inputs: Tensor) -> Tensor:
        buffers = {
            name: buffer.to(weights.device, weights.dtype if buffer.is_floating_point() else buffer.dtype)
            for name, buffer in self._module.named_buffers()
        }
        result = torch.func.functional_call(self._module, {**self.named(weights), **buffers}, (inputs,))
        assert isinstance(result, Tensor)
        return result
