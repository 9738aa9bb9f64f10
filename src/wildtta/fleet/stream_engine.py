"""One stream as a method sees it: an engine whose weights and state are the stream's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wildtta.fleet.norm_weights import own_weights
from wildtta.step.engine import Engine
from wildtta.step.learnables import Learnables
from wildtta.step.report import Output


class StreamWeights(Learnables):
    """The learned weights of one stream, a vector [P]; the network's own parameters are left alone."""

    def __init__(self, of: Learnables, values: Tensor, *, in_place: bool) -> None:
        super().__init__(of.names, of.parameters)  # type: ignore[arg-type]
        self.values = values
        self._in_place = in_place

    def vector(self) -> Tensor:
        return self.values.clone() if self._in_place else self.values

    def assign(self, values: Tensor) -> None:
        if self._in_place:
            self.values.copy_(values)
        else:
            self.values = values

    def gradient_with(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the gradients of a fleet come from one pass over all its streams")


class StreamEngine(Engine):
    """The fleet's engine with the weights and the state of one stream in place of its own.

    Either of a stream as it is kept (``in_place``: what is changed here is changed there), or of all streams of a batch
    at once, within :func:`torch.vmap`; a number that differs between streams is then a tensor.
    """

    def __init__(
        self,
        engine: Engine,
        values: Tensor,
        memory: dict[str, Tensor],
        *,
        rate: Tensor | float,
        batch_share: Tensor | float,
        in_place: bool,
    ) -> None:
        # No call of Engine.__init__: everything but the state is the fleet's.
        self.__dict__.update(engine.__dict__)
        self._learnables = StreamWeights(engine.learnables, values, in_place=in_place)
        self.memory = memory
        self._rate = rate
        self._batch_share = batch_share
        self.fixed_shapes = not in_place

    @property
    def lr(self) -> float:
        return self._rate  # type: ignore[return-value]  # of the mapped streams: a tensor

    @property
    def batch_share(self) -> float | Tensor:
        return self._batch_share

    def reset(self) -> None:
        assert self.source is not None
        self.learnables.assign(self.source)
        for name, value in self.initial_state().items():
            self.memory[name].copy_(value)
        self.share, self.gate_open = None, False

    def forward(self, images: Tensor, *, grad: bool) -> Output:
        """One pass with this stream's weights; without a graph."""
        if grad:
            raise TypeError("a stream on its own predicts only: its gradients come from the fleet's passes")
        values = self.learnables.vector().expand(len(images), -1)
        with torch.no_grad(), own_weights(self, values, images):
            return super().forward(images, grad=False)
