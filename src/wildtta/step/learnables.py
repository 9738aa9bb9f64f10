"""The parameters that learn, seen as one flat vector.

A few hundred small tensors cost a few hundred kernels an operation; as one vector they cost one. The network's own
storage never moves: values are gathered into a vector, worked on there, and copied back in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Learnables:
    """Named parameters with a flat view: ``vector``, ``assign``, ``gradient``."""

    def __init__(self, names: Sequence[str], parameters: Sequence[nn.Parameter]) -> None:
        self.names = list(names)
        self.parameters: list[Tensor] = list(parameters)
        devices = {parameter.device for parameter in self.parameters}
        if len(devices) > 1:
            raise ValueError(
                f"the parameters that learn lie on {sorted(map(str, devices))}; expected one device. "
                "Move the network to one, or choose parameters on one device with parameters="
            )
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.averaged: Callable[[Tensor], Tensor] | None = None
        """The mean of a gradient over replicas, during a step that they take together."""
        self._workspace: Tensor | None = None
        self._views: list[Tensor] = []

    def __getstate__(self) -> dict[str, Any]:
        """Without the workspace: a pickle does not keep that its views are parts of it."""
        return {**vars(self), "_workspace": None, "_views": []}

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The widest type among the parameters."""
        return functools.reduce(torch.promote_types, {parameter.dtype for parameter in self.parameters})

    def _prepare(self) -> list[Tensor]:
        """Views into one workspace, one per parameter; made anew when the network moved or changed its type."""
        workspace = self._workspace
        if workspace is None or workspace.device != self.device or workspace.dtype != self.dtype:
            self._workspace = workspace = torch.empty(self.size, device=self.device, dtype=self.dtype)
            pieces = torch.split(workspace, [parameter.numel() for parameter in self.parameters])
            self._views = [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]
        return self._views

    def vector(self) -> Tensor:
        """A copy of the present values."""
        dtype = self.dtype
        with torch.no_grad():
            return torch.cat([parameter.reshape(-1).to(dtype) for parameter in self.parameters])

    def assign(self, values: Tensor) -> None:
        """Write ``values`` into the parameters, in place."""
        views = self._prepare()
        assert self._workspace is not None
        with torch.no_grad():
            self._workspace.copy_(values)
            torch._foreach_copy_(self.parameters, views)

    def gradient(self, loss: Tensor, *, retain_graph: bool = False) -> Tensor:
        """∂loss/∂θ as a vector; 0 for a parameter that the loss does not reach."""
        return self.gradient_with(loss, (), retain_graph=retain_graph)[0]

    def gradient_with(
        self, loss: Tensor, others: Sequence[Tensor], *, retain_graph: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """∂loss/∂θ as a vector, and the gradients for ``others`` from the same backward pass."""
        wanted = [*self.parameters, *others]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if loss.requires_grad:
            found = torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=retain_graph)
        filled = [torch.zeros_like(at) if piece is None else piece for piece, at in zip(found, wanted, strict=True)]
        number = len(self.parameters)
        dtype = self.dtype
        vector = torch.cat([piece.reshape(-1).to(dtype) for piece in filled[:number]])
        return vector if self.averaged is None else self.averaged(vector), filled[number:]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """``vector`` as named tensors of the parameters' shapes (views)."""
        pieces = torch.split(vector, [parameter.numel() for parameter in self.parameters])
        return {
            name: piece.view(parameter.shape)
            for name, piece, parameter in zip(self.names, pieces, self.parameters, strict=True)
        }

    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """The inverse of :meth:`split`."""
        dtype = self.dtype
        return torch.cat([tensors[name].reshape(-1).to(self.device, dtype) for name in self.names])
