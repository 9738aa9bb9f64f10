"""Where the streams of a fleet are: the last used on the device, further ones packed in host memory, the rest in a folder."""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wildtta.fleet.packing import Packed, pack, size_of, unpack
from wildtta.fleet.records import Record, Slots
from wildtta.fleet.state_folder import StateFolder
from wildtta.fleet.step import slot_of
from wildtta.fleet.stream_engine import StreamEngine
from wildtta.guard.watch import Watch
from wildtta.step.engine import Engine
from wildtta.step.online_state import check_origin, facts_of

HOST_FACTS = ("batch_size", "share", "gate_open", "host_steps", "calls")
"""What a stream's record and its engine both have."""


class Places:
    """All streams of a fleet.

    Args:
        engine: the fleet's, with the source's weights.
        active: streams on the device at most.
        resident: packed streams in host memory at most, where there is a folder.
        folder: for the states of all others.
        batch_size: of a new stream; None: its first batch tells.
        fingerprint: gives that of the source network.
        new_watch: makes the guard of a stream, None without guards.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        active: int,
        resident: int,
        folder: str | Path | None,
        batch_size: int | None,
        fingerprint: Callable[[], str],
        new_watch: Callable[[str], Watch | None],
    ) -> None:
        self.slots = Slots(engine, active)
        self.folder = None if folder is None else StateFolder(folder)
        self.records: dict[str, Record] = {}
        self.active: OrderedDict[str, Record] = OrderedDict()
        """The least recently used first, as below."""
        self._resident: OrderedDict[str, Packed] = OrderedDict()
        self._most_resident = resident
        self._engine = engine
        self._batch_size = batch_size
        self._fingerprint = fingerprint
        self._new_watch = new_watch

    # -- who is there --------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All streams: those seen here, and those in the folder."""
        return sorted({*self.records, *([] if self.folder is None else self.folder.names())})

    def knows(self, name: str) -> bool:
        return name in self.records or (self.folder is not None and name in self.folder)

    def activate(self, names: list[str]) -> list[Record]:
        """Bring streams onto the device, new ones too, making room by the least recently used."""
        if self.folder is not None:
            self.folder.check_process()
        needed = set(names)
        for name in names:
            record = self.records.get(name) or self._meet(name)
            if name not in self.active:
                self._bring_in(record, needed)
            self.active.move_to_end(name)
        return [self.records[name] for name in names]

    def _meet(self, name: str) -> Record:
        """A stream on first sight: from the folder where it has a state there, else new. One that fails was never here."""
        if self.folder is None:
            record = self._new(name)
        else:
            self.folder.claim(name)
            try:
                record = self._new(name)
            except BaseException:
                self.folder.release(name)
                raise
        self.records[name] = record
        return record

    def _new(self, name: str) -> Record:
        record = Record(name, batch_size=self._batch_size)
        if self.folder is not None and name in self.folder:
            _, facts = self._stored(name)
            record.batch_size, record.gate_open = facts["batch_size"], facts["gate_open"]
            record.share = None if facts["share"] is None else float.fromhex(facts["share"])
            record.host_steps, record.calls = facts["host_steps"], facts["calls"]
            record.paused, record.version = facts["paused"], facts["version"]
        record.watch = self._new_watch(name)
        return record

    def _bring_in(self, record: Record, needed: set[str]) -> None:
        """Onto the device. A stream that fails stays where it was, and nobody loses a place.

        A stream is where ``active`` says: what is broken off before that is changed has moved nobody.
        """
        self.slots.find_lost([other.slot for other in self.active.values()])
        packed = self._resident.get(record.name)
        if packed is None and record.version:
            packed, _ = self._stored(record.name)
        self._make_room(needed)
        slot = self.slots.take_one()
        if packed is not None:
            unpack(packed, self.engine_of(record, slot))
        record.slot = slot
        self.active[record.name] = record
        self._resident.pop(record.name, None)
        # Last: what fails or is interrupted while it writes finds each stream in one place alone.
        self._store_surplus()

    def drop(self, name: str) -> None:
        """Forget a stream, here and in the folder; one whose file cannot be removed goes on as it was."""
        if self.folder is not None:
            self.folder.claim(name)
            try:
                self.folder.remove(name)
            except BaseException:
                if name not in self.records:
                    self.folder.release(name)
                raise
        self._resident.pop(name, None)
        record = self.active.pop(name, None)
        if record is not None:
            self.slots.give_back(slot_of(record))
        self.records.pop(name, None)
        if self.folder is not None:
            self.folder.release(name)

    # -- from place to place -------------------------------------------------------------------------------------------

    def _make_room(self, needed: set[str]) -> None:
        """A free slot: the least recently used stream that is not ``needed`` goes to host memory."""
        if not self.slots.full:
            return
        name = next(name for name in self.active if name not in needed)
        record = self.active[name]
        self._resident[name] = pack(self.engine_of(record))
        del self.active[name]
        slot, record.slot, record.latest = slot_of(record), None, None
        self.slots.give_back(slot)
        if record.watch is not None:
            record.watch.forget_samples()

    def _store_surplus(self) -> None:
        """More packed streams than host memory is to hold: the least recently used go to disk.

        Answers go on: a state that cannot be written stays in memory, and is tried again the next time.
        """
        if self.folder is None:
            return
        for name in self.active.keys() & self._resident.keys():
            del self._resident[name]  # a copy from a move that was broken off
        for name in list(self._resident)[: max(0, len(self._resident) - self._most_resident)]:
            try:
                self._write(self.records[name], self._resident[name])
            except (OSError, RuntimeError) as error:
                warnings.warn(f"the state of {name!r} cannot be written and stays in memory ({error})", stacklevel=2)
                if isinstance(error, OSError):
                    break  # of the disk, not of this stream
                continue
            del self._resident[name]

    def _stored(self, name: str) -> tuple[Packed, dict[str, Any]]:
        assert self.folder is not None
        found = self.folder.read(name)
        if found is None:
            raise RuntimeError(f"the state of {name!r} in {self.folder.path} is gone; drop the stream to begin it anew")
        check_origin(self._engine, self.folder.file_of(name), found[1], self._fingerprint())
        return found

    def _write(self, record: Record, packed: Packed) -> None:
        """Store a state in the folder, unless it is there already."""
        assert self.folder is not None
        if record.changed or not record.version:
            facts = {**facts_of(self.engine_of(record), self._fingerprint()), "paused": record.paused}
            record.version = self.folder.write(record.name, packed, facts, record.version)
            record.changed = False

    def save(self, names: Sequence[str] | None = None) -> int:
        """Write every state (or those of ``names``) that is newer than the folder's; returns how many were written.

        One that something else has overwritten keeps no other from being written; the error comes at the end.
        """
        if self.folder is None:
            raise RuntimeError("this fleet has no folder to save to; make it with folder=, or save streams one by one")
        written = 0
        refused: RuntimeError | None = None
        if isinstance(names, str):
            raise TypeError(f"expected a list of stream names, got the text {names!r}; for one stream give [{names!r}]")
        wanted = list(self.records) if names is None else list(names)
        unknown = [name for name in wanted if not self.knows(name)]
        if unknown:
            raise KeyError(f"there is no stream {unknown[0]!r} to save, in this fleet or its folder")
        for name in wanted:
            record = self.records.get(name)
            if record is None:
                continue  # never seen here: the folder's state is the latest
            packed = None if name in self.active else self._resident.get(name)
            if record.changed and (name in self.active or packed is not None):
                try:
                    self._write(record, packed if packed is not None else pack(self.engine_of(record)))
                    written += 1
                except RuntimeError as error:
                    refused = refused or error
        if refused is not None:
            raise refused
        return written

    @property
    def resident_bytes(self) -> int:
        return sum(map(size_of, list(self._resident.values())))  # a copy: other threads may work on the fleet meanwhile

    # -- one stream's engine -------------------------------------------------------------------------------------------

    def engine_of(self, record: Record, slot: int | None = None) -> StreamEngine:
        """The engine of one stream, as it is kept where it is active, or is to be kept in ``slot``."""
        engine, slots = self._engine, self.slots
        slot = record.slot if slot is None else slot
        size = record.batch_size or 64
        view = StreamEngine(
            engine,
            slots.source if slot is None else slots.weights[slot],
            {} if slot is None else {name: value[slot] for name, value in slots.memory.items()},
            rate=engine.method.learning_rate(engine.network.family, size),
            batch_share=size / 64,
            in_place=True,
        )
        for name in HOST_FACTS:
            setattr(view, name, getattr(record, name))
        return view

    @contextlib.contextmanager
    def engine_for(self, record: Record) -> Iterator[StreamEngine]:
        """The same, and what is changed of it that is no tensor is kept too."""
        view = self.engine_of(record)
        yield view
        for name in HOST_FACTS:
            setattr(record, name, getattr(view, name))
