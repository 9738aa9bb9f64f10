"""A claim that a run has decided, or could not decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["holds", "fails", "too short to tell", "not run"]
MARKS: dict[Status, str] = {"holds": "✓", "fails": "✗", "too short to tell": "too short", "not run": "not run"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a claim says, whether it holds, by which numbers (or why it is not decided), on which data.

    ``scaled`` stands beside a verdict on other data, networks or stream lengths than the paper's.
    """

    name: str
    text: str
    status: Status
    numbers: str
    data: str
    scaled: str = ""

    @property
    def decided(self) -> bool:
        """Whether it holds or fails."""
        return self.status in ("holds", "fails")

    @property
    def mark(self) -> str:
        """``✓``, ``✓ on glyphs``, ``✗``, ``too short`` or ``not run``."""
        return f"{MARKS[self.status]} {self.scaled}".strip() if self.decided else MARKS[self.status]


def counted(outcomes: Iterable[Outcome]) -> dict[Status, int]:
    """How many claims ended in each status; every status is there."""
    found = Counter(outcome.status for outcome in outcomes)
    return {status: found[status] for status in MARKS}
