"""Which requests were answered together, and which were learned from: enough to repeat a run and compare every answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from wildtta.serve.waiting import Request


@dataclass(frozen=True)
class Turn:
    """One turn of a fleet."""

    process: int
    """Of the replica: a new one begins where it found the states in the folder."""
    tenants: list[str]
    ids: list[str]
    images: list[int]
    """Of each request."""
    learn: list[bool]
    """Whether each was to be learned from."""
    learned: bool
    """Whether the turn was learned from at all."""


class Recorder:
    """Appends turns to a file of its replica."""

    def __init__(self, folder: Path, replica: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"replica-{replica}.jsonl").open("a", encoding="utf-8")

    def write(self, requests: Sequence[Request], learn: Sequence[bool], *, learned: bool) -> None:
        turn = Turn(
            process=os.getpid(),
            tenants=[request.tenant for request in requests],
            ids=[request.id for request in requests],
            images=[len(request.images) for request in requests],
            learn=list(learn),
            learned=learned,
        )
        self._file.write(json.dumps(asdict(turn)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_record(path: Path) -> Iterator[Turn]:
    """The turns of one replica, in order; a line that a kill cut off is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield Turn(**json.loads(line))
