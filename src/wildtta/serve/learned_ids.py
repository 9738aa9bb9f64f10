"""Which requests a tenant's state has learned from: a log beside the state, so that a retry is never learned twice.

Each line holds the number that the stream's next call will have, and the ids of the requests in it. It is written before
that call is learned from. A state knows its own number of calls, so whichever state is found after a crash, the log
tells its ids: the lines up to its number. Later lines are of steps that were lost with the process; their requests may
be learned again, and the lines are dropped. State and log never have to be written at the same moment.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from wildtta.step.atomic_file import write_atomically


class LearnedIds:
    """The latest ids of one tenant, in memory and in its log."""

    def __init__(self, path: Path, *, most: int, calls: int) -> None:
        """Take a log up.

        Args:
            path: of the log; it need not exist.
            most: ids that are remembered, at least.
            calls: of the tenant's state as it was found.
        """
        self._path = path
        self._most = most
        self._calls: OrderedDict[str, int] = OrderedDict()
        lines, whole = _read(path)
        kept = [(call, ids) for call, ids in lines if call <= calls]
        self.lost = len(lines) - len(kept)
        """Steps that the log has and the state has not."""
        for call, ids in kept:
            self._remember(call, ids)
        self._lines = len(lines)
        self._stale = bool(self.lost) or not whole
        """Whether the file holds what has to go before the next line is added; reading alone writes nothing."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: int, ids: Sequence[str]) -> None:
        """One line more, before these requests are learned from. After an OSError these are not in it."""
        if self._stale:
            self._rewrite()
        line = (json.dumps({"call": call, "ids": list(ids)}) + "\n").encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(handle).st_size
            try:
                written = os.write(handle, line)
            except OSError:
                os.ftruncate(handle, before)
                raise
            if written < len(line):
                # A disk that is almost full takes a part of the line.
                os.ftruncate(handle, before)
                raise OSError(28, "no space left for the log of request ids", str(self._path))
        finally:
            os.close(handle)
        self._remember(call, ids)
        self._lines += 1
        if self._lines > 2 * self._most:
            self._rewrite()

    def sync(self) -> None:
        """Onto the disk, as far as it is written: before a state that holds these ids is."""
        if self._path.exists():
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _remember(self, call: int, ids: Sequence[str]) -> None:
        for request_id in ids:
            self._calls[request_id] = call
            self._calls.move_to_end(request_id)
        while len(self._calls) > self._most:
            self._calls.popitem(last=False)

    def _rewrite(self) -> None:
        by_call: dict[int, list[str]] = {}
        for request_id, call in self._calls.items():
            by_call.setdefault(call, []).append(request_id)
        text = "".join(json.dumps({"call": call, "ids": ids}) + "\n" for call, ids in by_call.items())
        write_atomically(self._path, text.encode())
        self._lines, self._stale = len(by_call), False


def _read(path: Path) -> tuple[list[tuple[int, list[str]]], bool]:
    """The lines, and whether the file is whole: a process that was killed while it wrote leaves a part of a line.

    (A power cut may leave anything in a line that was not on the disk yet. Such a line is of steps that are lost too.)
    """
    if not path.exists():
        return [], True
    *lines, rest = path.read_bytes().split(b"\n")
    read = [_line(line) for line in lines]
    found = [line for line in read if line is not None]
    return found, not rest and len(found) == len(read)


def _line(line: bytes) -> tuple[int, list[str]] | None:
    """Call and ids; None where the line is none of ours."""
    try:
        told = json.loads(line)
        return int(told["call"]), [str(request_id) for request_id in told["ids"]]
    except (ValueError, KeyError, TypeError):
        return None
