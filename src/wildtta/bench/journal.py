"""The journal: one JSON line per finished cell, appended and synced; a kill at any moment loses nothing.

A row is ``{"key", "cell", "resolved", "asked_by", "status": "ok" | "failed", "reason", "metrics", "series",
"diagnostics", "cost", "versions", "wall_s", "device", "data_note"}`` (:func:`wildtta.bench.running.run_cell`
fills it). Per key the newest row counts, and a row that is ok counts more than one that failed. ``asked_by``
says who wanted the row; who asks later for a finished row adds a line ``{"key", "asked_by"}``, which reading
puts into the row.

A line is written with a single append and an ``fsync``; what a kill can leave behind is a torn last line,
which the next opening cuts off and says so.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wildtta.bench.errors import JournalError
from wildtta.bench.plain import each_value, finite

Row = dict[str, Any]
Askers = Sequence[Mapping[str, Any]]
Say = Callable[[str], None]


def _silent(_: str) -> None:
    return None


class Journal:
    """An open journal: this process is its only writer until :meth:`close`.

    Args:
        path: the file; made where it doesn't exist.
        say: receives messages for people (a repaired line).
    """

    def __init__(self, path: str | os.PathLike[str], *, say: Say = _silent) -> None:
        self.path = Path(path)
        if self.path.suffix == ".gz":
            raise JournalError(f"{self.path} is compressed and can only be read; give a .jsonl file to write to")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise JournalError(f"cannot open the journal {self.path}: {error.strerror}") from error
        try:
            _lock(self._descriptor, self.path)
            self._repair(say)
            self._rows = _latest(_lines(self.path))
        except BaseException:
            os.close(self._descriptor)
            raise

    def _repair(self, say: Say) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == 0 or os.pread(self._descriptor, 1, size - 1) == b"\n":
            return
        content = self.path.read_bytes()
        start = content.rfind(b"\n") + 1
        if _parse(content[start:]) is not None:
            # The row is whole and only its line end is missing.
            self._write(b"\n")
            say(f"{self.path}: the last line lacked its end; it was completed")
            return
        os.ftruncate(self._descriptor, start)
        os.fsync(self._descriptor)
        say(f"{self.path}: the last line was torn ({size - start} bytes); it was cut off, its cell runs again")

    def append(self, row: Row) -> None:
        """Write one row and sync it to the disk; on failure the file is as before."""
        self._write(encode(row))
        _count(row, self._rows)

    def add_askers(self, key: str, asked_by: Askers) -> None:
        """Note who else asks for a row that is there; nothing is written where all are known."""
        known = self._rows[key].get("asked_by", [])
        new = _united(known, asked_by)[len(known) :]
        if new:
            self.append({"key": key, "asked_by": new})

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            # A full disk writes what fits: take that part of the line back, nothing else is touched.
            os.ftruncate(self._descriptor, before)
            raise JournalError(
                f"cannot write to the journal {self.path}: {error.strerror}; the {len(self._rows)} finished cells are "
                "safe, make room and run the same command again"
            ) from error

    @property
    def rows(self) -> list[Row]:
        """The row that counts for each key, in the order of first appearance."""
        return list(self._rows.values())

    def finished(self) -> set[str]:
        """Keys of the cells that need not run again."""
        return {key for key, row in self._rows.items() if row["status"] == "ok"}

    def close(self) -> None:
        """Give the file up to the next writer."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode(row: Row) -> bytes:
    """A row as one line; NaN and infinities become ``null`` (JSON has no such numbers)."""
    content = json.dumps(each_value(row, finite), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return content.encode() + b"\n"


def read(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, say: Say = _silent) -> list[Row]:
    """The rows of one journal, or of several merged: per key the newest, but never a failure over a success.

    Reads ``.jsonl`` and ``.jsonl.gz``. A torn last line is left out with a message; the file is not changed.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    return list(_latest(line for path in several for line in _lines(Path(path), say=say)).values())


def merge(
    paths: Iterable[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    series: bool = True,
    say: Say = _silent,
) -> int:
    """Write the merged rows of journals to a new one (``.jsonl`` or ``.jsonl.gz``); gives their number.

    Without ``series`` the rows lose what was recorded per batch, which is most of their size; tables need
    none of it.
    """
    rows = read(paths, say=say)
    write(rows if series else [{**row, "series": {}} for row in rows], destination)
    return len(rows)


def write(rows: Iterable[Row], destination: str | os.PathLike[str]) -> None:
    """Write a whole journal (``.jsonl`` or ``.jsonl.gz``) in place of an older one, or fail and leave it."""
    target = Path(destination)
    content = b"".join(map(encode, rows))
    partial = target.with_name(target.name + ".partial")
    try:
        # mtime=0: the same rows give the same bytes.
        partial.write_bytes(gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise JournalError(f"cannot write {target}: {error.strerror}") from error


def _latest(lines: Iterable[Row]) -> dict[str, Row]:
    chosen: dict[str, Row] = {}
    for line in lines:
        _count(line, chosen)
    return chosen


def _count(line: Row, chosen: dict[str, Row]) -> None:
    """Take in a line: the newest row counts, never a failure over a success; everybody who asked stays."""
    before = chosen.get(line["key"])
    if before is None and "cell" not in line:
        return
    newer = before is None or ("cell" in line and (line["status"] == "ok" or before["status"] != "ok"))
    counts = line if before is None or newer else before
    asked_by = _united((before or {}).get("asked_by", []), line.get("asked_by", []))
    chosen[line["key"]] = {**counts, "asked_by": asked_by} if asked_by else counts


def _united(known: Askers, more: Askers) -> list[Any]:
    """``known`` and then what of ``more`` is not among them, as it comes back from JSON."""
    united = list(known)
    for asker in each_value(more, finite):
        if asker not in united:
            united.append(asker)
    return united


def _lines(path: Path, *, say: Say = _silent) -> list[Row]:
    """All lines of one file in order, superseded rows too."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a complete gzip file"
        raise JournalError(f"cannot read the journal {path}: {reason}") from error
    lines = content.split(b"\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif number == len(lines):
            say(f"{path}: the last line is torn ({len(line)} bytes) and left out")
        else:
            raise JournalError(
                f"{path}, line {number} is not a row of a journal (expected a JSON object with key, cell and status, "
                f"found {line[:40]!r}); mend or delete that line, or give another file"
            )
    return rows


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("key"), str):
        return None
    complete = "cell" in row and row.get("status") in ("ok", "failed")
    return row if complete or ("cell" not in row and isinstance(row.get("asked_by"), list)) else None


def _lock(descriptor: int, path: Path) -> None:
    """One writer at a time; the kernel drops the lock when the process ends, however it ends."""
    if os.name != "posix":  # no advisory locks
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        message = f"{path} is being written by another process; wait for it or choose another journal"
        raise JournalError(message) from error
