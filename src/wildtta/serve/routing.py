"""Which replica a tenant belongs to: rendezvous hashing.

Every (tenant, replica) pair has a pseudo-random weight, and the replica with the largest one has the tenant (Thaler and
Ravishankar 1998, "Using name-based mappings to increase hit rates"). The choice needs no table and is the same in every
process. When a replica is added, a tenant stays or moves to the new one; nobody else moves.
"""

from __future__ import annotations

import hashlib


def weight(tenant: str, replica: int) -> int:
    """A 64-bit hash of the pair; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{replica}/{tenant}".encode(), digest_size=8).digest(), "big")


def replica_of(tenant: str, replicas: int) -> int:
    """The replica (0 … replicas − 1) that has a tenant."""
    return max(range(replicas), key=lambda replica: weight(tenant, replica))
