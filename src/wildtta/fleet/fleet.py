"""``wildtta.Fleet``: many streams on one network, each with weights of its own, in the same batch."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import urllib.parse
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wildtta.adapt import adapt
from wildtta.fleet.norm_weights import refuse_unmapped
from wildtta.fleet.packing import Packed, pack, size_of, unpack
from wildtta.fleet.records import Record, Slots
from wildtta.fleet.report import report_of
from wildtta.fleet.state_folder import StateFolder
from wildtta.fleet.step import Finished, MixedStep, Seen
from wildtta.fleet.stream import Stream
from wildtta.fleet.stream_engine import StreamEngine
from wildtta.fleet.suitable import refuse_unsuitable
from wildtta.guard.guard import Guard
from wildtta.guard.shadow import Shadow
from wildtta.guard.watch import Watch
from wildtta.methods.base import Method
from wildtta.network.parameters import ParameterChoice
from wildtta.step.engine import Engine
from wildtta.step.interrupts import Held
from wildtta.step.loop import upkeep
from wildtta.step.online_state import check_origin, facts_of, resume, state_of
from wildtta.step.precision import Precision, fastest_precision, step_precision
from wildtta.step.report import StepReport
from wildtta.step.state_file import read_state, write_state


class Turn:
    """A batch that has been answered and may be learned from: ``with fleet.turn(images, streams) as turn``."""

    def __init__(self, fleet: Fleet, seen: Seen, scales: list[float]) -> None:
        self.logits = seen.logits.detach()
        """The answers, [B, C], from before the update."""
        self._fleet = fleet
        self._seen = seen
        self._scales = scales
        self._open = True

    def learn(self) -> None:
        """Learn from the batch; once, and within the ``with`` block."""
        if not self._open:
            raise RuntimeError("this turn is over: a batch is learned from once, within its with block")
        self._open = False
        self._fleet._learn(self._seen, self._scales)

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
        except Exception:
            self._adapter.unload()
            raise
        if guard is not None and not isinstance(guard, Guard):
            raise TypeError(f"guard must be a wildtta.Guard or None, got {type(guard).__name__}")
        engine = self._engine = self._adapter.engine
        # The kernels take one scale and shift for all samples.
        engine.fast.kernels = False
        engine.source_norm  # noqa: B018 - computed once, not in every stream's view
        self._given_batch_size = batch_size
        self._precision_open = precision == "auto"
        self._guard = guard
        self._shadow = None if guard is None else Shadow(engine.network.module, engine.learnables.names)
        self._turn = threading.RLock()
        self._busy = False
        self._slots = Slots(engine, active)
        self._step = MixedStep(self.method, engine, self._slots)
        self._records: dict[str, Record] = {}
        self._active: OrderedDict[str, Record] = OrderedDict()
        self._resident: OrderedDict[str, Packed] = OrderedDict()
        """States of streams that are not active, the least recently used first."""
        self._most_resident = resident
        self._folder = None if folder is None else StateFolder(folder)
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
        with self._alone(), torch.inference_mode(False), torch.enable_grad():
            names = list(streams)
            self._validate(images, names)
            images = images.detach().clone() if images.is_inference() else images.detach()
            wanted = [learn] * len(names) if isinstance(learn, bool) else list(learn)
            if len(wanted) != len(names):
                raise ValueError(f"expected one learn flag for each of the {len(names)} images, got {len(wanted)}")
            order = list(dict.fromkeys(names))
            places = {name: place for place, name in enumerate(order)}
            records = self._activate(order)
            scales = [0.0 if record.paused else self._scale(record) for record in records]
            for name, flag in zip(names, wanted, strict=True):
                if not flag:
                    scales[places[name]] = 0.0
            with step_precision(self._settled_precision(images), images.device):
                if not self._checked:
                    refuse_unmapped(self._engine.learnables, self._logits, images)
                    self._checked = True
                owner = [places[name] for name in names]
                seen = self._step.answer(images, records, owner, [scale > 0 for scale in scales])
                turn = Turn(self, seen, scales)
                try:
                    yield turn
                finally:
                    turn._end()

    def _learn(self, seen: Seen, scales: list[float]) -> None:
        finished = self._step.learn(seen, scales) if any(scales) else Finished(seen.parts, seen.grouping.sizes, [])
        every = self.method.upkeep_every
        for place, record in enumerate(seen.records):
            record.calls += 1
            record.latest = finished, place
            if scales[place]:
                record.batch_size = record.batch_size or seen.grouping.sizes[place]
                record.host_steps += 1
                record.changed = True
                if every and record.host_steps % every == 0:  # building its engine costs more than asking
                    upkeep(self.method, self._engine_of(record))
        for stream, label in zip(seen.owner, seen.told.labels, strict=True):
            seen.records[stream].answers.append(label)
        if self._guard is not None:
            self._observe(seen)

    def _observe(self, seen: Seen) -> None:
        """Every stream's guard looks at its answers and acts."""
        rows: list[list[int]] = [[] for _ in seen.records]
        for row, stream in enumerate(seen.owner):
            rows[stream].append(row)
        for record, own in zip(seen.records, rows, strict=True):
            assert record.watch is not None
            places = torch.tensor(own, device=seen.images.device)
            with self._engine_for(record) as engine:
                record.watch.observe(engine, seen.images[places], seen.logits[places].to(engine.dtype))

    def _scale(self, record: Record) -> float:
        return 1.0 if record.watch is None else record.watch.step_scale

    def _logits(self, images: Tensor) -> Tensor:
        return self._engine.forward(images, grad=False).logits

    def _settled_precision(self, images: Tensor) -> Precision:
        if self._precision_open:

            def one_pass(batch: Tensor, precision: Precision) -> None:
                self._engine.precision = precision
                self._engine.forward(batch, grad=False)

            self._engine.precision = fastest_precision(one_pass, images)
            self._precision_open = False
        return self._engine.precision

    def _validate(self, images: Tensor, names: list[str]) -> None:
        self._adapter._validate(images)
        if len(names) != len(images):
            raise ValueError(f"expected one stream name for each of the {len(images)} images, got {len(names)}")
        odd = next((name for name in names if not isinstance(name, str) or not name), None)
        if odd is not None or "" in names:
            raise TypeError(f"a stream's name must be a text with at least one letter, got {odd!r}")
        different = len(set(names))
        if different > self._slots.most:
            raise ValueError(
                f"this batch holds images of {different} streams, and the fleet keeps {self._slots.most} on the device; "
                f"send smaller batches, or make the fleet with active={different}"
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The fleet to oneself: other threads and signals wait."""
        with Held(), self._turn:
            if not self._open:
                raise RuntimeError("this fleet was closed; make a new one with wildtta.Fleet(...)")
            if self._busy:
                raise RuntimeError("the fleet was used from within its own turn; wait until the with block is over")
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    # -- which streams there are -----------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """Names of all streams: those seen here, and those in the folder."""
        stored = [] if self._folder is None else self._folder.names()
        return sorted({*self._records, *stored})

    def __contains__(self, name: object) -> bool:
        return name in self._records or (self._folder is not None and isinstance(name, str) and name in self._folder)

    def __len__(self) -> int:
        return len(self.streams)

    def __getitem__(self, name: str) -> Stream:
        """A handle on the stream ``name``, which is made if it is new."""
        with self._alone():
            self._activate([name])
        return Stream(self, name)

    def record(self, name: str) -> Record:
        """What the fleet knows of a stream beside its state."""
        if name not in self._records:
            raise KeyError(f"there is no stream {name!r} in this fleet (dropped?); fleet[{name!r}] makes it")
        return self._records[name]

    # -- where they are --------------------------------------------------------------------------------------------------

    def _activate(self, names: list[str]) -> list[Record]:
        """Bring streams onto the device, making room by the least recently used."""
        needed = set(names)
        for name in names:
            record = self._records.get(name) or self._meet(name)
            if record.slot is None:
                self._make_room(needed)
                record.slot = self._slots.take_one()
                packed = self._resident.pop(name, None)
                if packed is None and record.version and self._folder is not None:
                    packed, _ = self._stored(name)
                if packed is not None:
                    unpack(packed, self._engine_of(record))
                self._active[name] = record
            self._active.move_to_end(name)
        return [self._records[name] for name in names]

    def _meet(self, name: str) -> Record:
        """A stream on first sight: from the folder where it has a state there, else new."""
        record = Record(name, batch_size=self._given_batch_size)
        if self._folder is not None:
            self._folder.claim(name)
            if name in self._folder:
                _, facts = self._stored(name)
                record.batch_size, record.gate_open = facts["batch_size"], facts["gate_open"]
                record.share = None if facts["share"] is None else float.fromhex(facts["share"])
                record.host_steps, record.calls = facts["host_steps"], facts["calls"]
                record.paused, record.version = facts["paused"], facts["version"]
        if self._guard is not None:
            assert self._shadow is not None
            record.watch = Watch(
                self._guard_of(name), self._engine.network.module, self._engine.learnables.names, shadow=self._shadow
            )
        self._records[name] = record
        return record

    def _guard_of(self, name: str) -> Guard:
        assert self._guard is not None
        audit = self._guard.audit
        if audit is not None:
            audit = Path(audit) / f"{urllib.parse.quote(name, safe='')[:150]}.jsonl"
        return dataclasses.replace(self._guard, name=name, audit=audit)

    def _stored(self, name: str) -> tuple[Packed, dict[str, Any]]:
        assert self._folder is not None
        found = self._folder.read(name)
        if found is None:
            raise RuntimeError(f"the state of {name!r} in {self._folder.path} is gone; drop the stream to begin it anew")
        check_origin(self._engine, self._folder.file_of(name), found[1], self._fingerprint)
        return found

    @property
    def _fingerprint(self) -> str:
        return self._adapter._source_fingerprint()

    def _make_room(self, needed: set[str]) -> None:
        """A free slot: the least recently used stream that is not ``needed`` goes to host memory, further ones to disk."""
        if not self._slots.full:
            return
        name = next(name for name in self._active if name not in needed)
        record = self._active[name]
        packed = pack(self._engine_of(record))
        self._resident[name] = packed
        while self._folder is not None and len(self._resident) > self._most_resident:
            oldest, state = next(iter(self._resident.items()))
            try:
                self._write(self._records[oldest], state)
            except OSError as error:
                # Answers go on: a state that cannot be written stays in memory, and is tried again the next time.
                message = f"the state of {oldest!r} cannot be written and stays in memory ({error})"
                warnings.warn(message, stacklevel=2)
                break
            del self._resident[oldest]
        assert record.slot is not None
        self._slots.give_back(record.slot)
        record.slot, record.latest = None, None
        if record.watch is not None:
            record.watch.forget_images()
        del self._active[name]

    def _write(self, record: Record, packed: Packed) -> None:
        """Store a state in the folder, unless it is there already."""
        assert self._folder is not None
        if record.changed or not record.version:
            facts = {**facts_of(self._engine_of(record), self._fingerprint), "paused": record.paused}
            record.version = self._folder.write(record.name, packed, facts, record.version)
            record.changed = False

    def save(self, streams: Sequence[str] | None = None) -> int:
        """Write every state (or those of ``streams``) that is newer than the folder's; returns how many were written."""
        if self._folder is None:
            raise RuntimeError("this fleet has no folder to save to; make it with folder=, or save streams one by one")
        written = 0
        with self._alone(), torch.inference_mode(False):
            chosen = self._records if streams is None else {name: self.record(name) for name in streams}
            for name, record in chosen.items():
                packed = self._resident.get(name)
                if record.changed and (record.slot is not None or packed is not None):
                    self._write(record, packed if packed is not None else pack(self._engine_of(record)))
                    written += 1
        return written

    def close(self) -> nn.Module:
        """Save what there is a folder for, release the streams, and give the network back."""
        if self._open:
            if self._folder is not None:
                self.save()
                self._folder.close()
            self._open = False
            self._adapter.unload()
        return self._adapter.network

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one stream --------------------------------------------------------------------------------------------------------

    def _engine_of(self, record: Record) -> StreamEngine:
        """The engine of one stream, as it is kept where it is active."""
        engine, slot, slots = self._engine, record.slot, self._slots
        size = record.batch_size or 64
        view = StreamEngine(
            engine,
            slots.source if slot is None else slots.weights[slot],
            {} if slot is None else {name: value[slot] for name, value in slots.memory.items()},
            rate=self.method.learning_rate(engine.network.family, size),
            batch_share=size / 64,
            in_place=True,
        )
        view.batch_size, view.share, view.gate_open = record.batch_size, record.share, record.gate_open
        view.host_steps, view.calls = record.host_steps, record.calls
        return view

    @contextlib.contextmanager
    def _engine_for(self, record: Record) -> Iterator[Engine]:
        """The same, and what is changed of it that is no tensor is kept too."""
        view = self._engine_of(record)
        yield view
        record.batch_size, record.share, record.gate_open = view.batch_size, view.share, view.gate_open
        record.host_steps, record.calls = view.host_steps, view.calls

    @contextlib.contextmanager
    def working_on(self, name: str) -> Iterator[Engine]:
        """The engine of one stream, the fleet to oneself."""
        with self._alone(), torch.inference_mode(False):
            (record,) = self._activate([name])
            with self._engine_for(record) as engine:
                yield engine
            record.changed = True

    def report(self, name: str) -> StepReport | None:
        """What happened to a stream in the last batch that held images of it; None before there was one."""
        with self._alone():
            record = self.record(name)
            if record.latest is None:
                return None
            report = report_of(self._engine_of(record), *record.latest)
            if record.watch is not None:
                report.disagreement = record.watch.disagreement
            return report

    def set_paused(self, name: str, paused: bool) -> None:
        """Whether a stream only predicts."""
        with self._alone():
            record = self.record(name)
            record.changed = record.changed or record.paused != paused
            record.paused = paused

    def reset(self, name: str) -> None:
        """A stream's initial state."""
        with self.working_on(name) as engine:
            engine.reset()
            engine.batch_size, engine.host_steps = self._given_batch_size, 0
        record = self.record(name)
        record.latest = None
        record.answers.clear()
        if record.watch is not None:
            record.watch.restart()

    def state_of(self, name: str) -> dict[str, Tensor]:
        """A stream's state, by the names of an adapter's."""
        with self.working_on(name) as engine:
            return state_of(engine)

    def save_stream(self, name: str, path: str | Path) -> None:
        """Write a stream's state to a file that an adapter can load too."""
        with self.working_on(name) as engine:
            tensors, facts = state_of(engine), facts_of(engine, self._fingerprint)
        write_state(path, tensors, facts)

    def load_stream(self, name: str, path: str | Path) -> None:
        """Bring a stream to a state from such a file; one that does not fit changes nothing."""
        tensors, facts = read_state(path)
        with self.working_on(name) as engine:
            messages = resume(engine, path, tensors, facts, self._fingerprint)
        record = self.record(name)
        record.latest = None
        record.answers.clear()
        if record.watch is not None:
            record.watch.restart()
        for message in messages:
            warnings.warn(message, stacklevel=3)

    def drop(self, name: str) -> None:
        """Forget a stream, here and in the folder."""
        with self._alone():
            record = self._records.pop(name, None)
            if record is not None and record.slot is not None:
                self._slots.give_back(record.slot)
            self._active.pop(name, None)
            self._resident.pop(name, None)
            if self._folder is not None:
                self._folder.claim(name)
                self._folder.remove(name)
                self._folder.release(name)

    # -- what it costs -----------------------------------------------------------------------------------------------------

    @property
    def stream_bytes(self) -> int:
        """Device memory of one active stream."""
        return self._slots.stream_bytes

    @property
    def resident_bytes(self) -> int:
        """Host memory of the states of streams that are not active."""
        return sum(map(size_of, self._resident.values()))

    @property
    def stored_bytes(self) -> int:
        """Of the states in the folder."""
        return 0 if self._folder is None else self._folder.bytes

    def __repr__(self) -> str:
        facts = self._engine.network
        return (
            f"Fleet(method={self.method.name}, network={type(facts.module).__name__} ({facts.classes} classes), "
            f"streams={len(self._records)}, active={len(self._active)} of {self._slots.most}, "
            f"{self.stream_bytes / 1e6:.2f} MB each)"
        )
