"""A folder of states, one file per stream, with one writer each.

A fleet that works on a stream holds a lock on it (:mod:`wildtta.fleet.locks`). Files are whole or not there (written beside
their place, then renamed), carry a checksum, and are numbered: a file that is not the one that was read or written last is not
overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.parse
import weakref
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from wildtta.fleet.locks import Locks
from wildtta.fleet.packing import Packed
from wildtta.step.state_file import read_facts, read_state, write_state

_SUFFIX = ".stream"
_LONGEST_NAME = 150


def file_name(stream: str) -> str:
    """The name of a file about ``stream``, without suffix, whatever letters are in the stream's name and however many."""
    quoted = urllib.parse.quote(stream, safe="").replace("~", "%7E").replace(".", "%2E")
    return quoted if len(quoted) <= _LONGEST_NAME else f"{quoted[:100]}~{_digest(stream)[:32]}"


def _digest(stream: str) -> str:
    return hashlib.sha256(stream.encode()).hexdigest()


class StateFolder:
    """States in ``path``, which may be shared by several processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._locks = Locks.of(self.path)
        self._mine: set[str] = set()
        self._begun: dict[str, int] = {}
        """Latest versions whose writing was broken off here: they, or one before them, may be in place all the same."""
        self._leave = weakref.finalize(self, self._locks.leave, self._mine)
        """Called by :meth:`close`; where nobody closes, once this folder is garbage."""
        self._leave.atexit = False  # at the end of a process its last threads may still write

    def file_of(self, name: str) -> Path:
        """Where the state of stream ``name`` is, whatever letters are in its name."""
        # 256 subfolders: writing a file looks for what a killed process left beside it, which a full folder makes slow.
        return self.path / _digest(name)[:2] / f"{file_name(name)}{_SUFFIX}"

    def names(self) -> list[str]:
        """Streams with a state here; those whose name was too long for a file tell it in the file."""
        found = []
        for entry in self.path.glob(f"*/*{_SUFFIX}"):
            quoted = entry.name.removesuffix(_SUFFIX)
            name = _facts_in(entry).get("stream") if "~" in quoted else urllib.parse.unquote(quoted)
            if isinstance(name, str):  # else it is no state
                found.append(name)
        return sorted(found)

    @property
    def bytes(self) -> int:
        """Of all states."""
        found = 0
        for entry in self.path.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # a stream that was dropped just now
                found += entry.stat().st_size
        return found

    def __contains__(self, name: str) -> bool:
        return self.file_of(name).exists()

    # -- one writer ----------------------------------------------------------------------------------------------------

    def claim(self, name: str) -> None:
        """Become the one that works on stream ``name``; an error where another does."""
        self.check_process()
        if name not in self._mine:
            self._locks.take(name)
            self._mine.add(name)

    def release(self, name: str) -> None:
        """Let others work on it."""
        if name in self._mine:
            self._locks.give_back(name)
            self._mine.discard(name)
            self._begun.pop(name, None)

    def check_process(self) -> None:
        """An error in a fork: the streams belong to the process that claimed them."""
        self._locks.check_process()

    def close(self) -> None:
        """Release all streams."""
        self._leave()

    # -- states --------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> tuple[Packed, dict[str, Any]] | None:
        """The state of a claimed stream and its facts; None: there is none."""
        path = self.file_of(name)
        if not path.exists():
            return None
        packed, facts = read_state(path)
        if facts.get("stream") != name:
            raise ValueError(f"{path} holds the state of the stream {facts.get('stream')!r}, expected {name!r}")
        return packed, facts

    def write(self, name: str, packed: Packed, facts: dict[str, Any], version: int) -> int:
        """Store a claimed stream's state over ``version`` of it; returns the new version's number."""
        self.check_process()
        if name not in self._mine:
            raise RuntimeError(f"the stream {name!r} was not claimed, so that its state may not be written")
        stored = self._version(name)
        if stored is None or not version <= stored <= self._begun.get(name, version):
            raise RuntimeError(
                f"the state of {name!r} in {self.path} has version {stored}, and this fleet's is from version {version}: "
                "something else wrote it. Drop the stream here to go on from the stored state, or remove the file"
            )
        self._begun[name] = stored + 1
        write_state(self.file_of(name), packed, {**facts, "stream": name, "version": stored + 1})
        del self._begun[name]
        return stored + 1

    def _version(self, name: str) -> int | None:
        path = self.file_of(name)
        return _facts_in(path).get("version") if path.exists() else 0

    def remove(self, name: str) -> None:
        """Forget the state of a claimed stream."""
        self.check_process()
        with contextlib.suppress(FileNotFoundError):
            self.file_of(name).unlink()


def _facts_in(path: Path) -> dict[str, Any]:
    """The facts of a state file; none where the file is something else, or gone."""
    try:
        return read_facts(path)
    except (SafetensorError, OSError, ValueError):
        return {}
