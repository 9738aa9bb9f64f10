"""Of several saves to one path at a time the one begun last wins, however long each of them takes to write."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from wildtta.step.interrupts import Held


class _File:
    """A path that is being saved to: how many saves were begun, and which of them it holds."""

    def __init__(self) -> None:
        self.begun = self.held = 0


_files: weakref.WeakValueDictionary[str, _File] = weakref.WeakValueDictionary()
_lock = threading.RLock()
"""For the moment of a rename; nobody waits here for a disk."""


class Save:
    """One save to ``path``. Make it where the state is taken, so that the order of saves is that of their states."""

    def __init__(self, path: str | Path) -> None:
        with _lock:
            self._file = _files.setdefault(os.path.abspath(path), _File())
            self._file.begun += 1
            self._number = self._file.begun

    def put(self, temporary: Path, path: Path) -> None:
        """Rename what was written to ``path``, unless a later save is there already."""
        with Held(), _lock:
            if self._number < self._file.held:
                temporary.unlink()
            else:
                temporary.replace(path)
                self._file.held = self._number
