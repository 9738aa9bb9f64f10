"""The source network beside the adapted one. They share every weight that does not learn, so a shadow costs little memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from wildtta.network.inputs import Inputs, called
from wildtta.network.output import logits_of
from wildtta.step.precision import Precision, pass_precision


class Shadow:
    """A network as it was when the shadow was made: copies of what will learn, the rest shared."""

    def __init__(self, network: nn.Module, learning: Iterable[str]) -> None:
        names = set(learning)
        shared: list[Tensor] = [value for name, value in network.named_parameters() if name not in names]
        shared += network.buffers()
        self.network = copy.deepcopy(network, {id(value): value for value in shared}).eval()
        for name, parameter in self.network.named_parameters():
            if name in names:
                parameter.requires_grad_(False)

    @torch.no_grad()
    def logits(self, call: Tensor | Inputs, precision: Precision) -> Tensor:
        """The source network's answers to the samples of a call."""
        device = (call if isinstance(call, Tensor) else call.sample_numbers).device
        with pass_precision(precision, device):
            return logits_of(called(self.network, call))

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Follow the network to its (new) device and type; what is shared has moved already and stays as it is."""
        self.network._apply(fn)  # type: ignore[no-untyped-call]
