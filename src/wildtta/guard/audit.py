"""The guard's diary: one JSON object per line and decision, with its evidence."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wildtta.guard.judge import Judge, Look

FORMAT = "wildtta-guard-audit-1"
_START = f'{{"format": "{FORMAT}"'.encode()


class Audit:
    """Appends lines to a file; every line is whole even if the process dies right after it.

    A path that cannot be written to, or that holds something else, is refused at the start. What fails later (a full disk,
    a folder that was removed) is told once and stops nobody from being answered. The half line that it may leave goes
    before the next one is written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._told = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not _may_be_audit(self.path):
                raise FileExistsError("something else is there, which stays as it is")
            self._append(b"")
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise OSError(
                f"audit={str(path)!r} cannot be written to ({error}); give a new file, or an earlier audit, in a writable "
                "folder"
            ) from error

    def _append(self, line: bytes) -> None:
        with self.path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line)

    def write(self, kind: str, **facts: Any) -> None:
        """One line: ``kind`` is "start", "look" or "decision"."""
        line = {"format": FORMAT, "time": round(time.time(), 3), "kind": kind, **facts}
        try:
            self._append(json.dumps(_plain(line), allow_nan=False).encode() + b"\n")
            self._told = False
        except OSError as error:
            if not self._told:
                warnings.warn(
                    f"the guard's audit file {self.path} cannot be written to ({error}): lines are missing from now on. The "
                    "guard goes on, and model.guard.decisions has what it did",
                    stacklevel=2,
                )
            self._told = True


def look_facts(judge: Judge, look: Look) -> dict[str, Any]:
    """What a line about a look holds."""
    return {
        "look": judge.looks,
        "images": judge.images,
        "rung": judge.ladder.rung.name.lower(),
        "evidence": judge.evidence,
        "disagreement": look.disagreement,
        "top_share": look.top_share,
        "source_top_share": look.source_top_share,
        "distance": look.distance,
        "lost_spread": _mean(look.fresh.spread),
        "lost_spread_memory": _mean(look.remembered.spread),
        "lost_certainty": _mean(look.fresh.certainty),
        "lost_certainty_memory": _mean(look.remembered.certainty),
    }


_NUMBERS = {
    "start": ("false_alarms",),
    "look": ("images", "evidence", "disagreement", "top_share", "source_top_share"),
    "decision": ("images", "evidence"),
}
_TEXTS = {"decision": ("action", "because")}
"""What a line of each kind must hold to be worth reading."""


def read_audit(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The whole lines of an audit file."""
    return whole_lines(path)[0]


def whole_lines(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], int]:
    """The lines of an audit file that are whole, and how many are not: a crash or a full disk broke them."""
    lines = [line for line in Path(path).read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    whole = [row for row in map(_parsed, lines) if row is not None]
    return whole, len(lines) - len(whole)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        return None
    kind, entries = row["kind"], {**row, **row["guard"]} if isinstance(row.get("guard"), dict) else row
    numbers, texts = ([entries.get(name) for name in needed.get(kind, ())] for needed in (_NUMBERS, _TEXTS))
    finite = all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in numbers)
    return row if finite and all(isinstance(value, str) for value in texts) else None


def is_audit(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a guard's audit (and not, say, a journal of benchmark cells)."""
    try:
        with Path(path).open("rb") as file:
            return FORMAT.encode() in file.readline(200)
    except OSError:
        return False


def _may_be_audit(path: Path) -> bool:
    """Whether a file is empty or begins as an audit does, also one whose first line broke off."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(_START))
    return start == _START[: len(start)]


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
