"""The guard's diary: one JSON object per line and decision, with its evidence."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wildtta.guard.judge import Judge, Look

FORMAT = "wildtta-guard-audit-1"


class Audit:
    """Appends lines to a file; every line is whole even if the process dies right after it.

    A path that cannot be written to is refused at the start. What fails later (a full disk, a folder that was removed) is
    told once and stops nobody from being answered.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._told = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise OSError(
                f"audit={str(path)!r} cannot be written to ({error}); give a file in a writable folder"
            ) from error

    def _open(self) -> None:
        """Make the file; a last line that a crash cut off goes, so that the next one is whole."""
        with self.path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)

    def write(self, kind: str, **facts: Any) -> None:
        """One line: ``kind`` is "start", "look" or "decision"."""
        line = {"format": FORMAT, "time": round(time.time(), 3), "kind": kind, **facts}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(line), allow_nan=False) + "\n")
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


def read_audit(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of an audit file; a last line that was cut off by a crash is left out."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: expected a JSON object per line, got {line[:40]!r}") from error
        found.append(row)
    return found


def is_audit(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a guard's audit (and not, say, a journal of benchmark cells)."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return FORMAT in file.readline(200)
    except (OSError, UnicodeDecodeError):
        return False


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
