"""How far a sample may move a network that has arrived where its stream draws it.

Steps and the pull to the source balance at some place. Once the network is there, ordinary samples of the same kind have
little to add. But whoever wants to do harm needs steps: how far 2,000 inputs can push is their number times the length of a
step. So a network that has settled takes a smaller share of each step, and is pulled back by the same share. The place that it
is drawn to stays the same; only the way takes longer.

**Whether it has arrived**, its own way tells: how far it is from where it began, D, beside an average D̄ of the same over
the last steps. On the way D̄ lags behind; where D grows no more, D̄ catches up. The average runs by the steps that were really
taken, and D̄ is compared with the largest D: neither a rest without evidence, nor short steps, nor a way back look like an
arrival.

**A new way** begins with a new kind of samples. Whether it is new, a guard tells, by what images look like that it draws from
the stream. Without a guard, and where inputs are no images, nothing settles. A new way also begins after a rest: where the
mean of the samples can be trusted and shows no shift, the pull undoes what was learned, and whatever calls for steps
afterwards is something else. (In a flood of a few classes it cannot be trusted: there the way waits.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.methods.steady.evidence import falling, rising

if TYPE_CHECKING:
    from wildtta.methods.base import Review

_AVERAGE = 400
"""Samples, each as far as steps were taken, after which a distance counts 1/e in D̄."""
_SHRINKING = 100
"""The same for the largest D: a network that steps lead back has left its way, one that is only pulled back has not."""
_ARRIVED = (0.5, 0.8)
"""D̄ over the largest D, up to which the network is on its way, and from which on it has arrived."""
_SHORTEST = 0.01
"""Share of a step that is left in the end. Of 0.1 an attack on 2,000 images of a known kind still took 5 of 28 points from a ViT;
of 0.01 it takes 1."""


_RESTING = (0.0, 0.1)
"""Share of a step that the evidence calls for, at which the network rests, and from which on it does not."""


def no_way(source: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state before the first review, from the weights at the start [P]: where the way began, D̄ and the largest D."""
    none = torch.zeros((), dtype=dtype, device=source.device)
    return {"way_start": source.clone(), "way_average": none, "way_longest": none.clone()}


def followed_way(
    state: dict[str, Tensor], weights: Tensor, strength: Tensor, review: Review
) -> tuple[dict[str, Tensor], Tensor]:
    """The state after a ``review``, and the share of a step to take from now on.

    ``weights`` [P] are the present ones, ``strength`` the share of a step that the evidence calls for. ``state`` also holds the
    present pace and the evidence: how far the mean of the latest samples can be trusted.
    """
    steps = review.samples * strength * state["pace"]
    kept = review.familiar * (1 - falling(strength, _RESTING) * state["recent_trust"])
    start = torch.lerp(weights, state["way_start"], kept.to(weights.dtype))
    distance = (weights - start).norm().to(state["way_average"].dtype)
    average = distance + (kept * state["way_average"] - distance) * (-steps / _AVERAGE).exp()
    shrunk = distance + (kept * state["way_longest"] - distance) * (-steps / _SHRINKING).exp()
    longest = torch.maximum(shrunk, distance)
    arrived = rising(average / longest.clamp(min=1e-12), _ARRIVED) * (longest > 0)
    way = {"way_start": start, "way_average": average, "way_longest": longest}
    return way, 1 - (1 - _SHORTEST) * arrived * kept


def settledness(pace: Tensor) -> Tensor:
    """How far a network that takes the share ``pace`` of each step has settled, in [0, 1]."""
    return ((1 - pace) / (1 - _SHORTEST)).clamp(0, 1)
