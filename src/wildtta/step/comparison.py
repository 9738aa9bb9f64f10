"""What the source network says to some samples of a stream, for methods that compare it with their own answers.

Every eighth sample is passed once more, with the source's weights: of a batch of 64 every eighth, of single samples one in
eight steps. Which ones, the batch's size and the number of the step decide, so that a step can be recorded, and a stream of a
fleet is compared as it would be on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.methods.gradient import GradientMethod
    from wildtta.step.engine import Engine

EVERY = 8


def rows_compared(step: int, samples: int) -> slice | None:
    """Which samples of the ``step``-th batch of ``samples`` are compared; None: none of them."""
    if samples >= EVERY:
        return slice(0, samples - samples % EVERY, EVERY)
    return slice(0, 1) if samples and step % (EVERY // samples) == 0 else None


def compares(method: GradientMethod, engine: Engine) -> bool:
    """Whether the method compares its answers with the source's."""
    return bool(method.comparison) and all(name in engine.memory for name in method.comparison)


def due(method: GradientMethod, engine: Engine, step: int, samples: int) -> slice | None:
    """Which samples of a batch the method compares; None: none, or a method that never does."""
    return rows_compared(step, samples) if compares(method, engine) else None


def compare(method: GradientMethod, engine: Engine, answered: Output, rows: slice) -> int:
    """Tell the method what the source says to the samples ``rows`` of a batch that was ``answered``; how many there are."""
    assert engine.source is not None
    images = answered.images[rows].clone()  # kernels ask for rows without gaps
    with engine.at(engine.source, back_to=engine.learnables.vector()):
        source = engine.forward(images, grad=False).logits
    usable = torch.ones_like(source[:, 0], dtype=torch.bool) if answered.usable is None else answered.usable[rows]
    with losses_in_full_precision(engine.device):
        fresh = method.compared(engine.memory, answered.logits[rows].detach(), source, usable)
    for name, value in fresh.items():
        engine.memory[name].copy_(value)
    engine.count(forwards=len(images), computed_forwards=len(images))
    return len(images)
