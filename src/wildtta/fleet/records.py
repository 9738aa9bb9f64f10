"""What a fleet knows of each of its streams beside tensors, and the tensors of the active ones."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.fleet.mapped import Streams
from wildtta.guard.watch import Watch
from wildtta.step.engine import Engine
from wildtta.step.window import IMAGES

if TYPE_CHECKING:
    from wildtta.fleet.step import Finished


@dataclass(eq=False)
class Record:
    """One stream on the host. The first six fields are stored with its state, as those of an adapter are."""

    name: str
    batch_size: int | None = None
    share: float | None = None
    """Share of its images that the last batch selected."""
    host_steps: int = 0
    calls: int = 0
    """Batches that held images of it."""
    gate_open: bool = False
    slot: int | None = None
    """Its place among the active streams."""
    paused: bool = False
    changed: bool = False
    """Whether its state is newer than the one in the folder."""
    version: int = 0
    """How often its state was written."""
    watch: Watch | None = None
    latest: tuple[Finished, int] | None = None
    """The last batch that held images of it, and its place in that."""
    answers: deque[int] = field(default_factory=lambda: deque(maxlen=IMAGES))
    """Classes answered for its latest images."""


class Slots:
    """Weights and state of the active streams, stacked on the network's device: [slots, …] each."""

    def __init__(self, engine: Engine, most: int) -> None:
        self.most = most
        self._blank = {name: value.clone() for name, value in engine.initial_state().items()}
        assert engine.source is not None
        self.source = engine.source
        self.weights = engine.source.new_empty((0, len(engine.source)))
        self.memory = {name: value.new_empty((0, *value.shape)) for name, value in self._blank.items()}
        self._free: list[int] = []

    @property
    def stream_bytes(self) -> int:
        """Of one active stream."""
        parts = [self.source, *self._blank.values()]
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def full(self) -> bool:
        return not self._free and len(self.weights) >= self.most

    def take_one(self) -> int:
        """A free place, with a new stream's state in it."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.clear(slot)
        return slot

    def clear(self, slot: int) -> None:
        """A new stream's state."""
        self.weights[slot].copy_(self.source)
        for name, value in self._blank.items():
            self.memory[name][slot].copy_(value)

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def find_lost(self, used: Sequence[int | None]) -> None:
        """Places that are neither free nor ``used``, because a move was broken off, are free again."""
        if len(self._free) + len(used) != len(self.weights):
            self._free = sorted(set(range(len(self.weights))).difference(used), reverse=True)

    def _grow(self) -> None:
        """Twice as many places, at most ``most``: a fleet of two streams takes no room for 64."""
        old = len(self.weights)
        new = min(self.most, max(4, 2 * old))

        def grown(values: Tensor) -> Tensor:
            return torch.cat((values, values.new_empty((new - old, *values.shape[1:]))))

        # All or nothing: where there is no room for the one, the other must not have grown.
        self.weights, self.memory = grown(self.weights), {name: grown(value) for name, value in self.memory.items()}
        self._free.extend(reversed(range(old, new)))

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is done to the streams within is undone."""
        tensors = [self.weights, *self.memory.values()]
        before = [tensor.clone() for tensor in tensors]
        try:
            yield
        finally:
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)

    def gather(self, slots: Sequence[int], rates: Sequence[float], batch_shares: Sequence[float]) -> Streams:
        """Copies of the streams at ``slots``: a step that fails leaves the originals alone."""
        device, wide = self.weights.device, self.weights.dtype
        numbers = torch.tensor([rates, batch_shares], dtype=torch.float64).to(device, wide)
        return self.copies(torch.tensor(slots, device=device), *numbers)

    def copies(self, slots: Tensor, rates: Tensor, batch_shares: Tensor) -> Streams:
        """The same, from numbers that are on the device."""
        memory = {name: value[slots] for name, value in self.memory.items()}
        return Streams(self.weights[slots], memory, rates, batch_shares)

    def in_place(self, rates: Tensor, batch_shares: Tensor) -> Streams:
        """All streams, slot by slot: copies of their weights, and their states themselves."""
        return Streams(self.weights.clone(), self.memory, rates, batch_shares)

    def scatter(self, slots: Sequence[int], streams: Streams) -> None:
        """Write streams back."""
        self.put(torch.tensor(slots, device=self.weights.device), streams)

    def put(self, slots: Tensor, streams: Streams) -> None:
        """The same, from numbers that are on the device; a state that was worked on where it is stays there."""
        self.weights.index_copy_(0, slots, streams.weights.detach())
        for name, value in streams.memory.items():
            if value is not self.memory[name]:
                self.memory[name].index_copy_(0, slots, value)
