"""Copies of the online state to come back to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wildtta.step.engine import COUNTERS, Engine


@dataclass(eq=False)
class Snapshot:
    """What learning had changed after so many images: the learned parameters and the method's state without its counters."""

    images: int
    parameters: Tensor | None
    memory: dict[str, Tensor]
    gate_open: bool
    _pieces: list[Tensor] = field(default_factory=list, repr=False)
    """``parameters`` once more, as views of the single ones."""

    @classmethod
    def of(cls, engine: Engine, images: int) -> Snapshot:
        memory = {name: value.clone() for name, value in engine.memory.items() if name not in COUNTERS}
        return cls(images, engine.learnables.vector() if engine.learns else None, memory, engine.gate_open)

    def renew(self, engine: Engine, images: int) -> None:
        """Take it again, in the same memory: a few calls for all tensors together."""
        if self.parameters is not None and not self._pieces:
            self._pieces = list(engine.learnables.split(self.parameters).values())
        live = [*engine.learnables.parameters] if self._pieces else []
        with torch.no_grad():
            torch._foreach_copy_(
                [*self._pieces, *self.memory.values()], [*live, *(engine.memory[name] for name in self.memory)]
            )
        self.images, self.gate_open = images, engine.gate_open

    def fits(self, engine: Engine) -> bool:
        """Whether it can be taken again: the network has not moved."""
        return self.parameters is not None and engine.learns and self.parameters.device == engine.device

    def restore(self, engine: Engine) -> None:
        """In place, so that recorded CUDA graphs stay valid."""
        if self.parameters is not None:
            engine.learnables.assign(self.parameters.to(engine.device))
        for name, value in self.memory.items():
            engine.memory[name].copy_(value)
        engine.gate_open = self.gate_open

    def __getstate__(self) -> dict[str, Any]:
        """Without the views: a pickle does not keep that they are parts of the vector."""
        return {**vars(self), "_pieces": []}


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
