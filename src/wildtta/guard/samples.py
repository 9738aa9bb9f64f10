"""Samples as a network is called with them, one by one: images, tokens of any length, or several arguments.

A guard keeps samples of many calls and passes them together later on. Those of one kind go through the network at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wildtta.network.inputs import Inputs

Call = Tensor | Inputs
"""What a network is called with: a tensor of samples, or several arguments."""


@dataclass(frozen=True)
class Sample:
    """A call with one sample."""

    call: Call
    own: tuple[bool, ...] = (True,)
    """Which of the call's tensors hold samples; the others belong to the whole call."""

    @property
    def kind(self) -> Hashable:
        """Samples of one kind can be joined: their tensors have the same names, shapes and types."""
        return self.own, tuple(
            (name, tuple(value.shape[own:]), value.dtype, value.device)
            for (name, value), own in zip(_tensors(self.call).items(), self.own, strict=True)
        )


def taken(call: Call, places: Sequence[int]) -> list[Sample]:
    """The samples of a call at ``places``; copies, so that the rest of the batch need not live on."""
    if not places:
        return []
    if isinstance(call, Tensor):
        chosen = torch.tensor(places).to(call.device, non_blocking=True)
        return [Sample(image[None].clone()) for image in call[chosen].unbind()]
    length = len(call.sample_numbers)
    own = tuple(value.dim() > 0 and len(value) == length for value in call.tensors.values())
    samples = []
    for place in places:
        each = iter(own)
        cut = call.mapped(lambda value, p=place, e=each: value[p : p + 1].clone() if next(e) else value)  # type: ignore[misc]
        samples.append(Sample(cut, own))
    return samples


def joined(samples: Sequence[Sample]) -> Call:
    """Samples of one kind as one call; what belongs to a whole call is the first one's."""
    first = samples[0]
    rows = zip(*(_tensors(sample.call).values() for sample in samples), strict=True)
    together = (torch.cat(values) if own else values[0] for values, own in zip(rows, first.own, strict=True))
    return next(together) if isinstance(first.call, Tensor) else first.call.mapped(lambda _: next(together))


def answers(run: Callable[[Call], Tensor], samples: Sequence[Sample]) -> Tensor:
    """What ``run`` says of each sample, [n, C], in the order of ``samples``; one pass for each kind."""
    groups: dict[Hashable, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.kind, []).append(place)
    found = [run(joined([samples[place] for place in places])) for places in groups.values()]
    if len(found) == 1:
        return found[0]
    order = torch.tensor([place for places in groups.values() for place in places])
    return torch.cat(found)[order.argsort().to(found[0].device)]


def _tensors(call: Call) -> dict[str, Tensor]:
    return {"": call} if isinstance(call, Tensor) else call.tensors
