"""Copies of the online state to come back to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wildtta.step.engine import COUNTERS, Engine


@dataclass(frozen=True)
class Snapshot:
    """What learning had changed after so many images: the learned parameters and the method's state without its counters."""

    images: int
    parameters: Tensor | None
    memory: dict[str, Tensor]
    gate_open: bool

    @classmethod
    def of(cls, engine: Engine, images: int) -> Snapshot:
        memory = {name: value.clone() for name, value in engine.memory.items() if name not in COUNTERS}
        return cls(images, engine.learnables.vector() if engine.learns else None, memory, engine.gate_open)

    def renewed(self, engine: Engine, images: int) -> Snapshot:
        """One of now, in the memory of this one, which must not be used any more."""
        if not engine.learns or self.parameters is None or self.parameters.device != engine.device:
            return Snapshot.of(engine, images)
        live = [engine.learnables.vector(), *(engine.memory[name] for name in self.memory)]
        torch._foreach_copy_([self.parameters, *self.memory.values()], live)
        return replace(self, images=images, gate_open=engine.gate_open)

    def restore(self, engine: Engine) -> None:
        """In place, so that recorded CUDA graphs stay valid."""
        if self.parameters is not None:
            engine.learnables.assign(self.parameters.to(engine.device))
        for name, value in self.memory.items():
            engine.memory[name].copy_(value)
        engine.gate_open = self.gate_open


class Snapshots:
    """The last few healthy ones, some way apart."""

    def __init__(self, most: int, apart: int) -> None:
        self._kept: deque[Snapshot] = deque(maxlen=most)
        self._apart = apart

    def keep(self, engine: Engine, images: int) -> None:
        """One more, unless the last was taken fewer than ``apart`` images ago."""
        if not self._kept or images - self._kept[-1].images >= self._apart:
            self._kept.append(Snapshot.of(engine, images))

    def before(self, images: int) -> Snapshot | None:
        """The newest that was taken by then."""
        return next((snapshot for snapshot in reversed(self._kept) if snapshot.images <= images), None)

    def drop_after(self, images: int) -> None:
        """Forget those that may hold what went wrong."""
        kept = [snapshot for snapshot in self._kept if snapshot.images <= images]
        self._kept.clear()
        self._kept.extend(kept)

    def clear(self) -> None:
        self._kept.clear()
