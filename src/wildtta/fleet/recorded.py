"""A fleet's step as two CUDA graphs, answer and learn, recorded once and replayed for batches of the same shape.

A shape is the batch's, the number of streams in it and the images of the largest. Which streams these are, and which image is
whose, are numbers that a recording reads, and states are read and written where they are kept. So a batch of other streams is
replayed too. Where it holds all active streams, their states are not even copied.

All images are passed and masks do the selecting: a stream that learns nothing from the batch (its gate is closed, no image of
it was selected, it rests) is passed all the same, and left as the step without recording leaves it. Where all rest, another
recording without a backward pass is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wildtta.fleet.grouping import Grouping
from wildtta.fleet.mapped import Streams, Tensors
from wildtta.fleet.records import Record
from wildtta.fleet.step import Change, End, Finished, Look, MixedStep, Seen, keeps_graph, slot_of
from wildtta.fleet.transfers import sent
from wildtta.step.graphs import MOST_SHAPES, Recording, record, setting_of
from wildtta.step.precision import losses_in_full_precision

Works = Sequence[Callable[[Any], Any]]


@dataclass
class Inputs:
    """What a recording reads, always in the same place."""

    images: Tensor
    grouping: Grouping
    integers: Tensor
    """[4, S]: the slot of each stream; whether it rests, has been seen with an open gate, would keep its adapter's graph."""
    floats: Tensor
    """[2, S]: learning rates, and the sizes of batches in units of 64."""
    everything: bool
    """Whether the streams are all slots, in order."""

    @property
    def slots(self) -> Tensor:
        return self.integers[0]

    def flags(self, row: int) -> Tensor:
        return self.integers[row].bool()

    def copied(self) -> Inputs:
        """The same numbers in places of their own."""
        grouping = self.grouping.within(self.grouping.packed.clone())
        return Inputs(self.images.clone(), grouping, self.integers.clone(), self.floats.clone(), self.everything)

    def take(self, fresh: Inputs) -> Grouping:
        """Copy the numbers of another batch of this shape; its grouping, as it is read from here."""
        self.images.copy_(fresh.images)
        self.integers.copy_(fresh.integers)
        self.floats.copy_(fresh.floats)
        return fresh.grouping.within(self.grouping.packed)


RESTS, OPENED, KEEPS = 1, 2, 3
"""Rows of flags."""


@dataclass
class Recorded:
    """The two halves of a step."""

    inputs: Inputs
    answer: Recording
    learn: Recording


class RecordedSteps:
    """The recordings of one fleet."""

    def __init__(self, step: MixedStep) -> None:
        self._step = step
        self._recorded: dict[Hashable, Recorded] = {}
        self._last_key: Hashable = None
        self._failed = False
        self._pool: Any = None
        self._slots_at: int | None = None
        """Where the weights lay that recordings work on: slots that grow move."""

    # -- whether ---------------------------------------------------------------------------------------------------------

    def ready_for(
        self, images: Tensor, records: Sequence[Record], grouping: Grouping, resting: Sequence[bool], scales: Sequence[float]
    ) -> bool:
        """Whether this batch is replayed: its shape came last time too, and all its streams learn at full scale."""
        engine = self._step.engine
        if self._failed or not self._can_record(images) or not self._step.method.recordable(engine):
            return False
        if any(scale != 1 for scale in scales):
            return False
        key = self._key(images, records, grouping, resting)
        repeated, self._last_key = key == self._last_key, key
        return repeated

    def _can_record(self, images: Tensor) -> bool:
        return images.is_cuda

    def _key(
        self, images: Tensor, records: Sequence[Record], grouping: Grouping, resting: Sequence[bool]
    ) -> Hashable:
        slots = self._step.slots
        everything = [slot_of(record) for record in records] == list(range(len(slots.weights)))
        shape = (len(records), grouping.widest, everything, all(resting), slots.weights.data_ptr())
        return (*shape, setting_of(self._step.engine, images))

    # -- running ---------------------------------------------------------------------------------------------------------

    def answer(
        self, images: Tensor, records: list[Record], owner: Sequence[int], grouping: Grouping, resting: list[bool]
    ) -> Seen | None:
        """Answer a batch by replaying; None where recording failed (nothing has changed then)."""
        key = self._key(images, records, grouping, resting)
        fresh = self._inputs(images, records, grouping, resting)
        if key not in self._recorded:
            place = self._step.slots.weights.data_ptr()
            if len(self._recorded) >= MOST_SHAPES or place != self._slots_at:
                self.forget()
            self._slots_at = place
            try:
                self._recorded[key] = self._record(fresh, learning=not all(resting))
            except RuntimeError as error:
                self._failed = True
                self.forget()
                warnings.warn(f"CUDA graphs are not used for this fleet: {error}", stacklevel=2)
                return None
        recorded = self._recorded[key]
        own = recorded.inputs.take(fresh)
        recorded.answer.graph.replay()
        look: Look = recorded.answer.result
        seen = Seen(records, own, None, look, look.logits.clone(), resting, list(owner), recording=recorded)
        seen.reading  # noqa: B018 - before the device has more to do: it is not waited for later
        return seen

    def learn(self, seen: Seen) -> Finished:
        """The second half of a batch that was answered by replaying."""
        recorded = seen.recording
        assert recorded is not None
        recorded.learn.graph.replay()
        change: Change = recorded.learn.result
        # Everything is asked of the device before the host waits for the reading: the rest goes on beside the work.
        places = list(range(len(seen.records)))
        found = {name: part for name, part in change.found.items() if name != "gradient"}  # large, and not told
        finished = self.told_of(seen, End(places, _copied(found), _copied(change.result)))
        self._step.learners(seen, [1.0] * len(seen.records))
        seen.keep_course()
        return finished

    def told_of(self, seen: Seen, *ends: End) -> Finished:
        """What there is to tell about a batch that was answered by replaying; copies, since the next replay overwrites it."""
        parts = {name: seen.parts[name] for name in ("entropies", "usable", "features")}
        shown = _copied({**parts, "selection": {"mask": seen.parts["selection"]["mask"]}})
        return Finished(shown, seen.grouping.sizes, list(ends))

    def _inputs(
        self, images: Tensor, records: Sequence[Record], grouping: Grouping, resting: Sequence[bool]
    ) -> Inputs:
        slots = [slot_of(record) for record in records]
        opened, keeps = [record.gate_open for record in records], [keeps_graph(record) for record in records]
        integers = torch.tensor([slots, *([int(flag) for flag in flags] for flags in (resting, opened, keeps))])
        floats = torch.tensor(self._step.rates(records, grouping), dtype=torch.float64)
        weights = self._step.slots.weights
        everything = slots == list(range(len(weights)))
        device = images.device
        return Inputs(images, grouping, sent(integers, device), sent(floats.to(weights.dtype), device), everything)

    # -- recording -------------------------------------------------------------------------------------------------------

    def _record(self, fresh: Inputs, *, learning: bool) -> Recorded:
        """Both halves, from copies of these inputs; weights and states are put back."""
        inputs = fresh.copied()
        streams: list[Streams] = []

        def answer(_: None) -> Look:
            streams[:] = [self._streams(inputs)]
            return self._step.look(inputs.images, streams[0], inputs.grouping, grad=learning)

        def learn(look: Look) -> Change:
            return self._learned(inputs, streams[0], look)

        engine = self._step.engine
        with self._step.slots.unchanged():
            engine.fixed_shapes = True
            try:
                return Recorded(inputs, *self._recordings([answer, learn]))
            finally:
                engine.fixed_shapes = False

    def _recordings(self, works: Works) -> list[Recording]:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return record(works, self._pool, fastest=self._step.engine.fastest)

    def _streams(self, inputs: Inputs) -> Streams:
        slots = self._step.slots
        return slots.in_place(*inputs.floats) if inputs.everything else slots.copies(inputs.slots, *inputs.floats)

    def _learned(self, inputs: Inputs, streams: Streams, look: Look) -> Change:
        """The second half: gradients of all streams, and what is changed of those that are to learn."""
        step, selection = self._step, look.parts["selection"]
        streams = Streams(streams.weights.detach(), streams.memory, streams.rates, streams.batch_shares)
        with losses_in_full_precision(inputs.images.device):
            found: Tensors | None = None
            if look.leaf is not None:
                found = step.gradient(streams, look.leaf, look.output, look.images, inputs.grouping, selection)
                found["idle"] = self._idle(inputs, look)
            change = step.change(streams, look.parts, found, inputs.flags(KEEPS))
        step.slots.put(inputs.slots, change.streams)
        return change

    def _idle(self, inputs: Inputs, look: Look) -> Tensor:
        """Streams that learn nothing from this batch, [S]."""
        idle = inputs.flags(RESTS)
        if "gate" in look.parts:
            idle = idle | ~(look.parts["gate"] | inputs.flags(OPENED))
        if self._step.selective:
            idle = idle | ~look.parts["selection"]["mask"].any(1)
        return idle

    def forget(self) -> None:
        """Drop every recording."""
        self._recorded.clear()
        self._pool = None


def _copied(parts: Tensors) -> Tensors:
    return {name: _copied(part) if isinstance(part, dict) else part.clone() for name, part in parts.items()}
