"""One mixed batch: one pass over the images of all streams for each pass of the method, and every stream on its own between.

A stream's loss depends on its own weights alone. So the gradient of the sum of all losses, in the stacked weights [S, P], has
each stream's gradient as its row: one backward pass serves them all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.fleet.grouping import Grouping
from wildtta.fleet.mapped import MappedMethod, Streams, Tensors
from wildtta.fleet.norm_weights import own_weights
from wildtta.fleet.records import Record, Slots
from wildtta.fleet.transfers import Reading
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.sar import worst_step
from wildtta.network.head import head_rows
from wildtta.network.output import logits_of
from wildtta.step.comparison import due, scrambles
from wildtta.step.engine import Engine
from wildtta.step.loop import KEEP_GRAPH_ABOVE, learns_on_selected
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Output
from wildtta.step.scrambling import ARRANGEMENT, arrangements_at

if TYPE_CHECKING:
    from wildtta.fleet.recorded import Recorded


@dataclass
class Look:
    """The first pass over a batch."""

    images: Tensor
    """With zeros for what is not finite."""
    output: Output
    logits: Tensor
    """The answers, [B, C]."""
    parts: Tensors
    """By stream, padded: the outputs, what is usable, the selection, the gate, what is answered."""
    leaf: Tensor | None
    """The weights [S, P] that the pass keeps a graph of; None: it keeps none."""


@dataclass
class Seen:
    """A batch after its first pass."""

    records: list[Record]
    """The streams in it."""
    grouping: Grouping
    streams: Streams | None
    """Copies of their weights and states; None where a recorded step works on them where they are."""
    look: Look
    logits: Tensor
    """The answers, [B, C]."""
    resting: list[bool]
    owner: list[int]
    """The stream of each image."""
    shares: dict[int, float] = field(default_factory=dict)
    """Share of its images that was selected, by stream."""
    opened: list[Record] = field(default_factory=list)
    """Streams whose gate was seen open for the first time."""
    recording: Recorded | None = None
    """The recorded step that this is the first half of."""

    @property
    def images(self) -> Tensor:
        return self.look.images

    @property
    def parts(self) -> Tensors:
        return self.look.parts

    def keep_course(self) -> None:
        """What the host has seen of the batch goes to the streams' records, once their states are written."""
        for place, share in self.shares.items():
            self.records[place].share = share
        for record in self.opened:
            record.gate_open = True

    @functools.cached_property
    def reading(self) -> Reading:
        """The one read of a step beside that of who rests, begun when it is first asked for."""
        flat, gate = self.grouping.flat, self.parts.get("gate")
        flags = [flat(self.parts["labels"]), flat(self.parts["selection"]["mask"]), *([] if gate is None else [gate])]
        return Reading(torch.cat([flag.to(torch.int64) for flag in flags]))

    @functools.cached_property
    def told(self) -> Told:
        """What it gave."""
        numbers = self.reading.numbers()
        rows = len(self.owner)
        opened = None if "gate" not in self.parts else [bool(number) for number in numbers[2 * rows :]]
        return Told(numbers[:rows], [bool(number) for number in numbers[rows : 2 * rows]], opened)


@dataclass
class Change:
    """Weights and states of some streams after a batch; they are not written yet."""

    before: Tensor
    """Their weights before it."""
    streams: Streams
    found: Tensors
    """Gradients and losses, where they learned."""
    result: Tensors
    """What became of the batch: learned, sound, passes."""


@dataclass
class End:
    """What became of a batch for some of its streams."""

    places: list[int]
    """Which streams of the batch."""
    found: Tensors
    result: Tensors


@dataclass
class Finished:
    """What there is to tell about a batch once it is over."""

    parts: Tensors
    sizes: list[int]
    ends: list[End]
    compared: dict[int, int] = field(default_factory=dict)
    """How many images of a stream the source answered too, by its place."""


@dataclass
class Told:
    """What the host knows of a batch after its first pass."""

    labels: list[int]
    """Predicted class of each image."""
    mask: list[bool]
    """Whether it was selected."""
    gate: list[bool] | None
    """Whether each stream may learn; None: always."""


class MixedStep:
    """Steps of one fleet."""

    def __init__(self, method: GradientMethod, engine: Engine, slots: Slots) -> None:
        self.method = method
        self.engine = engine
        self.slots = slots
        self.mapped = MappedMethod(method, engine)
        self.selective = learns_on_selected(method, engine)
        self._radius: float | None = getattr(method, "sharpness", None)
        self._gated: bool | None = None
        """Whether the method has a gate, once a batch has told."""
        self._share: float | None = None
        """Share of the images that the last step learned from: decides whether the first pass keeps its graph."""

    # -- the first half ------------------------------------------------------------------------------------------------

    def resting(self, records: Sequence[Record]) -> list[bool]:
        """Which streams learn nothing from their next images."""
        slots = self.slots
        nothing = slots.weights.new_zeros(len(slots.weights))
        rest = self.mapped.at_rest(Streams(slots.weights, slots.memory, nothing, nothing))
        if rest is None:
            return [False] * len(records)
        flags = rest.tolist()
        return [flags[slot_of(record)] for record in records]

    def rates(self, records: Sequence[Record], grouping: Grouping) -> tuple[list[float], list[float]]:
        """Learning rate of each stream, and the size of its batches in units of 64."""
        sizes = [record.batch_size or size for record, size in zip(records, grouping.sizes, strict=True)]
        family = self.engine.network.family
        return [self.method.learning_rate(family, size) for size in sizes], [size / 64 for size in sizes]

    def answer(
        self,
        images: Tensor,
        records: list[Record],
        owner: Sequence[int],
        grouping: Grouping,
        resting: list[bool],
        learning: Sequence[bool],
    ) -> Seen:
        """Answer a batch; ``owner`` names the stream of each image, ``learning`` those that are to learn from it."""
        streams = self.slots.gather([slot_of(record) for record in records], *self.rates(records, grouping))
        expected = sum(
            size
            for size, asleep, wanted, record in zip(grouping.sizes, resting, learning, records, strict=True)
            if wanted and not asleep and (record.gate_open or self._gated is False)
        )
        share = (1.0 if not self.selective or self._share is None else self._share) * expected / len(images)
        look = self.look(images, streams, grouping, grad=share > KEEP_GRAPH_ABOVE)
        self._gated = "gate" in look.parts
        return Seen(records, grouping, streams, look, look.logits, resting, list(owner))

    def look(self, images: Tensor, streams: Streams, grouping: Grouping, *, grad: bool) -> Look:
        """The first pass, with a graph where ``grad``: answers, selection and gate of every stream."""
        engine = self.engine
        leaf = streams.weights.requires_grad_() if grad else None
        finite = torch.isfinite(engine.levels(images))
        clean = engine.finite_images(images, finite)
        output = self._pass(clean, streams.weights, grouping.owner, grad=grad)
        with losses_in_full_precision(images.device), torch.no_grad():
            raw = logits_of(output.raw).detach()
            usable = finite & torch.isfinite(output.logits).all(1)
            parts: Tensors = {
                "logits": grouping.padded(output.logits.detach()),
                "features": grouping.padded(output.features.detach()),
                "usable": grouping.padded(usable) & grouping.valid,
                "number": grouping.numbers,
            }
            shown = grouping.padded(raw.masked_fill(~finite[:, None], math.nan))
            whole = Streams(streams.weights.detach(), streams.memory, streams.rates, streams.batch_shares)
            parts |= self.mapped.first(whole, parts["logits"], parts["features"], parts["usable"], shown)
        return Look(clean, output, grouping.flat(parts["answers"]), parts, leaf)

    def _pass(self, images: Tensor, weights: Tensor, owner: Tensor, *, grad: bool) -> Output:
        """The network on images of several streams, ``owner`` [B] telling whose ``weights`` [S, P] each has."""
        with torch.set_grad_enabled(grad), own_weights(self.engine, weights[owner], images):
            return self.engine.forward(images, grad=grad)

    # -- the second half -----------------------------------------------------------------------------------------------

    def learn(self, seen: Seen, scales: Sequence[float]) -> Finished:
        """Every stream learns from its images, as far as ``scales`` [S] let it; 0: not at all."""
        with losses_in_full_precision(self.engine.device):
            learners, selected = self.learners(seen, scales)
            self._share = sum(selected[place] for place in learners) / len(seen.images)
            idle = [place for place, scale in enumerate(scales) if scale > 0 and place not in set(learners)]
            changes = [(learners, self._change(seen, learners, self._gradient(seen, learners)))] if learners else []
            if idle:
                changes.append((idle, self._change(seen, idle, None)))
            # Nothing was written so far: what failed until here has changed no stream.
            for places, change in changes:
                self._write_back(seen, places, change, scales)
        seen.keep_course()
        ends = [End(places, change.found, change.result) for places, change in changes]
        return Finished(seen.parts, seen.grouping.sizes, ends)

    def learners(self, seen: Seen, scales: Sequence[float]) -> tuple[list[int], list[int]]:
        """The streams that have something to learn from, and how many of its images each selected: the step's one read."""
        told, records = seen.told, seen.records
        counts = [0] * len(records)
        for stream, chosen in zip(seen.owner, told.mask, strict=True):
            counts[stream] += chosen
        learners = []
        for place, record in enumerate(records):
            if not scales[place] or seen.resting[place]:
                continue
            if told.gate is not None and not record.gate_open:
                if not told.gate[place]:
                    continue
                seen.opened.append(record)
            if self.selective:
                seen.shares[place] = counts[place] / seen.grouping.sizes[place]
            if not self.selective or counts[place]:
                learners.append(place)
        return learners, counts

    def _gradient(self, seen: Seen, learners: list[int]) -> Tensors:
        """The gradient to follow of each learner, [L, P], with the losses behind it."""
        assert seen.streams is not None
        chosen = torch.tensor(learners, device=self.engine.device)
        rows, grouping = self._rows(seen, learners)
        selection = _selection_of(seen.parts["selection"], seen.grouping, grouping, rows)
        streams = seen.streams.take(chosen)
        if seen.look.leaf is None:
            leaf = streams.weights.clone().requires_grad_()
            output = self._pass(seen.images[rows], leaf, grouping.owner, grad=True)
            return self.gradient(streams, leaf, output, seen.images[rows], grouping, selection)
        output = seen.look.output.take(rows)
        return self.gradient(streams, seen.look.leaf, output, seen.images[rows], grouping, selection, chosen)

    def gradient(
        self,
        streams: Streams,
        leaf: Tensor,
        output: Output,
        images: Tensor,
        grouping: Grouping,
        selection: Tensors,
        chosen: Tensor | None = None,
    ) -> Tensors:
        """The gradients of ``streams`` (SAR's two passes, or one) after the pass that gave ``output``.

        ``leaf`` are the weights behind it, of which ``chosen`` are these streams' (None: all).
        """
        tables = grouping.padded(output.logits), grouping.padded(output.features)
        first = self.mapped.loss(streams, *tables, selection)
        (gradient,) = torch.autograd.grad(first["total"].sum(), leaf)
        gradient = gradient if chosen is None else gradient[chosen]
        norm = gradient.norm(dim=1)
        if self._radius is None:
            nothing = norm * math.nan
            return {"first": first, "last": first, "gradient": gradient, "first_norm": norm, "second_norm": nothing}
        away = torch.vmap(lambda row: worst_step(row, self._radius or 0.0))(gradient)
        leaf = (streams.weights.detach() + away).requires_grad_()
        output = self._pass(images, leaf, grouping.owner, grad=True)
        tables = grouping.padded(output.logits), grouping.padded(output.features)
        last = self.mapped.loss(streams, *tables, selection, again=True)
        (second,) = torch.autograd.grad(last["total"].sum(), leaf)
        again = second.norm(dim=1)
        return {"first": first, "last": last, "gradient": second, "first_norm": norm, "second_norm": again}

    def _rows(self, seen: Seen, learners: list[int]) -> tuple[Tensor, Grouping]:
        """Rows of the batch that are learned from, and to which of the ``learners`` each belongs."""
        place = {stream: number for number, stream in enumerate(learners)}
        used = seen.told.mask if self.selective else [True] * len(seen.owner)
        rows = [row for row, stream in enumerate(seen.owner) if stream in place and used[row]]
        grouping = Grouping([place[seen.owner[row]] for row in rows], len(learners), self.engine.device)
        return torch.tensor(rows, device=self.engine.device), grouping

    def _change(self, seen: Seen, places: list[int], found: Tensors | None) -> Change:
        """What the batch changes of the streams at ``places``."""
        assert seen.streams is not None
        chosen = torch.tensor(places, device=self.engine.device)
        parts = {name: _taken(value, chosen) for name, value in seen.parts.items() if name in _KEPT}
        keeps = torch.tensor([keeps_graph(seen.records[place]) for place in places], device=self.engine.device)
        return self.change(seen.streams.take(chosen), parts, found, keeps)

    def change(self, streams: Streams, parts: Tensors, found: Tensors | None, keeps: Tensor) -> Change:
        """What a batch changes of ``streams``; the tensors of their states are changed, their weights are not."""
        parts = {name: value for name, value in parts.items() if name in _KEPT}
        found = None if found is None else _detached_parts(found)
        forwards = 0 if self._radius is None else 1
        with torch.no_grad():
            counts = self._computed(parts, found, keeps)
            result = self.mapped.end(streams, parts, found, (forwards, forwards + 1), counts)
        before, streams.weights = streams.weights, result.pop("weights")
        return Change(before, streams, found or {}, result)

    def _computed(self, parts: Tensors, found: Tensors | None, keeps: Tensor) -> Tensor:
        """Samples that each stream's own adapter would have passed, forward and backward, [S, 2].

        (A stream's state is that of an adapter, counters included, so that each can go on from the other's.) ``keeps``
        tells which adapters would have kept the graph of their first pass.
        """
        number, selected = parts["number"], parts["selection"]["mask"].sum(1)
        again = 0 if self._radius is None else 1
        resting = torch.stack((number, torch.zeros_like(number)), 1)
        if found is None:
            return resting
        if self.selective:
            with_graph = torch.stack((number + selected * again, selected * again + number), 1)
            anew = torch.stack((number + selected * (1 + again), selected * (1 + again)), 1)
            learning = torch.where(keeps[:, None], with_graph, anew)
        else:
            learning = torch.stack((number, number), 1) * (1 + again)
        return torch.where(found["idle"][:, None], resting, learning) if "idle" in found else learning

    # -- beside the source -----------------------------------------------------------------------------------------------

    def compare(self, seen: Seen, places: Sequence[int]) -> dict[int, int]:
        """What the source says to a part of the batch, for the streams at ``places``, whose steps are counted already.

        How many images of each stream that were.
        """
        slots, rows, owner, found = list[int](), list[int](), list[int](), dict[int, int]()
        for place in places:
            steps, size = seen.records[place].host_steps, seen.grouping.sizes[place]
            chosen = due(self.method, self.engine, steps, seen.images, size)
            if chosen is not None:
                own = seen.grouping.rows[place][chosen]
                rows.extend(own)
                owner.extend([len(slots)] * len(own))
                slots.append(slot_of(seen.records[place]))
                found[place] = len(own)
        if not slots:
            return {}
        positions, at = (torch.tensor(numbers, device=self.engine.device) for numbers in (rows, slots))
        images = seen.images[positions]
        with losses_in_full_precision(self.engine.device), torch.no_grad():
            # The network's own parameters are the source's.
            source = self.engine.forward(images, grad=False)
            grouping = Grouping(owner, len(slots), self.engine.device)
            own_logits = grouping.padded(seen.logits[positions].to(source.logits.dtype))
            usable = grouping.padded(seen.grouping.flat(seen.parts["usable"])[positions]) & grouping.valid
            memory = {name: self.slots.memory[name][at] for name in self.method.comparison}
            fresh = torch.vmap(self.method.compared)(memory, own_logits, grouping.padded(source.logits), usable)
            passes = 1
            if scrambles(self.engine, images):
                fresh |= self._scrambled(source, grouping, at, usable)
                passes = 2
                found = {place: 2 * number for place, number in found.items()}
            more = passes * grouping.numbers
            counts = {name: self.slots.memory[name][at] + more for name in ("forwards", "computed_forwards")}
            for name, value in {**fresh, **counts}.items():
                self.slots.memory[name].index_copy_(0, at, value)
        return found

    def _scrambled(self, source: Output, grouping: Grouping, at: Tensor, usable: Tensor) -> Tensors:
        """What is new of the streams ``at`` these slots after the source has seen the compared images scrambled as well."""
        memory = {name: self.slots.memory[name][at] for name in self.method.scrambling}
        ways = arrangements_at(memory[ARRANGEMENT][grouping.owner], grouping.rank)
        beside = self.engine.forward_scrambled(source.images, ways).features
        rows = head_rows(self.engine.network.head)
        assert rows is not None
        told = torch.vmap(self.method.scrambled, in_dims=(0, 0, 0, 0, None, 0))
        features = grouping.padded(source.features), grouping.padded(beside)
        return told(memory, *features, usable, rows.to(self.engine.dtype), grouping.numbers)

    def _write_back(self, seen: Seen, places: list[int], change: Change, scales: Sequence[float]) -> None:
        """The streams at ``places`` as they are now, with steps cut to their scale."""
        weights = change.streams.weights
        for row, place in enumerate(places):
            if scales[place] != 1:
                weights[row] = torch.lerp(change.before[row], weights[row], scales[place])
        self.slots.scatter([slot_of(seen.records[place]) for place in places], change.streams)


_KEPT = ("logits", "features", "usable", "number", "selection", "gate")
"""What the second half needs of the first."""


def keeps_graph(record: Record) -> bool:
    """Whether a stream's own adapter would have kept the graph of its first pass."""
    return (record.share or 0.0) > KEEP_GRAPH_ABOVE


def slot_of(record: Record) -> int:
    """The place of an active stream."""
    assert record.slot is not None
    return record.slot


def _taken(value: Tensor | Tensors, chosen: Tensor) -> Tensor | Tensors:
    return {name: _taken(part, chosen) for name, part in value.items()} if isinstance(value, dict) else value[chosen]


def _detached_parts(value: Tensors) -> Tensors:
    return {
        name: _detached_parts(part) if isinstance(part, dict) else part.detach() for name, part in value.items()
    }


def _selection_of(selection: Tensors, whole: Grouping, part: Grouping, rows: Tensor) -> Tensors:
    """The selection of the whole batch, laid out for the rows that are learned from; no flag is set for padding."""

    def moved(value: Tensor) -> Tensor:
        laid_out = part.padded(whole.flat(value)[rows])
        return laid_out & part.valid if laid_out.dtype == torch.bool else laid_out

    extra = {name: moved(value) for name, value in selection["extra"].items()}
    return {**{name: moved(value) for name, value in selection.items() if name != "extra"}, "extra": extra}
