"""The tenants of one replica: their streams in the fleet, the requests they learned from, their history.

Everything here happens in the replica's own thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wildtta.guard.ladder import Rung
from wildtta.serve.history import History
from wildtta.serve.learned_ids import LearnedIds
from wildtta.serve.logs import log
from wildtta.serve.npy import Array
from wildtta.serve.refusal import Refusal
from wildtta.serve.saving import Saver
from wildtta.serve.settings import Settings
from wildtta.serve.waiting import Request

VERBS = ("pause", "resume", "rollback", "reset")
_ACTIONS = {
    "slow": "slowed learning down",
    "pause": "paused learning",
    "snapshot": "went back to the last healthy weights",
    "source": "went back to the source, which answers",
}
_MILDER = {
    "learn": "lets it learn again",
    "slow": "lets it learn slowly again",
    "pause": "paused learning",
    "trial": "lets it learn aside; the source answers",
}
"""What a guard did, on its way up and on its way down."""
_BESIDE = "requests"
"""Folder in that of the states: which requests each of them was learned from."""
_MEASURED_EVERY = 1.0
"""Seconds between two measurements of a tenant's distance from the source."""


class Tenant:
    """A tenant that this process has seen."""

    def __init__(self, name: str, stream: Any, ids: LearnedIds | None) -> None:
        self.name, self.stream, self.ids = name, stream, ids
        self.history = History()
        self.calls = 0
        """Of the stream, before the present turn."""
        self.distance: float | None = None
        self.rests = True
        """Whether its last step that was looked at left the weights alone."""
        self.rung = 0
        self._decided = 0
        self._measured = 0.0

    def measure(self) -> None:
        """Read what costs something to read, now and then."""
        now = time.monotonic()
        if self.stream is None or now - self._measured < _MEASURED_EVERY:
            return
        self._measured = now
        report = self.stream.last
        if report is not None:
            self.rests = not bool(report.learned)
            if math.isfinite(distance := float(report.distance)):
                self.distance = self.history.point().distance = distance

    def follow_guard(self) -> None:
        """What the guard did since the last time."""
        watch = None if self.stream is None else self.stream.guard
        if watch is None:
            return
        # A stream that was reset has a guard that decided nothing yet.
        new = watch.decided - min(self._decided, watch.decided)
        for decision in watch.decisions[len(watch.decisions) - new :]:
            action = decision.action.name.lower()
            milder = decision.action < self.rung
            words = _MILDER[action] if milder else _ACTIONS[action]
            text = f"{words} (evidence {decision.evidence:.3g}, test: {decision.because})"
            self.history.happened("guard", words if milder else text, alarm=not milder)
            facts = {"tenant": self.name, "action": action, "evidence": decision.evidence, "because": decision.because}
            log("the guard acted", level=logging.INFO if milder else logging.WARNING, **facts)
            self.rung = int(decision.action)
        self.rung = int(watch.judge.ladder.rung)
        point = self.history.point()
        point.rung = max(point.rung, self.rung)
        self._decided = watch.decided


class Tenants:
    """The tenants that this process has seen lately, and when their states are saved."""

    def __init__(self, fleet: Any, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._folder = Path(settings.folder) / _BESIDE
        self._seen: OrderedDict[str, Tenant] = OrderedDict()
        self._most_seen = max(settings.resident, settings.active)
        """A group holds at most ``active`` tenants: none of them may go while it is answered."""
        self._known = len(fleet) if settings.learn else 0
        """Tenants with a state: those in the folder at first, and those that came since."""
        self.saver = Saver(self._save, steps=settings.save_steps, seconds=settings.save_seconds)

    # -- around a turn ---------------------------------------------------------------------------------------------------

    def may_learn(self, request: Request, *, overloaded: bool) -> bool:
        """Whether a request of this group may be learned from; takes its tenant up where it is new."""
        tenant = self._tenant(request.tenant)
        if not request.learn or tenant.ids is None:
            return False
        tenant.calls = tenant.stream.calls
        if overloaded or self.saver.alarm is not None:
            tenant.history.dropped += 1
            tenant.history.point().dropped += 1
            return False
        return not tenant.stream.paused and request.id not in tenant.ids

    def note_ids(self, requests: Sequence[Request], learn: Sequence[bool]) -> bool:
        """Write down which requests are about to be learned from; False where that is impossible."""
        ids: dict[str, list[str]] = {}
        for request, flag in zip(requests, learn, strict=True):
            if flag:
                ids.setdefault(request.tenant, []).append(request.id)
        try:
            for name, own in ids.items():
                tenant = self._seen[name]
                assert tenant.ids is not None
                tenant.ids.add(tenant.calls + 1, own)
        except OSError as error:
            self._failed(error)
            return False
        return True

    def answered(self, requests: Sequence[Request], logits: Array, learned: Sequence[bool]) -> None:
        """A turn is over: count, watch, save."""
        rows: dict[str, list[int]] = {}
        start = 0
        numbers: dict[str, int] = {}
        for request in requests:
            stop = start + len(request.images)
            rows.setdefault(request.tenant, []).extend(range(start, stop))
            numbers[request.tenant] = numbers.get(request.tenant, 0) + 1
            start = stop
        learners = {request.tenant for request, flag in zip(requests, learned, strict=True) if flag}
        for name, own in rows.items():
            tenant = self._seen[name]
            tenant.history.answered(logits[own], numbers[name])
            if name in learners:
                tenant.history.learned += 1
                tenant.history.point().learned += 1
                before = self.saver.alarm
                self.saver.changed(name)
                self._tell_alarm(before)
            tenant.follow_guard()
            tenant.measure()

    # -- what an administrator may do ------------------------------------------------------------------------------------

    def act(self, name: str, verb: str) -> dict[str, Any]:
        """One of the verbs on one tenant; its state is saved at once."""
        if verb not in VERBS:
            raise Refusal(404, f"there is no {verb!r}; a tenant can {', '.join(VERBS)}")
        if not self._settings.learn:
            raise Refusal(409, f"nothing learns in this service, so there is nothing to {verb}")
        if name not in self._fleet:
            raise Refusal(404, f"there is no tenant {name!r} yet: it begins with its first image")
        tenant = self._tenant(name)
        try:
            getattr(tenant.stream, verb)()
        except RuntimeError as error:
            raise Refusal(409, str(error)) from error
        before = self.saver.alarm
        self.saver.now(name)
        self._tell_alarm(before)
        tenant.history.happened("verb", verb, alarm=False)
        log("an administrator acted", tenant=name, verb=verb)
        return self._told(tenant, None)

    def told(self, names: Sequence[str] | None, since: float | None) -> dict[str, dict[str, Any]]:
        """Facts of some tenants by name; of all, those in the folder too, where ``names`` is None."""
        if names is not None:
            return {name: self._told(self._seen[name], since) for name in names if name in self._seen}
        found: dict[str, dict[str, Any]] = {name: self._told(tenant, since) for name, tenant in self._seen.items()}
        return found

    def close(self) -> None:
        """Save and release everything."""
        if not self._settings.learn:
            return
        try:
            self._sync(self._seen.values())
            self._fleet.close()
        except OSError as error:
            log("states could not be saved at the end", level=logging.ERROR, error=True, reason=str(error))

    # -- a tenant --------------------------------------------------------------------------------------------------------

    def _tenant(self, name: str) -> Tenant:
        tenant = self._seen.get(name) or self._take_up(name)
        self._seen.move_to_end(name)
        return tenant

    def _take_up(self, name: str) -> Tenant:
        if not self._settings.learn:
            tenant = Tenant(name, None, None)
        else:
            new = name not in self._fleet
            if new and self._known >= self._settings.limits.tenants:
                raise Refusal(
                    403, f"this replica has {self._settings.limits.tenants} tenants already and takes no more"
                )
            stream = self._fleet[name]
            self._known += new
            ids = LearnedIds(self._folder / f"{name}.ids", most=self._settings.remembered, calls=stream.calls)
            tenant = Tenant(name, stream, ids)
            log("tenant taken up", tenant=name, calls=stream.calls, ids=len(ids), lost_steps=ids.lost)
            if ids.lost:
                text = f"the process before ended suddenly: {ids.lost} steps since the last save are lost"
                tenant.history.happened("restart", text)
        self._seen[name] = tenant
        while len(self._seen) > self._most_seen:
            # Its state is the fleet's; its ids are in their file, and are read again when it comes back.
            _, idle = self._seen.popitem(last=False)
            try:
                self._sync([idle])
            except OSError as error:
                self._failed(error)
        return tenant

    def _told(self, tenant: Tenant, since: float | None) -> dict[str, Any]:
        return {
            "name": tenant.name,
            "paused": tenant.stream is not None and bool(tenant.stream.paused),
            "rung": Rung(tenant.rung).name.lower(),
            "guarded": self._settings.guard is not None and tenant.stream is not None,
            "rests": tenant.rests,
            "distance": tenant.distance,
            "unsaved_steps": self.saver.unsaved(tenant.name),
            **tenant.history.told(since),
        }

    # -- saving ----------------------------------------------------------------------------------------------------------

    def _save(self, name: str | None) -> None:
        """Ids first: a state must not hold what its log does not have, even after a power cut."""
        if not self._settings.learn:
            return
        if name is None:
            self._sync(self._seen.values())
            self._fleet.save()
        else:
            # Of a tenant that is not seen any more the ids are on the disk already.
            self._sync([self._seen[name]] if name in self._seen else [])
            self._fleet.save([name])

    def _sync(self, tenants: Iterable[Tenant]) -> None:
        for tenant in tenants:
            if tenant.ids is not None and self.saver.unsaved(tenant.name):
                tenant.ids.sync()

    def _failed(self, error: OSError) -> None:
        before = self.saver.alarm
        self.saver.failed(error)
        self._tell_alarm(before)

    def _tell_alarm(self, before: str | None) -> None:
        if before is None and self.saver.alarm is not None:
            for tenant in self._seen.values():
                tenant.history.happened("disk", self.saver.alarm)
