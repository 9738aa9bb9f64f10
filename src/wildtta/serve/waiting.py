"""Requests that wait for the fleet, and how they are grouped.

A group holds requests of several tenants, one of each in turn, so that a tenant that sends a thousand delays nobody else.
Under overload the tenants that have more waiting than their share are answered and not learned from; the others learn on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from wildtta.serve.npy import Array
from wildtta.serve.refusal import Refusal


@dataclass(eq=False)
class Request:
    """Images of one tenant that want an answer."""

    tenant: str
    id: str
    images: Array
    """uint8, or float32 that is normalised already: [n, 3, size, size]."""
    fingerprint: bytes = b""
    learn: bool = True
    arrived: float = field(default_factory=time.monotonic)
    answer: Future[Array] = field(default_factory=Future)
    """Its logits, [n, classes]."""


@dataclass
class Group:
    """What is answered together."""

    requests: list[Request]
    overloaded: frozenset[str]
    """Tenants that are not learned from this time."""


class Waiting:
    """Any number of threads put requests in, one takes groups out. Commands are run by that one between two groups."""

    def __init__(self, *, batch: int, wait: float, busy: int, most: int, tenants: int, alone: bool = False) -> None:
        """Groups of at most ``batch`` images of at most ``tenants`` tenants; at most ``most`` images of one tenant wait."""
        self._batch, self._wait, self._busy, self._most = batch, wait, busy, most
        self._tenants = 1 if alone else tenants
        self._queues: OrderedDict[str, deque[Request]] = OrderedDict()
        self._commands: deque[Callable[[], None]] = deque()
        self._images: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closed = False

    @property
    def images(self) -> int:
        """That wait now."""
        with self._changed:
            return sum(self._images.values())

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, request: Request) -> None:
        number = len(request.images)
        with self._changed:
            if self._closed:
                raise Refusal(503, "this replica is stopping; send the request again", retry_after=1.0)
            waiting = self._images.get(request.tenant, 0)
            if waiting and waiting + number > self._most:
                raise Refusal(
                    429,
                    f"{waiting} images of this tenant wait already (at most {self._most} do); "
                    "send the request again in a moment, with the same id",
                    retry_after=1.0,
                )
            self._queues.setdefault(request.tenant, deque()).append(request)
            self._images[request.tenant] = waiting + number
            self._changed.notify_all()

    def run(self, command: Callable[[], None]) -> None:
        """Have a command run between two groups."""
        with self._changed:
            if self._closed:
                raise Refusal(503, "this replica is stopping; send the request again", retry_after=1.0)
            self._commands.append(command)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing comes in any more; what waits can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, patience: float) -> tuple[list[Callable[[], None]], Group | None]:
        """The commands that wait, and the next group: None if there is nothing to answer within ``patience`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._commands or self._closed, patience)
            commands = list(self._commands)
            self._commands.clear()
            if commands or not self._queues:
                return commands, None
            oldest = min(queue[0].arrived for queue in self._queues.values())
            until = oldest + self._wait
            while not self._closed and not self._full() and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return commands, self._group()

    def _full(self) -> bool:
        return sum(self._images.values()) >= self._batch

    def _group(self) -> Group:
        chosen: list[Request] = []
        room = self._batch
        overloaded = self._overloaded()
        turns = deque(itertools.islice(self._queues, self._tenants))
        while turns:
            tenant = turns.popleft()
            queue = self._queues[tenant]
            # A request larger than a group goes alone.
            if len(queue[0].images) > room and chosen:
                continue
            request = queue.popleft()
            chosen.append(request)
            room -= len(request.images)
            self._images[tenant] -= len(request.images)
            if queue:
                turns.append(tenant)
                # Served last among those that wait, the next time.
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant], self._images[tenant]
            if room <= 0:
                break
        return Group(chosen, overloaded)

    def _overloaded(self) -> frozenset[str]:
        """Where more than ``busy`` images wait: the tenants with more than an equal share of ``busy``."""
        if sum(self._images.values()) <= self._busy:
            return frozenset()
        share = self._busy / len(self._images)
        return frozenset(tenant for tenant, number in self._images.items() if number > share)
