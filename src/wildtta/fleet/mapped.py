"""A method's hooks, mapped over the streams of a batch: the same code as for one adapter, for all streams at once.

Everything here is between two passes of the network, on outputs padded to one length per stream. Samples that are padding
are not usable, and no hook looks at a sample that is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wildtta.fleet.stream_engine import StreamEngine
from wildtta.methods.gradient import GradientMethod
from wildtta.network.output import logits_of
from wildtta.step.engine import Engine
from wildtta.step.loop import Gradient, Loss, Prediction, Selection, update
from wildtta.step.report import Output

Tensors = dict[str, Any]
"""Tensors by name, in one or two levels: what :func:`torch.vmap` maps."""


@dataclass
class Streams:
    """The streams that a function is mapped over: their weights [S, P], their state [S, …], their rates [S]."""

    weights: Tensor
    memory: dict[str, Tensor]
    rates: Tensor
    batch_shares: Tensor

    def take(self, chosen: Tensor) -> Streams:
        """Copies of some of them, without a graph; where that is all of them, they themselves."""
        weights = self.weights.detach()
        if len(chosen) == len(weights):
            return Streams(weights, self.memory, self.rates, self.batch_shares)
        memory = {name: value[chosen] for name, value in self.memory.items()}
        return Streams(weights[chosen], memory, self.rates[chosen], self.batch_shares[chosen])


class MappedMethod:
    """A gradient method over many streams."""

    def __init__(self, method: GradientMethod, engine: Engine) -> None:
        self.method = method
        self._engine = engine
        self._may_rest: bool | None = None
        """Whether the method knows rest, once it has been asked."""

    def _map(self, function: Callable[..., Any], streams: Streams, *further: Any) -> Any:
        """``function(engine of a stream, …)`` for every stream; what it changes of the state is changed in ``streams``."""

        def one(weights: Tensor, memory: dict[str, Tensor], rate: Tensor, share: Tensor, *rest: Any) -> Any:
            engine = StreamEngine(self._engine, weights, memory, rate=rate, batch_share=share, in_place=False)
            return function(engine, *rest)

        return torch.vmap(one)(streams.weights, streams.memory, streams.rates, streams.batch_shares, *further)

    def at_rest(self, streams: Streams) -> Tensor | None:
        """Which streams learn nothing from their next images, [S]; None: a method that never rests."""
        if self._may_rest is None:
            self._may_rest = self.method.at_rest(self._engine) is not None
        if not self._may_rest:
            return None
        found: Tensor = self._map(lambda engine: self.method.at_rest(engine), streams)
        return found

    def first(self, streams: Streams, logits: Tensor, features: Tensor, usable: Tensor, raw: Tensor) -> Tensors:
        """The first half of a step from the first pass [S, n, …]: answers, the selection, the gate."""

        def one(engine: Engine, logits: Tensor, features: Tensor, usable: Tensor, raw: Tensor) -> Tensors:
            output = Output(raw, logits, features, raw, usable)
            selection = self.method.select(engine, output)
            selection.mask = usable if selection.mask is None else selection.mask & usable
            gate = self.method.gate(engine, output, selection)
            found = {
                "answers": logits_of(self.method.answered(engine, output).raw),
                "selection": _packed(selection),
                "labels": output.labels,
                "entropies": output.entropies,
            }
            return found if gate is None else {**found, "gate": gate}

        found: Tensors = self._map(one, streams, logits, features, usable, raw)
        return found

    def loss(
        self, streams: Streams, logits: Tensor, features: Tensor, selection: Tensors, *, again: bool = False
    ) -> Tensors:
        """The loss of every stream [S] (their sum has each stream's gradient in its own weights) and what it is made of."""

        def one(engine: Engine, logits: Tensor, features: Tensor, packed: Tensors) -> Tensors:
            output, selection = Output(logits, logits, features), Selection(**packed)
            if again:
                selection = self.method.reselect(engine, output, selection)  # type: ignore[attr-defined]
            return _packed_loss(self.method.loss(engine, output, selection))

        found: Tensors = self._map(one, streams, logits, features, selection)
        return found

    def end(
        self, streams: Streams, seen: Tensors, found: Tensors | None, passes: tuple[int, int], computed: Tensor
    ) -> Tensors:
        """The second half: new weights [S, P] and what became of the batch; the state in ``streams`` is changed in place.

        ``found`` is what the passes that learn found, None for streams that learn nothing from this batch (``idle`` [S] in it
        tells of each, where all were passed); ``passes`` how often each selected sample was passed again, forward and
        backward; ``computed`` [S, 2] the samples really passed.
        """

        def one(engine: Engine, seen: Tensors, found: Tensors, computed: Tensor) -> Tensors:
            output = Output(seen["logits"], seen["logits"], seen["features"], seen["logits"], seen["usable"])
            prediction = Prediction(
                output, Selection(**seen["selection"]), seen["usable"], seen.get("gate"), seen["number"]
            )
            gradient = Gradient.none(engine)
            if found:
                idle = found.get("idle")
                first, last = _unpacked_loss(found["first"], idle), _unpacked_loss(found["last"], idle)
                values = found["gradient"], found["first_norm"], found["second_norm"]
                if idle is not None:
                    empty = (0.0, math.nan, math.nan)
                    values = tuple(value.masked_fill(idle, nothing) for value, nothing in zip(values, empty, strict=True))
                gradient = Gradient(values[0], first, last, *values[1:], *passes, idle)
            outcome = update(self.method, engine, prediction, gradient, computed[0], computed[1])
            return {
                "weights": engine.learnables.vector(),
                "learned": outcome.learns,
                "sound": outcome.sound,
                "passes": {name: value + torch.zeros_like(computed[0]) for name, value in outcome.passes.items()},
            }

        result: Tensors = self._map(one, streams, seen, found or {}, computed)
        return result


def _packed(selection: Selection) -> Tensors:
    """A selection as tensors that can be mapped."""
    parts: Tensors = {"mask": selection.mask, "labels": selection.labels, "extra": dict(selection.extra)}
    return parts if selection.weights is None else {**parts, "weights": selection.weights}


def _packed_loss(loss: Loss) -> Tensors:
    terms = {"redundancy": loss.redundancy, "inequity": loss.inequity}
    present = {name: value for name, value in terms.items() if value is not None}
    return {"entropy": loss.entropy, "selected": loss.selected, "total": loss.total, **present}


def _unpacked_loss(parts: Tensors, idle: Tensor | None = None) -> Loss:
    """The loss as it was packed; of a stream that is ``idle`` no sample was selected."""
    selected, total = parts["selected"], parts["total"]
    if idle is not None:
        selected, total = selected.masked_fill(idle, 0), total.masked_fill(idle, 0.0)
    return Loss(parts["entropy"], selected, [total], parts.get("redundancy"), parts.get("inequity"))
