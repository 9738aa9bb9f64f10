"""The source network beside the adapted one. They share every weight that does not learn, so a shadow costs little memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from wildtta.kernels import FastPasses
from wildtta.network import Network
from wildtta.network.inputs import Inputs, called
from wildtta.network.output import logits_of
from wildtta.step.engine import Engine
from wildtta.step.precision import pass_precision
from wildtta.step.recorded_pass import RecordedPass


class Shadow:
    """A network as it was when the shadow was made: copies of what will learn, the rest shared."""

    def __init__(self, network: Network, learning: Iterable[str]) -> None:
        names = set(learning)
        module = network.module
        shared: list[Tensor] = [value for name, value in module.named_parameters() if name not in names]
        shared += module.buffers()
        self.network = copy.deepcopy(module, {id(value): value for value in shared}).eval()
        for name, parameter in self.network.named_parameters():
            if name in names:
                parameter.requires_grad_(False)
        self._fast = FastPasses(self.network, self.network.get_submodule(network.head_name))
        self._recorded = RecordedPass()

    @torch.no_grad()
    def logits(self, engine: Engine, call: Tensor | Inputs) -> Tensor:
        """The source network's answers to the samples of a call, at the precision of the adapter's own passes."""
        if isinstance(call, Inputs):
            with pass_precision(engine.precision, call.sample_numbers.device):
                return logits_of(called(self.network, call))

        def run(images: Tensor, recording: bool) -> Tensor:
            with pass_precision(engine.precision, images.device), self._fast.applied(images, recording=recording):
                return logits_of(self._fast.run(images))

        return self._recorded(engine, call, run)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Follow the network to its (new) device and type; what is shared has moved already and stays as it is."""
        self.network._apply(fn)  # type: ignore[no-untyped-call]
        self._fast.forget()
        self._recorded.forget()
