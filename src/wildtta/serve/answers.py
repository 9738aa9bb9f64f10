"""Answers that were given lately, by tenant and request id: a retry gets the same one."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from wildtta.serve.npy import Array

Key = tuple[str, str]
"""Tenant and request id."""


def digest(images: Array) -> bytes:
    """A fingerprint of a request's images: the same id for other images is a mistake of the caller's."""
    return hashlib.blake2b(images.tobytes(), digest_size=16).digest()


class Answers:
    """The latest answers, as many as fit into so many bytes."""

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._most = most_bytes
        self._held = 0
        self._answers: OrderedDict[Key, tuple[bytes, Array]] = OrderedDict()

    def get(self, key: Key) -> tuple[bytes, Array] | None:
        """Fingerprint and logits of an answered request."""
        return self._answers.get(key)

    def put(self, key: Key, fingerprint: bytes, logits: Array) -> None:
        before = self._answers.pop(key, None)
        self._held += logits.nbytes - (0 if before is None else before[1].nbytes)
        self._answers[key] = (fingerprint, logits)
        while self._held > self._most:
            _, (_, oldest) = self._answers.popitem(last=False)
            self._held -= oldest.nbytes

    def __len__(self) -> int:
        return len(self._answers)
