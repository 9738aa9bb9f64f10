"""The service on Ray Serve: one deployment for the web interface, one for each replica.

Serve spreads the requests of a deployment over its copies as it likes. A tenant's state has one writer, so every replica
is a deployment of its own with exactly one copy, and the web interface chooses by :func:`replica_of`. Serve starts a
replica that died again; it finds its tenants' states in the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from wildtta.serve.logs import log, set_up
from wildtta.serve.npy import Array
from wildtta.serve.refusal import Refusal
from wildtta.serve.routing import replica_of
from wildtta.serve.settings import MIB, Settings

APPLICATION = "wildtta"
_PATIENCE = 45.0
"""Seconds that a request waits for a replica that is being started again."""
_STATUS_PATIENCE = 3.0
_EVERYTHING = 100_000
"""Requests at a time: what is too many is decided by the replica, not by Serve."""
_HEALTH_PERIOD = 1.0
_OBJECT_STORE = 128 * MIB
_FEW_HEAPS = {"MALLOC_ARENA_MAX": "2"}
"""glibc makes heaps for all of Ray's threads and keeps what is left behind in each: a replica would grow for hours."""
_GIVE_BACK = {**_FEW_HEAPS, "MALLOC_MMAP_THRESHOLD_": "262144"}
"""For the web interface, where bodies of megabytes come and go. (A network's tensors should not go back each time.)"""


class FleetReplica:
    """A replica as Serve runs it. Refusals travel as values: an exception would arrive as one of Ray's."""

    def __init__(self, settings: Settings, index: int) -> None:
        from wildtta.serve.replica import Replica

        self._replica = Replica(settings, index)

    async def answer(self, tenant: str, request_id: str, images: Array, learn: bool) -> Any:
        return await _told(lambda: self._replica.submit(tenant, request_id, images, learn=learn))

    async def act(self, tenant: str, verb: str) -> Any:
        return await _told(lambda: self._replica.act(tenant, verb))

    async def status(self, names: Sequence[str] | None, since: float | None) -> Any:
        return await _told(lambda: self._replica.status(names, since))

    async def facts(self) -> dict[str, Any]:
        return self._replica.facts()

    async def close(self) -> None:
        await asyncio.to_thread(self._replica.close)

    def check_health(self) -> None:
        if not self._replica.facts()["alive"]:
            raise RuntimeError("the replica's thread has ended")

    def __del__(self) -> None:
        # Called by Serve before it stops a replica in good order.
        self._replica.close()


async def _told(call: Callable[[], Future[Any]]) -> Any:
    from wildtta.serve.backend import kept

    try:
        return await kept(call())
    except Refusal as refusal:
        return refusal


class Replicas:
    """The backend of the web interface: handles of all replicas."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    async def answer(self, tenant: str, request_id: str, images: Array, learn: bool) -> Array:
        handle = self._of(tenant)
        found: Array = await _persistent(lambda: handle.answer.remote(tenant, request_id, images, learn), _PATIENCE)
        return found

    async def act(self, tenant: str, verb: str) -> dict[str, Any]:
        handle = self._of(tenant)
        found: dict[str, Any] = await _persistent(lambda: handle.act.remote(tenant, verb), _STATUS_PATIENCE)
        return found

    async def status(self, names: Sequence[str] | None, since: float | None) -> list[dict[str, Any]]:
        asked = [_or_none(handle.status.remote(names, since)) for handle in self._handles]
        return [told for told in await asyncio.gather(*asked) if told is not None]

    async def health(self) -> list[dict[str, Any] | None]:
        return await asyncio.gather(*(_or_none(handle.facts.remote()) for handle in self._handles))

    def _of(self, tenant: str) -> Any:
        return self._handles[replica_of(tenant, len(self._handles))]


async def _or_none(response: Any) -> dict[str, Any] | None:
    """What a replica tells within a few seconds."""
    with contextlib.suppress(Exception):
        told = await asyncio.wait_for(_result(response), _STATUS_PATIENCE)
        return None if isinstance(told, Refusal) else told
    return None


async def _result(response: Any) -> Any:
    return await response


async def _persistent(call: Callable[[], Any], patience: float) -> Any:
    """The result of a call, which is made again while the replica dies and comes back. (Ids make that harmless.)"""
    from ray.exceptions import RayActorError, RaySystemError
    from ray.serve.exceptions import RayServeException

    until, pause = time.monotonic() + patience, 0.05
    while True:
        try:
            found = await asyncio.wait_for(_result(call()), max(0.1, until - time.monotonic()))
        except (RayActorError, RaySystemError, RayServeException, asyncio.TimeoutError) as error:
            if time.monotonic() + pause > until:
                text = "this tenant's replica is being started again; send the request again, with the same id"
                raise Refusal(503, text, retry_after=1.0) from error
        else:
            if not isinstance(found, Refusal):
                return found
            if found.status != 503 or time.monotonic() + pause > until:
                raise found
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)


class WebInterface:
    """The web interface as Serve runs it; :class:`Entrance` hands requests to ``web``."""

    def __init__(self, settings: Settings, handles: Sequence[Any]) -> None:
        from wildtta.serve.web import build_app

        set_up(settings.log, settings.log_level)
        self.web = build_app(settings, Replicas(handles))
        log("web interface started", replicas=len(handles))


class Entrance:
    """The ASGI application that Serve is given: it can be copied to another process, which one with handles cannot."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from ray import serve

        if scope["type"] == "lifespan":
            for _ in range(2):  # startup, shutdown
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
            return
        await serve.get_replica_context().servable_object.web(scope, receive, send)


def connect(address: str | None, replicas: int) -> None:
    """A Ray of this machine's own, or the cluster at ``address``."""
    # Read when ray is imported: no report of usage leaves the machine.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
        from ray import serve  # noqa: F401 - whether its own requirements are there
    except ImportError as error:
        raise ImportError(f"the service needs Ray Serve ({error}): pip install 'wildtta[serve]'") from error
    # Ray tells a lot; what a person has to know is told by the service.
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if address is not None:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
        return
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, replicas + 1),
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE,
        log_to_driver=False,
        configure_logging=False,
    )


def start(settings: Settings, *, host: str, port: int, cpus: float, gpus: float, interfaces: int = 1) -> None:
    """Deploy the service on the Ray that this process is connected to; returns when it answers."""
    from ray import serve

    serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "WARNING"})
    replicas = [
        serve.deployment(FleetReplica)
        .options(
            name=f"replica-{index}",
            num_replicas=1,
            max_ongoing_requests=_EVERYTHING,
            health_check_period_s=_HEALTH_PERIOD,
            graceful_shutdown_timeout_s=60,
            ray_actor_options={"num_cpus": cpus, "num_gpus": gpus, "runtime_env": {"env_vars": _FEW_HEAPS}},
        )
        .bind(settings, index)
        for index in range(settings.replicas)
    ]
    web = serve.deployment(serve.ingress(Entrance())(WebInterface)).options(
        name="web",
        num_replicas=interfaces,
        max_ongoing_requests=_EVERYTHING,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": _GIVE_BACK}},
    )
    serve.run(web.bind(settings, replicas), name=APPLICATION, route_prefix="/")


def stop(settings: Settings, *, shared: bool) -> None:
    """A graceful stop: every replica answers what waits and saves its states, then the service ends.

    On a ``shared`` cluster it is taken off Serve, which goes on; a Ray of this machine's own ends anyhow.
    """
    from ray import serve

    for index in range(settings.replicas):
        with contextlib.suppress(Exception):
            serve.get_deployment_handle(f"replica-{index}", APPLICATION).close.remote().result(timeout_s=60)
    if shared:
        with contextlib.suppress(Exception):
            serve.delete(APPLICATION)


def disconnect() -> None:
    """Leave Ray. One that :func:`connect` started ends with that, and everything that runs on it."""
    import ray

    ray.shutdown()
