"""A step that goes only a part of its way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from wildtta.step.engine import Engine


@contextlib.contextmanager
def scaled_step(engine: Engine, scale: float) -> Iterator[None]:
    """The step within moves the parameters by ``scale`` times what the method wanted."""
    if scale == 1.0 or not engine.learns:
        yield
        return
    before = engine.learnables.vector()
    yield
    engine.learnables.assign(torch.lerp(before, engine.learnables.vector(), scale))
