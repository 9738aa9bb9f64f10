"""What the tests of the service share: settings of a small service, images for it, a server without Ray."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs
from wildtta.serve.backend import InProcess
from wildtta.serve.replica import Replica
from wildtta.serve.service import prepared
from wildtta.serve.settings import Settings

Array = np.ndarray[Any, Any]


def settings_for(folder: Path, **changes: Any) -> Settings:
    """Tent on the embedded ResNet: every step moves the weights."""
    told = {"model": "glyphs:resnet_gn", "method": "tent", "guarded": False, **changes}
    return prepared(folder=folder, **told)


def glyphs(number: int, *, first: int = 0) -> Array:
    """Noisy glyphs, uint8."""
    places = range(first, first + number)
    return corrupt(Glyphs(first + number).images(places), "gaussian_noise", 3, index=list(places)).numpy()


@contextmanager
def replica_of(settings: Settings) -> Iterator[Replica]:
    replica = Replica(settings)
    try:
        yield replica
    finally:
        replica.close()


def ask(replica: Any, tenant: str, request_id: str, images: Array, **more: Any) -> Array:
    """The logits of one request."""
    found: Array = replica.submit(tenant, request_id, images, **more).result(60)
    return found


def told(replica: Any, tenant: str) -> dict[str, Any]:
    """What the replica says of a tenant; after everything that was sent before has been learned from."""
    found: dict[str, Any] = replica.status([tenant], 0.0).result(60)["tenants"][tenant]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(settings: Settings) -> Iterator[tuple[str, Replica]]:
    """The web interface over a replica in this process, at a port of this machine; no Ray."""
    import uvicorn

    from wildtta.serve.web import build_app

    with replica_of(settings) as replica:
        port = free_port()
        app = build_app(settings, InProcess([replica]))
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        assert server.started
        try:
            yield f"http://127.0.0.1:{port}", replica
        finally:
            server.should_exit = True
            thread.join(10)
