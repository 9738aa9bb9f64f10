"""What the source network says to some samples of a stream, for methods that compare it with their own answers.

Every eighth sample is passed once more, with the source's weights: of a batch of 64 every eighth, of single samples one in
eight steps. Which ones, the batch's size and the number of the step decide, so that a step can be recorded, and a stream of a
fleet is compared as it would be on its own. A method may ask for each of them scrambled as well
(:mod:`wildtta.step.scrambling`). It waits for what that tells, so that of the first samples every second is passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.network.head import head_rows
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Output
from wildtta.step.scrambling import ARRANGEMENT, next_arrangements

if TYPE_CHECKING:
    from wildtta.methods.gradient import GradientMethod
    from wildtta.step.engine import Engine

EVERY = 8
_AT_FIRST, _FIRST = 2, 512
"""Where scrambled ones are asked: one of so many, of the first so many samples."""


def rows_compared(step: int, samples: int, every: int = EVERY) -> slice | None:
    """Which samples of the ``step``-th batch of ``samples`` are compared; None: none of them."""
    if samples >= every:
        return slice(0, samples - samples % every, every)
    return slice(0, 1) if samples and step % (every // samples) == 0 else None


def compares(method: GradientMethod, engine: Engine) -> bool:
    """Whether the method compares its answers with the source's."""
    return bool(method.comparison) and all(name in engine.memory for name in method.comparison)


def scrambles(engine: Engine, images: Tensor) -> bool:
    """Whether the source sees the compared ones of these ``images`` scrambled as well."""
    return ARRANGEMENT in engine.memory and engine.are_pictures(images)


def due(method: GradientMethod, engine: Engine, step: int, images: Tensor, samples: int) -> slice | None:
    """Which of the ``samples`` of a stream among ``images`` are compared; None: none, or a method that never does."""
    if not compares(method, engine):
        return None
    at_first = step * samples <= _FIRST and scrambles(engine, images)
    return rows_compared(step, samples, _AT_FIRST if at_first else EVERY)


def compare(method: GradientMethod, engine: Engine, answered: Output, rows: slice) -> int:
    """Tell the method what the source says to the samples ``rows`` of a batch that was ``answered``; how many were passed."""
    assert engine.source is not None
    images = answered.images[rows].clone()  # kernels ask for rows without gaps
    usable = torch.ones(len(images), dtype=torch.bool, device=engine.device)
    if answered.usable is not None:
        usable = answered.usable[rows]
    beside = None
    with engine.at(engine.source, back_to=engine.learnables.vector()):
        source = engine.forward(images, grad=False)
        if scrambles(engine, images):
            beside = engine.forward_scrambled(images, next_arrangements(engine.memory[ARRANGEMENT], len(images)))
    with losses_in_full_precision(engine.device):
        fresh = method.compared(engine.memory, answered.logits[rows].detach(), source.logits, usable)
        if beside is not None:
            rows_of_head, number = head_rows(engine.network.head), torch.full((), len(images), device=engine.device)
            assert rows_of_head is not None
            features = source.features, beside.features
            fresh |= method.scrambled(engine.memory, *features, usable, rows_of_head.to(engine.dtype), number)
    for name, value in fresh.items():
        engine.memory[name].copy_(value)
    passed = len(images) * (1 if beside is None else 2)
    engine.count(forwards=passed, computed_forwards=passed)
    return passed
