"""One mixed batch: one pass over the images of all streams for each pass of the method, and every stream on its own between.

A stream's loss depends on its own weights alone. So the gradient of the sum of all losses, in the stacked weights [S, P], has
each stream's gradient as its row: one backward pass serves them all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wildtta.fleet.grouping import Grouping
from wildtta.fleet.mapped import MappedMethod, Streams, Tensors
from wildtta.fleet.norm_weights import NormWeights
from wildtta.fleet.records import Record, Slots
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.sar import worst_step
from wildtta.network.output import logits_of
from wildtta.step.engine import Engine
from wildtta.step.loop import KEEP_GRAPH_ABOVE, learns_on_selected
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Output


@dataclass
class Seen:
    """A batch after its first pass."""

    records: list[Record]
    """The streams in it."""
    grouping: Grouping
    images: Tensor
    """With zeros for what is not finite."""
    streams: Streams
    output: Output
    logits: Tensor
    """The answers, [B, C]."""
    parts: Tensors
    """By stream, padded: the outputs, what is usable, the selection, the gate, what is answered."""
    leaf: Tensor | None
    """The weights [S, P] that the pass keeps a graph of; None: it keeps none."""
    resting: list[bool]
    owner: list[int]
    """The stream of each image."""
    shares: dict[int, float] = field(default_factory=dict)
    """Share of its images that was selected, by stream."""
    opened: list[Record] = field(default_factory=list)
    """Streams whose gate was seen open for the first time."""

    @functools.cached_property
    def told(self) -> Told:
        """Read from the device when it is first asked for: the one read of a step beside that of who rests."""
        flat, gate = self.grouping.flat, self.parts.get("gate")
        flags = [flat(self.parts["labels"]), flat(self.parts["selection"]["mask"]), *([] if gate is None else [gate])]
        numbers = torch.cat([flag.to(torch.int64) for flag in flags]).tolist()
        rows = len(self.owner)
        opened = None if gate is None else [bool(number) for number in numbers[2 * rows :]]
        return Told(numbers[:rows], [bool(number) for number in numbers[rows : 2 * rows]], opened)


@dataclass
class End:
    """Some streams of a batch after it."""

    places: list[int]
    """Which streams of the batch."""
    before: Tensor
    """Their weights before it."""
    streams: Streams
    found: Tensors
    """Gradients and losses, where they learned."""
    result: Tensors
    """What became of the batch: learned, sound, passes."""


@dataclass
class Finished:
    """What there is to tell about a batch once it is over."""

    parts: Tensors
    sizes: list[int]
    ends: list[End]


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
        self._engine = engine
        self._slots = slots
        self._mapped = MappedMethod(method, engine)
        self._selective = learns_on_selected(method, engine)
        self._radius: float | None = getattr(method, "sharpness", None)
        self._gated: bool | None = None
        """Whether the method has a gate, once a batch has told."""
        self._share: float | None = None
        """Share of the images that the last step learned from: decides whether the first pass keeps its graph."""

    # -- the first half ------------------------------------------------------------------------------------------------

    def answer(self, images: Tensor, records: list[Record], owner: Sequence[int], learning: Sequence[bool]) -> Seen:
        """Answer a batch; ``owner`` names the stream of each image, ``learning`` those that are to learn from it."""
        engine = self._engine
        grouping = Grouping(owner, len(records), images.device)
        sizes = [record.batch_size or size for record, size in zip(records, grouping.sizes, strict=True)]
        rates = [self.method.learning_rate(engine.network.family, size) for size in sizes]
        streams = self._slots.gather([_slot(record) for record in records], rates, [size / 64 for size in sizes])
        rest = self._mapped.at_rest(streams)
        resting = [False] * len(records) if rest is None else rest.tolist()
        expected = sum(
            size
            for size, asleep, wanted, record in zip(grouping.sizes, resting, learning, records, strict=True)
            if wanted and not asleep and (record.gate_open or self._gated is False)
        )
        share = (1.0 if not self._selective or self._share is None else self._share) * expected / len(images)
        leaf = streams.weights.requires_grad_() if share > KEEP_GRAPH_ABOVE else None

        finite = torch.isfinite(engine.levels(images))
        clean = engine.finite_images(images, finite)
        output = self._pass(clean, streams.weights, grouping.owner, grad=leaf is not None)
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
            parts |= self._mapped.first(
                whole, parts["logits"], parts["features"], parts["usable"], shown
            )
        return Seen(
            records, grouping, clean, streams, output, grouping.flat(parts["answers"]), parts, leaf, resting, list(owner)
        )

    def _pass(self, images: Tensor, weights: Tensor, owner: Tensor, *, grad: bool) -> Output:
        """The network on images of several streams, ``owner`` [B] telling whose ``weights`` [S, P] each has."""
        with torch.set_grad_enabled(grad), NormWeights(self._engine.learnables, weights[owner]):
            return self._engine.forward(images, grad=grad)

    # -- the second half -----------------------------------------------------------------------------------------------

    def learn(self, seen: Seen, scales: Sequence[float]) -> Finished:
        """Every stream learns from its images, as far as ``scales`` [S] let it; 0: not at all."""
        with losses_in_full_precision(self._engine.device):
            learners, selected = self._learners(seen, scales)
            self._share = sum(selected[place] for place in learners) / len(seen.images)
            idle = [place for place, scale in enumerate(scales) if scale > 0 and place not in set(learners)]
            ends = [self._end(seen, learners, self._gradient(seen, learners), selected)] if learners else []
            if idle:
                ends.append(self._end(seen, idle, None, selected))
            # Nothing was written so far: what failed until here has changed no stream.
            for end in ends:
                self._write_back(seen, end, scales)
        for place, share in seen.shares.items():
            seen.records[place].share = share
        for record in seen.opened:
            record.gate_open = True
        return Finished(seen.parts, seen.grouping.sizes, ends)

    def _learners(self, seen: Seen, scales: Sequence[float]) -> tuple[list[int], list[int]]:
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
            if self._selective:
                seen.shares[place] = counts[place] / seen.grouping.sizes[place]
            if not self._selective or counts[place]:
                learners.append(place)
        return learners, counts

    def _gradient(self, seen: Seen, learners: list[int]) -> Tensors:
        """The gradient to follow of each learner, [L, P], with the losses behind it (SAR's two passes, or one)."""
        chosen = torch.tensor(learners, device=self._engine.device)
        rows, grouping = self._rows(seen, learners)
        selection = _selection_of(seen.parts["selection"], seen.grouping, grouping, rows)
        streams = seen.streams.take(chosen)
        if seen.leaf is not None:
            leaf, logits, features = seen.leaf, seen.output.logits[rows], seen.output.features[rows]
        else:
            leaf = streams.weights.clone().requires_grad_()
            output = self._pass(seen.images[rows], leaf, grouping.owner, grad=True)
            logits, features = output.logits, output.features
        first = self._mapped.loss(streams, grouping.padded(logits), grouping.padded(features), selection)
        (gradient,) = torch.autograd.grad(first["total"].sum(), leaf)
        gradient = gradient[chosen] if seen.leaf is not None else gradient
        norm = gradient.norm(dim=1)
        if self._radius is None:
            nothing = norm * math.nan
            return {"first": first, "last": first, "gradient": gradient, "first_norm": norm, "second_norm": nothing}
        away = torch.vmap(lambda row: worst_step(row, self._radius or 0.0))(gradient)
        leaf = (streams.weights + away).requires_grad_()
        output = self._pass(seen.images[rows], leaf, grouping.owner, grad=True)
        tables = grouping.padded(output.logits), grouping.padded(output.features)
        last = self._mapped.loss(streams, *tables, selection, again=True)
        (second,) = torch.autograd.grad(last["total"].sum(), leaf)
        again = second.norm(dim=1)
        return {"first": first, "last": last, "gradient": second, "first_norm": norm, "second_norm": again}

    def _rows(self, seen: Seen, learners: list[int]) -> tuple[Tensor, Grouping]:
        """Rows of the batch that are learned from, and to which of the ``learners`` each belongs."""
        place = {stream: number for number, stream in enumerate(learners)}
        used = seen.told.mask if self._selective else [True] * len(seen.owner)
        rows = [row for row, stream in enumerate(seen.owner) if stream in place and used[row]]
        grouping = Grouping([place[seen.owner[row]] for row in rows], len(learners), self._engine.device)
        return torch.tensor(rows, device=self._engine.device), grouping

    def _end(self, seen: Seen, places: list[int], found: Tensors | None, selected: list[int]) -> End:
        """Weights and state of the streams at ``places`` after the batch; they are not written yet."""
        chosen = torch.tensor(places, device=self._engine.device)
        streams = seen.streams.take(chosen)
        kept = ("logits", "features", "usable", "number", "selection", "gate")
        parts = {name: _taken(value, chosen) for name, value in seen.parts.items() if name in kept}
        forwards = 0 if self._radius is None else 1
        computed = [self._computed(seen, place, found is not None, selected[place]) for place in places]
        counts = torch.tensor(computed, device=self._engine.device)
        found = None if found is None else _detached_parts(found)
        with torch.no_grad():
            result = self._mapped.end(streams, parts, found, (forwards, forwards + 1), counts)
        before, streams.weights = streams.weights, result.pop("weights")
        return End(places, before, streams, found or {}, result)

    def _computed(self, seen: Seen, place: int, learns: bool, selected: int) -> tuple[int, int]:
        """Samples that the stream's own adapter would have passed, forward and backward.

        (A stream's state is that of an adapter, counters included, so that each can go on from the other's.)
        """
        number, record = seen.grouping.sizes[place], seen.records[place]
        again = 0 if self._radius is None else 1
        if not learns:
            return number, 0
        if not self._selective:
            return number * (1 + again), number * (1 + again)
        keeps_graph = (record.share or 0.0) > KEEP_GRAPH_ABOVE
        if keeps_graph:
            return number + selected * again, selected * (1 + again) + number - selected
        return number + selected * (1 + again), selected * (1 + again)

    def _write_back(self, seen: Seen, end: End, scales: Sequence[float]) -> None:
        """The streams of ``end`` as they are now, with steps cut to their scale."""
        for row, place in enumerate(end.places):
            if scales[place] != 1:
                end.streams.weights[row] = torch.lerp(end.before[row], end.streams.weights[row], scales[place])
        self._slots.scatter([_slot(seen.records[place]) for place in end.places], end.streams)


def _slot(record: Record) -> int:
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
