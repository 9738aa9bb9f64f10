"""When states go to the folder, and what happens when they cannot.

A tenant's state is saved after so many steps or seconds, and all are at a graceful stop. (The fleet itself saves a stream
that it evicts.) The first save of a tenant comes earlier, each after another number of steps: a write to the disk takes
its time, and answers should not wait for many at once.

Where a state cannot be written, learning stops with an alarm: a state that cannot be kept should not move away from the
one that is. Answers go on, and saving is tried again until it works.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable

from wildtta.serve.logs import log

_AGAIN = 2.0
"""Seconds between two tries while something is wrong."""


class Saver:
    """Counts steps that are not saved yet and calls ``save`` (of one tenant, or of all: None) in time."""

    def __init__(self, save: Callable[[str | None], None], *, steps: int, seconds: float) -> None:
        self._save, self._steps, self._seconds = save, steps, seconds
        self._unsaved: dict[str, int] = {}
        self._since: dict[str, float] = {}
        """When each was changed first; the oldest comes first."""
        self._saved: set[str] = set()
        self._again = 0.0
        """When to try again, where there is an alarm."""
        self.alarm: str | None = None
        """Why nothing is learned now."""
        self.saves = 0
        self.failures = 0

    def unsaved(self, tenant: str) -> int:
        """Steps in memory alone."""
        return self._unsaved.get(tenant, 0)

    def changed(self, tenant: str) -> None:
        """One more step of a tenant."""
        self._unsaved[tenant] = self._unsaved.get(tenant, 0) + 1
        self._since.setdefault(tenant, time.monotonic())
        limit = self._steps if tenant in self._saved else 1 + zlib.crc32(tenant.encode()) % self._steps
        if self._unsaved[tenant] >= limit and self.alarm is None:
            self.now(tenant)

    def tick(self) -> None:
        """Save one tenant whose time has come; while something is wrong, try everything again."""
        if self.patience > 0:
            return
        self.now(None if self.alarm is not None else next(iter(self._since)))

    @property
    def patience(self) -> float:
        """Seconds until the next :meth:`tick` has something to do."""
        now = time.monotonic()
        if self.alarm is not None:
            return max(0.0, self._again - now)
        oldest = next(iter(self._since.values()), now)
        return max(0.0, oldest + self._seconds - now)

    def now(self, tenant: str | None) -> bool:
        """Save one tenant, or all (None); whether it worked."""
        try:
            self._save(tenant)
        # A full disk, a state that something else wrote, a file that was damaged: answers go on in any case.
        except Exception as error:
            self.failed(error)
            return False
        self.saves += 1
        for saved in list(self._unsaved) if tenant is None else [tenant]:
            self._unsaved.pop(saved, None)
            self._since.pop(saved, None)
            self._saved.add(saved)
        if self.alarm is not None and tenant is None:
            log("states can be saved again: learning goes on", level=logging.WARNING, was=self.alarm)
            self.alarm = None
        return True

    def failed(self, error: Exception) -> None:
        """Something could not be written: no learning until everything was saved once."""
        self.failures += 1
        if self.alarm is None:
            log("states cannot be saved: learning is paused", level=logging.ERROR, reason=str(error))
        self.alarm = f"states cannot be saved ({error}); answers go on, learning is paused until they can be"
        self._again = time.monotonic() + _AGAIN
