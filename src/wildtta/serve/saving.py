"""When states go to the folder, and what happens when they cannot.

A tenant's state is saved after so many steps, all changed ones after so many seconds, and all at a graceful stop. (The
fleet itself saves a stream that it evicts.) Where a state cannot be written, learning stops with an alarm: a state that
cannot be kept should not move away from the one that is. Answers go on, and saving is tried again until it works.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wildtta.serve.logs import log

_AGAIN = 2.0
"""Seconds between two tries while something is wrong."""


class Saver:
    """Counts steps that are not saved yet and calls ``save`` (of one tenant, or of all: None) in time."""

    def __init__(self, save: Callable[[str | None], None], *, steps: int, seconds: float) -> None:
        self._save, self._steps, self._seconds = save, steps, seconds
        self._unsaved: dict[str, int] = {}
        self._next = time.monotonic() + seconds
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
        if self._unsaved[tenant] >= self._steps and self.alarm is None:
            self.now(tenant)

    def tick(self) -> None:
        """Save everything where it is time to."""
        if time.monotonic() >= self._next:
            self.now(None)

    @property
    def patience(self) -> float:
        """Seconds until the next :meth:`tick` has something to do."""
        return max(0.0, self._next - time.monotonic())

    def now(self, tenant: str | None) -> bool:
        """Save one tenant, or all (None); whether it worked."""
        if tenant is None:
            self._next = time.monotonic() + self._seconds
        try:
            self._save(tenant)
        # OSError: a full disk. RuntimeError: a state that something else wrote.
        except (OSError, RuntimeError) as error:
            self.failed(error)
            return False
        self.saves += 1
        if tenant is None:
            self._unsaved.clear()
        else:
            self._unsaved.pop(tenant, None)
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
        self._next = min(self._next, time.monotonic() + _AGAIN)
