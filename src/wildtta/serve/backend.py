"""What the web interface needs of the replicas, wherever they run; and replicas in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from wildtta.serve.npy import Array
from wildtta.serve.replica import Replica
from wildtta.serve.routing import replica_of

Result = TypeVar("Result")


class Backend(Protocol):
    """The replicas of a service."""

    async def answer(self, tenant: str, request_id: str, images: Array, learn: bool) -> Array:
        """Logits of the tenant's own replica, [n, classes]."""

    async def act(self, tenant: str, verb: str) -> dict[str, Any]:
        """One of the verbs of an administrator."""

    async def status(self, names: Sequence[str] | None, since: float | None) -> list[dict[str, Any]]:
        """Of each replica that answers: its own facts and those of its tenants."""

    async def health(self) -> list[dict[str, Any] | None]:
        """Of each replica its facts, None where it does not answer."""


async def kept(future: Future[Result]) -> Result:
    """The result of a future that stays whole when this caller goes away: others may wait for the same answer."""
    return await asyncio.shield(asyncio.wrap_future(future))


class InProcess:
    """Replicas in this process: for tests, and to put the service into a program of one's own."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas

    async def answer(self, tenant: str, request_id: str, images: Array, learn: bool) -> Array:
        return await kept(self._of(tenant).submit(tenant, request_id, images, learn=learn))

    async def act(self, tenant: str, verb: str) -> dict[str, Any]:
        return await kept(self._of(tenant).act(tenant, verb))

    async def status(self, names: Sequence[str] | None, since: float | None) -> list[dict[str, Any]]:
        return [await kept(replica.status(names, since)) for replica in self.replicas]

    async def health(self) -> list[dict[str, Any] | None]:
        return [replica.facts() for replica in self.replicas]

    def _of(self, tenant: str) -> Replica:
        return self.replicas[replica_of(tenant, len(self.replicas))]
