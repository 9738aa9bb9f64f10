"""How much the requests in flight may hold: bodies while they come in, images while they wait for their answers.

Every request is small. A stranger who opens a thousand connections, and sends a large body slowly on each, is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from wildtta.serve.refusal import Refusal


class Room:
    """Bytes for the requests of all tenants. Where they are used up, those go on that hold less than an equal share.

    So nobody is locked out by another. k tenants, each with as much as it can get, hold 1 + 1/2 + … + 1/k times the room:
    with invented names it grows with the logarithm of their number. Used by one event loop, so that nothing is locked.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes: Counter[str] = Counter()
        self.held = 0

    @contextmanager
    def place(self, tenant: str) -> Iterator[Place]:
        """For one request of a tenant, until it is answered."""
        place = Place(self, tenant)
        try:
            yield place
        finally:
            place.hold(0)

    def change(self, tenant: str, change: int) -> None:
        """Take so many bytes more (or give some back) for a tenant; a refusal where there is no room for them."""
        own = self._bytes[tenant] + change
        share = self._most / (len(self._bytes) + (tenant not in self._bytes))
        if change > 0 and self.held + change > self._most and own > share:
            raise Refusal(
                429,
                "the service holds as much as it can, and more of this tenant than of others; "
                "send the request again in a moment, with the same id",
                retry_after=1.0,
            )
        self._bytes[tenant] = own
        self.held += change
        if not own:
            del self._bytes[tenant]


class Place:
    """What one request holds."""

    def __init__(self, room: Room, tenant: str) -> None:
        self._room, self._tenant = room, tenant
        self._held = 0

    def hold(self, size: int) -> None:
        """So many bytes from now on."""
        self._room.change(self._tenant, size - self._held)
        self._held = size
