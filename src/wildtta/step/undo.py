"""The online state as it was before a step: what a step that fails goes back to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

HOST_STATE = ("batch_size", "image_shape", "share", "host_steps", "gate_open", "calls", "doubtful")
"""The part of the online state that is no tensor: attributes of the engine."""


class Snapshot:
    """A copy of everything that a step may change. Putting it back may be interrupted and done again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._theta = engine.learnables.vector() if engine.learns else None
        self._memory = dict(engine.memory)
        self._values = {name: value.clone() for name, value in engine.memory.items()}
        self._host = {name: getattr(engine, name) for name in HOST_STATE}

    def restore(self) -> None:
        """The state of the engine as it was, in place."""
        engine = self._engine
        with torch.no_grad():
            if self._theta is not None:
                engine.learnables.assign(self._theta)
            for name, value in self._memory.items():
                value.copy_(self._values[name])
        engine.memory = dict(self._memory)
        for name, host in self._host.items():
            setattr(engine, name, host)
