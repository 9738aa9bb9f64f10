"""Copies of the online state to come back to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from wildtta.step.engine import COUNTERS, Engine


@dataclass(frozen=True)
class Snapshot:
    """What learning had changed at one look: the learned parameters and the method's state, without its counters."""

    look: int
    parameters: Tensor | None
    memory: dict[str, Tensor]
    gate_open: bool

    @classmethod
    def of(cls, engine: Engine, look: int) -> Snapshot:
        memory = {name: value.clone() for name, value in engine.memory.items() if name not in COUNTERS}
        return cls(look, engine.learnables.vector() if engine.learns else None, memory, engine.gate_open)

    def restore(self, engine: Engine) -> None:
        """In place, so that recorded CUDA graphs stay valid."""
        if self.parameters is not None:
            engine.learnables.assign(self.parameters.to(engine.device))
        for name, value in self.memory.items():
            engine.memory[name].copy_(value)
        engine.gate_open = self.gate_open


class Snapshots:
    """The last few healthy ones."""

    def __init__(self, most: int) -> None:
        self._kept: deque[Snapshot] = deque(maxlen=most)

    def keep(self, engine: Engine, look: int) -> None:
        self._kept.append(Snapshot.of(engine, look))

    def before(self, look: int) -> Snapshot | None:
        """The newest that was taken at ``look`` or earlier."""
        return next((snapshot for snapshot in reversed(self._kept) if snapshot.look <= look), None)

    def drop_after(self, look: int) -> None:
        """Forget those that may hold what went wrong."""
        kept = [snapshot for snapshot in self._kept if snapshot.look <= look]
        self._kept.clear()
        self._kept.extend(kept)

    def clear(self) -> None:
        self._kept.clear()
