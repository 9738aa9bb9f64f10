"""Who works on which stream of a folder: locks that the system releases when a process ends, however it ends."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: processes are told apart by the numbers of states alone
    fcntl = None  # type: ignore[assignment]

_SPACE = 1 << 62

_Key = tuple[int, int, int]
_in_use: dict[_Key, Locks] = {}
"""By process, device and folder: however a folder is reached, it is the same one."""
_changing = threading.RLock()
"""Reentrant: a fleet that is collected as garbage gives its streams back wherever this thread is."""


class StreamHeld(BlockingIOError):
    """Another fleet or process works on a stream."""


class Locks:
    """All locks of this process in one folder, whichever fleet has them.

    There is one handle of the lock file for all: POSIX takes back every lock of a process on a file as soon as the process
    closes one handle of it. And it gives locks to processes: a fork has a copy of this object, and none of the locks.
    """

    def __init__(self, key: _Key, path: Path) -> None:
        self.process = os.getpid()
        self._key = key
        self._path = path
        self._file = (path / "locks").open("a+b")
        self._fleets = 0
        self._taken: set[str] = set()

    @staticmethod
    def of(path: Path) -> Locks:
        """Those of the folder ``path``, for one fleet more; each calls :meth:`leave` at its end."""
        status = path.stat()
        key = (os.getpid(), status.st_dev, status.st_ino)
        with _changing:
            locks = _in_use.get(key) or Locks(key, path)
            _in_use[key] = locks
            locks._fleets += 1
            if locks._file.closed:  # its last fleet was collected as garbage after it was found
                locks._file = (path / "locks").open("a+b")
        return locks

    def leave(self, names: set[str]) -> None:
        """One of the fleets ends, and gives back what it took."""
        if self.process != os.getpid():
            return  # the handle stays open: to close it would take back what this process has locked itself
        with _changing:
            for name in names:
                self.give_back(name)
            names.clear()
            self._fleets -= 1
            if not self._fleets:
                del _in_use[self._key]
                self._file.close()

    def check_process(self) -> None:
        """An error in a fork of the process that these locks are of."""
        if self.process != os.getpid():
            raise StreamHeld(
                f"this fleet was made in process {self.process}, which works on its streams in {self._path}, and process "
                f"{os.getpid()} is a fork of it: a state has one writer. Make a fleet in each process, after the fork"
            )

    def take(self, name: str) -> None:
        """Lock the stream ``name`` for one fleet; an error where another works on it."""
        place = _place_of(name)
        if name in self._taken:
            gc.collect()  # a fleet that nobody can reach any more may still wait for it
        with _changing:
            if name in self._taken:
                raise StreamHeld(
                    f"the stream {name!r} is held by another fleet of this process; close that one first (it is kept alive "
                    "by a variable, or by the traceback of an error)"
                )
            try:
                self._set(place, locked=True)
            except OSError as error:
                raise StreamHeld(
                    f"the stream {name!r} in {self._path} is held by another process: a state has one writer. Send this "
                    "stream's images there, or stop that process"
                ) from error
            self._taken.add(name)

    def give_back(self, name: str) -> None:
        """Let others work on it."""
        with _changing:
            self._set(_place_of(name), locked=False)
            self._taken.discard(name)

    def _set(self, place: int, *, locked: bool) -> None:
        """One byte of one file for each stream: no limit of open files stands against many streams."""
        if fcntl is not None:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB if locked else fcntl.LOCK_UN, 1, place)


def _place_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _SPACE
