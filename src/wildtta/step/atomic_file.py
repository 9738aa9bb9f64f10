"""Files that are whole or not there: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import time
from collections.abc import Callable
from pathlib import Path

_FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a temporary file is nobody's, wherever it was written."""


def write_atomically(path: Path, data: bytes, put: Callable[[Path, Path], object] = Path.replace) -> None:
    """All of ``data`` under ``path`` or nothing; permissions follow the umask. What a killed process left goes first.

    ``put`` brings the finished file to its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _clean_up(path)
    temporary = path.parent / f"{_prefix(path)}{_machine()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        # Opened within the try, and by one call: an interruption (Ctrl-C) at any moment leaves neither file nor handle.
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _machine() -> str:
    """A short name of this machine, without the letters that a file's name cannot have."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _clean_up(path: Path) -> None:
    """Remove temporary files of ``path`` whose writer no longer runs."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path.parent)):
            if entry.name.startswith(_prefix(path)) and entry.name.endswith(".tmp") and _is_forgotten(entry):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()


def _is_forgotten(entry: os.DirEntry[str]) -> bool:
    if time.time() - entry.stat().st_mtime > _FORGOTTEN_AFTER:
        return True
    machine, _, rest = entry.name.rsplit(".", 2)[-2].partition("-")
    process = rest.partition("-")[0]
    # On Windows there is no harmless signal to ask a process with.
    return os.name == "posix" and machine == _machine() and process.isdigit() and not _runs(int(process))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
