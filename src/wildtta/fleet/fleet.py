"""``wildtta.Fleet``: many streams on one network, each with weights of its own, in the same batch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wildtta.adapt import adapt
from wildtta.fleet.grouping import Grouping
from wildtta.fleet.norm_weights import refuse_unmapped
from wildtta.fleet.places import Places
from wildtta.fleet.recorded import RecordedSteps
from wildtta.fleet.records import Record
from wildtta.fleet.report import report_of
from wildtta.fleet.state_folder import file_name
from wildtta.fleet.step import Finished, MixedStep, Seen, slot_of
from wildtta.fleet.stream import Stream
from wildtta.fleet.suitable import refuse_unsuitable
from wildtta.guard.guard import Guard
from wildtta.guard.shadow import Shadow
from wildtta.guard.watch import Watch
from wildtta.methods.base import Method
from wildtta.network.parameters import ParameterChoice
from wildtta.step.engine import Engine
from wildtta.step.interrupts import Held
from wildtta.step.loop import upkeep
from wildtta.step.precision import Precision, fastest_precision, step_precision
from wildtta.step.report import StepReport


class Turn:
    """A batch that has been answered and may be learned from: ``with fleet.turn(images, streams) as turn``."""

    def __init__(self, fleet: Fleet, seen: Seen, logits: Tensor, awake: list[bool], scales: list[float]) -> None:
        self.logits = logits.detach()
        """The answers, [B, C], from before the update. After :meth:`learn` they are the source network's for a stream whose
        guard raised the alarm at this very batch."""
        self.learners = frozenset(record.name for record, scale in zip(seen.records, scales, strict=True) if scale)
        """Streams that :meth:`learn` will change: not those that are paused, or held by their guards."""
        self._fleet = fleet
        self._seen = seen
        self._awake, self._scales = awake, scales
        self._open = True

    def learn(self) -> None:
        """Learn from the batch; once, and within the ``with`` block."""
        if not self._open:
            raise RuntimeError("this turn is over: a batch is learned from once, within its with block")
        self._open = False
        self._fleet._learn(self._seen, self._scales)
        self.logits = self._fleet._observe(self._seen, self.logits, self._awake, self._scales)

    def _end(self) -> None:
        """What is left without learning counts as answered."""
        if self._open:
            self._open = False
            self._fleet._learn(self._seen, [0.0] * len(self._scales))


class Fleet:
    """Many streams on one network: ``logits = fleet(images, streams)`` with one stream name per image.

    Every stream has its own scale and shift in the norm layers and its own state, and learns from its own images alone,
    exactly as an adapter of its own would; one pass over the batch serves them all. Streams are made on first sight.
    ``fleet["camera-7"]`` is a handle on one. The network is left as it is; any number of threads may share a fleet.

    Args:
        model: as for :func:`wildtta.adapt`; it must treat samples one by one (GroupNorm, LayerNorm, RMSNorm).
        method: ``steady``, ``tent``, ``eta``, ``sar``, ``sar2`` or ``sar2-efficient``, by name or as a config.
        batch_size: for the learning rate's rule; None takes the number of images in a stream's first batch.
        guard: one :class:`wildtta.Guard` for each stream; its ``audit`` is a folder then, with one file per stream.
        folder: where the states of streams are kept; None: in host memory alone.
        active: streams that are kept on the device, and at most so many may be in one batch.
        resident: further streams that are kept in host memory; the least recently used go to the ``folder``. Without a
            folder all are kept.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str | Method = "steady",
        *,
        parameters: ParameterChoice = "auto",
        head: str | nn.Module = "auto",
        batch_size: int | None = None,
        precision: Precision | Literal["auto"] = None,
        example: Any = None,
        guard: Guard | None = None,
        folder: str | Path | None = None,
        active: int = 64,
        resident: int = 1024,
        **options: Any,
    ) -> None:
        for name, value in (("active", active), ("resident", resident)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a number of streams, at least 1, got {value!r}")
        if guard is not None and not isinstance(guard, Guard):
            raise TypeError(f"guard must be a wildtta.Guard or None, got {type(guard).__name__}")
        self._adapter = adapt(
            model,
            method,
            parameters=parameters,
            head=head,
            batch_size=batch_size,
            precision=precision,
            example=example,
            **options,
        )
        try:
            self.method = refuse_unsuitable(self._adapter.engine)
            engine = self._engine = self._adapter.engine
            engine.source_norm  # noqa: B018 - computed once, not in every stream's view
            if guard is not None and guard.audit is not None:
                _make_folder(guard.audit)
            self._shadow = None if guard is None else Shadow(engine.network, engine.learnables.names)
            self._places = Places(
                engine,
                active=active,
                resident=resident,
                folder=folder,
                batch_size=batch_size,
                fingerprint=self._adapter._source_fingerprint,
                new_watch=functools.partial(_watch_of, guard=guard, engine=engine, shadow=self._shadow),
            )
        except BaseException:
            self._adapter.unload()
            raise
        self.batch_size = batch_size
        self._precision_open = precision == "auto"
        self._step = MixedStep(self.method, engine, self._places.slots)
        self._recorded = RecordedSteps(self._step)
        self.cuda_graphs = True
        """Whether steps of one shape may be recorded and replayed as CUDA graphs: faster, at the price of memory."""
        self.replayed = False
        """Whether the last batch was answered by replaying a recorded step."""
        self._turn = threading.RLock()
        self._busy = False
        self._checked = False
        self._open = True

    # -- the call ------------------------------------------------------------------------------------------------------

    def __call__(self, images: Tensor, streams: Sequence[str]) -> Tensor:
        """Logits for a batch, then one update of every stream in it."""
        with self.turn(images, streams) as turn:
            turn.learn()
        return turn.logits

    @contextlib.contextmanager
    def turn(self, images: Tensor, streams: Sequence[str], *, learn: bool | Sequence[bool] = True) -> Iterator[Turn]:
        """The same in two halves: answers first, then ``turn.learn()``. Within, the fleet is the caller's alone.

        ``learn`` says of each image whether its stream may learn in this turn: a stream does if all of its images allow it.
        A turn that is left without ``turn.learn()`` has been answered and not learned from.
        """
        with self._alone(), torch.enable_grad():
            if isinstance(streams, str):
                raise TypeError(
                    f"expected a list with one stream name for each image, got the text {streams!r}; for images of one "
                    f"stream give [{streams!r}] * len(images)"
                )
            names = list(streams)
            self._validate(images, names)
            images = images.detach().clone() if images.is_inference() else images.detach()
            wanted = [learn] * len(names) if isinstance(learn, bool) else list(learn)
            if len(wanted) != len(names):
                raise ValueError(f"expected one learn flag for each of the {len(names)} images, got {len(wanted)}")
            # By slot: where a batch holds all active streams, their states are used where they are.
            records = sorted(self._places.activate(list(dict.fromkeys(names))), key=slot_of)
            places = {record.name: place for place, record in enumerate(records)}
            awake = [not record.paused for record in records]
            for name, flag in zip(names, wanted, strict=True):
                awake[places[name]] &= flag
            self._prepare_guards(records)
            scales = [self._scale(record) if up else 0.0 for record, up in zip(records, awake, strict=True)]
            owner = [places[name] for name in names]
            self._adapter._follow_stream(images.device)
            if not self._checked:
                self._check_weights_are_reached(images)
                self._checked = True
            if self._precision_open:
                self._settle_precision(images, records, owner)
            with step_precision(self._engine.precision, images.device):
                seen = self._seen(images, records, owner, scales)
                turn = Turn(self, seen, self._answers(seen), awake, scales)
                try:
                    yield turn
                finally:
                    turn._end()

    def _seen(self, images: Tensor, records: list[Record], owner: list[int], scales: list[float]) -> Seen:
        """The first half of a step: by replaying a recorded one, else eagerly."""
        grouping = Grouping(owner, len(records), images.device)
        resting = self._step.resting(records)
        seen = None
        if self.cuda_graphs and self._recorded.ready_for(images, records, grouping, resting, scales):
            seen = self._recorded.answer(images, records, owner, grouping, resting)
        self.replayed = seen is not None
        learning = [scale > 0 for scale in scales]
        return seen or self._step.answer(images, records, owner, grouping, resting, learning)

    def _finished(self, seen: Seen, scales: list[float]) -> Finished:
        """The second half of a step, the way that the first one went."""
        if seen.recording is not None:
            return self._recorded.learn(seen) if any(scales) else self._recorded.told_of(seen)
        return self._step.learn(seen, scales) if any(scales) else Finished(seen.parts, seen.grouping.sizes, [])

    def _learn(self, seen: Seen, scales: list[float]) -> None:
        finished = self._finished(seen, scales)
        every = self.method.upkeep_every
        for place, record in enumerate(seen.records):
            record.calls += 1
            record.changed = True  # the count is stored too, of a stream that only answers as well
            record.latest = finished, place
            if scales[place]:
                record.batch_size = record.batch_size or seen.grouping.sizes[place]
                record.host_steps += 1
                if every and record.host_steps % every == 0:  # building its engine costs more than asking
                    upkeep(self.method, self._places.engine_of(record))
        finished.compared = self._step.compare(seen, [place for place, scale in enumerate(scales) if scale])
        for stream, label in zip(seen.owner, seen.told.labels, strict=True):
            seen.records[stream].answers.append(label)

    # -- guards ----------------------------------------------------------------------------------------------------------

    def _prepare_guards(self, records: list[Record]) -> None:
        for record in records:
            if record.watch is not None and record.watch.close:
                with self._places.engine_for(record) as engine:
                    record.watch.prepare(engine)
                record.changed = True  # also where the batch fails: what the guard took back stays taken back

    def _answers(self, seen: Seen) -> Tensor:
        """The streams' own answers, or the source network's where a guard says so."""
        places = [place for place, record in enumerate(seen.records) if record.watch and record.watch.source_answers]
        return self._by_source(seen, seen.logits, places) if places else seen.logits

    def _by_source(self, seen: Seen, answers: Tensor, places: Sequence[int]) -> Tensor:
        """The same answers, with the source network's for the streams at ``places``."""
        assert self._shadow is not None
        rows = torch.tensor([row for place in places for row in seen.grouping.rows[place]], device=seen.images.device)
        answers = answers.clone()
        answers[rows] = self._shadow.logits(self._engine, seen.images[rows]).to(answers.dtype)
        return answers

    def _observe(self, seen: Seen, answers: Tensor, awake: list[bool], scales: list[float]) -> Tensor:
        """The guards of the streams that were to learn look at the answers and act, as :meth:`Watch.answer` lets them.

        In a trial the stream's own answers are looked at, which nobody else gets. Returns the answers, with the source's for
        a stream whose guard looks at every image anyway and raises the alarm at these.
        """
        for place, record in enumerate(seen.records):
            watch = record.watch
            if watch is None or not awake[place]:
                continue
            by_source = watch.source_answers
            chosen = torch.tensor(seen.grouping.rows[place], device=seen.images.device)
            logits = (seen.logits if scales[place] else answers)[chosen]
            with self._places.engine_for(record) as engine, watch._sparing(engine):
                watch.observe(engine, seen.images[chosen], logits.to(engine.dtype))
                if watch.close and not by_source:
                    watch.prepare(engine)
                    if watch.source_answers:
                        answers = self._by_source(seen, answers, [place])
        return answers

    def _scale(self, record: Record) -> float:
        return 1.0 if record.watch is None else record.watch.step_scale

    def _check_weights_are_reached(self, images: Tensor) -> None:
        """At full precision, whatever the passes have: a difference is then a weight that was not reached."""
        engine = self._engine
        with engine.changes.set(engine, precision="fp32"), step_precision("fp32", images.device):
            refuse_unmapped(engine, images)

    def _settle_precision(self, images: Tensor, records: list[Record], owner: list[int]) -> None:
        """``precision="auto"``: the fastest for what will really run, a whole step on a GPU; streams are put back."""
        engine = self._engine

        def one_pass(precision: Precision) -> None:
            engine.precision = precision
            engine.forward(images, grad=False)

        def one_step(precision: Precision) -> None:
            if precision != engine.precision:
                self._recorded.forget()  # recordings of two precisions would need twice the memory
            engine.precision = precision
            scales = [1.0] * len(records)
            seen = self._seen(images, records, owner, scales)
            self._finished(seen, scales)

        passes = images.device.type != "cuda"
        facts = [(record, record.share, record.gate_open) for record in records]
        engine.precision = None
        try:
            with self._places.slots.unchanged():
                chosen = fastest_precision(one_pass if passes else one_step, images.device, passes=passes)
        finally:
            self._recorded.forget()
            engine.precision = None
            for record, share, gate_open in facts:
                record.share, record.gate_open = share, gate_open
        engine.precision, self._precision_open = chosen, False

    def _validate(self, images: Tensor, names: list[str]) -> None:
        self._adapter._validate(images)
        if len(names) != len(images):
            raise ValueError(f"expected one stream name for each of the {len(images)} images, got {len(names)}")
        for name in names:
            _check_name(name)
        different = len(set(names))
        if different > self._places.slots.most:
            raise ValueError(
                f"this batch holds images of {different} streams, and the fleet keeps {self._places.slots.most} on the device; "
                f"send smaller batches, or make the fleet with active={different}"
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The fleet to oneself: other threads and signals wait."""
        with Held(), self._turn, torch.inference_mode(False):
            if not self._open:
                raise RuntimeError("this fleet was closed; make a new one with wildtta.Fleet(...)")
            if self._busy:
                raise RuntimeError("the fleet was used from within its own turn; wait until the with block is over")
            self._engine.clean_up()  # after a pass whose end was interrupted
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    # -- all streams -----------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """Names of all streams: those seen here, and those in the folder."""
        return self._places.names()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _is_encodable(name) and self._places.knows(name)

    def __len__(self) -> int:
        return len(self.streams)

    def __getitem__(self, name: str) -> Stream:
        """A handle on the stream ``name``, which is made if it is new."""
        _check_name(name)
        with self._alone():
            self._places.activate([name])
        return Stream(self, name)

    def save(self, streams: Sequence[str] | None = None) -> int:
        """Write every state (or those of ``streams``) that is newer than the folder's; returns how many were written."""
        with self._alone():
            return self._places.save(streams)

    def close(self) -> nn.Module:
        """Save what there is a folder for, release the streams, and give the network back."""
        with self._turn:
            if self._open:
                # All in one turn: what another thread learned after the saving would be lost.
                with self._alone():
                    if self._places.folder is not None:
                        self._places.save()
                        self._places.folder.close()
                    self._open = False
                    self._adapter.unload()
        return self._adapter.network

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one stream --------------------------------------------------------------------------------------------------------

    def record(self, name: str) -> Record:
        """What the fleet knows of a stream beside its state."""
        if name not in self._places.records:
            raise KeyError(f"there is no stream {name!r} in this fleet (dropped?); fleet[{name!r}] makes it")
        return self._places.records[name]

    @contextlib.contextmanager
    def working_on(self, name: str) -> Iterator[Engine]:
        """The engine of one stream, the fleet to oneself."""
        with self._alone():
            (record,) = self._places.activate([name])
            with self._places.engine_for(record) as engine:
                yield engine
            record.changed = True

    def forget_course(self, name: str) -> None:
        """A stream's state is another one: what was seen of its course says nothing about it."""
        record = self.record(name)
        record.latest = None
        record.answers.clear()
        if record.watch is not None:
            record.watch.restart()

    def report(self, name: str) -> StepReport | None:
        """What happened to a stream in the last batch that held images of it; None before there was one."""
        with self._alone():
            record = self.record(name)
            if record.latest is None:
                return None
            report = report_of(self._places.engine_of(record), *record.latest)
            if record.watch is not None:
                report.disagreement = record.watch.disagreement
            return report

    def drop(self, name: str) -> None:
        """Forget a stream, here and in the folder."""
        with self._alone():
            self._places.drop(name)

    @property
    def fingerprint(self) -> str:
        """Of the source network: states of another are refused."""
        return self._adapter._source_fingerprint()

    # -- what it costs -----------------------------------------------------------------------------------------------------

    @property
    def stream_bytes(self) -> int:
        """Device memory of one active stream."""
        return self._places.slots.stream_bytes

    @property
    def resident_bytes(self) -> int:
        """Host memory of the states of streams that are not active."""
        return self._places.resident_bytes

    @property
    def stored_bytes(self) -> int:
        """Of the states in the folder."""
        return 0 if self._places.folder is None else self._places.folder.bytes

    def __repr__(self) -> str:
        facts = self._engine.network
        return (
            f"Fleet(method={self.method.name}, network={type(facts.module).__name__} ({facts.classes} classes), "
            f"streams={len(self._places.records)}, active={len(self._places.active)} of {self._places.slots.most}, "
            f"{self.stream_bytes / 1e6:.2f} MB each)"
        )


def _check_name(name: object) -> None:
    """An error where a stream cannot be called so: its name goes into files."""
    if not isinstance(name, str) or not name or not _is_encodable(name):
        raise TypeError(f"a stream's name must be a text in Unicode with at least one letter, got {name!r}")


def _is_encodable(name: str) -> bool:
    """Not so for half of a surrogate pair."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _make_folder(audit: str | os.PathLike[str]) -> None:
    try:
        Path(audit).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"audit={str(audit)!r} cannot be a folder ({error}); in a fleet it holds one file for each stream"
        ) from error


def _watch_of(name: str, *, guard: Guard | None, engine: Engine, shadow: Shadow | None) -> Watch | None:
    """The guard of one stream: they share the shadow, and each has an audit file of its own."""
    if guard is None:
        return None
    audit = None if guard.audit is None else Path(guard.audit) / f"{file_name(name)}.jsonl"
    own = dataclasses.replace(guard, name=name, audit=audit)
    learning = engine.learnables.names
    try:
        return Watch(own, engine.network, learning, shadow=shadow)
    except OSError as error:
        # Nobody is left without an answer for want of a diary.
        warnings.warn(f"the guard of the stream {name!r} goes on without its audit: {error}", stacklevel=2)
        return Watch(dataclasses.replace(own, audit=None), engine.network, learning, shadow=shadow)
