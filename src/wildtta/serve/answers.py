"""Answers that were given lately, by tenant and request id: a retry gets the same one."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict

from wildtta.serve.npy import Array

Answer = tuple[bytes, Array]
"""Fingerprint of the images, and logits."""
_BESIDE = 1024
"""Bytes of an answer beside its logits, about: with two classes these are 8, and what holds them is a hundred times that."""
_SHARES = 16


def digest(images: Array) -> bytes:
    """A fingerprint of a request's images: the same id for other images is a mistake of the caller's."""
    found = hashlib.blake2b(f"{images.dtype.str} {images.shape}".encode(), digest_size=16)
    found.update(images.tobytes())
    return found.digest()


class Answers:
    """The latest answers within so many bytes, of which a tenant has a sixteenth at most.

    Where there is no room left, the tenant loses its oldest ones that has asked for nothing the longest.
    """

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._most = most_bytes
        self._tenants: OrderedDict[str, OrderedDict[str, Answer]] = OrderedDict()
        self._bytes: Counter[str] = Counter()
        self.held = 0
        """Bytes of all."""

    def get(self, tenant: str, request_id: str) -> Answer | None:
        """Fingerprint and logits of an answered request."""
        own = self._tenants.get(tenant)
        return None if own is None else own.get(request_id)

    def put(self, tenant: str, request_id: str, fingerprint: bytes, logits: Array) -> None:
        own = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        if request_id in own:
            self._drop(tenant, request_id)
        own[request_id] = fingerprint, logits
        self._count(tenant, _BESIDE + logits.nbytes)
        while self._bytes[tenant] > self._most // _SHARES and len(own) > 1:
            self._drop(tenant, next(iter(own)))
        while self.held > self._most:
            idle = next(iter(self._tenants))
            self._drop(idle, next(iter(self._tenants[idle])))
            if not self._tenants[idle]:
                del self._tenants[idle], self._bytes[idle]

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def _drop(self, tenant: str, request_id: str) -> None:
        _, logits = self._tenants[tenant].pop(request_id)
        self._count(tenant, -_BESIDE - logits.nbytes)

    def _count(self, tenant: str, change: int) -> None:
        self._bytes[tenant] += change
        self.held += change
