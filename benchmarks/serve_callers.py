"""Callers of a service whose requests can be made again from their ids: what ``serve.py`` compares answers by."""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng

from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs
from wildtta.serve import Client

POOL = 2000
LARGEST = 4
"""Images of one request, at most."""
CORRUPTIONS = ("gaussian_noise", "contrast", "defocus_blur", "jpeg_compression")
Array = npt.NDArray[Any]


@functools.cache
def pool(corruption: str) -> Array:
    """Corrupted glyphs, uint8."""
    return corrupt(Glyphs(POOL).images(range(POOL)), corruption, 4).numpy()


def images_of(request_id: str) -> Array:
    """The images of a request, from its id ``tenant/number`` alone."""
    tenant = request_id.rpartition("/")[0]
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    draw = default_rng(int.from_bytes(digest, "big"))
    corruption = CORRUPTIONS[sum(map(ord, tenant)) % len(CORRUPTIONS)]
    return pool(corruption)[draw.integers(0, POOL, draw.integers(1, LARGEST + 1))]


@dataclass
class Answered:
    """What the callers got."""

    logits: dict[str, Array] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    tries: int = 0
    wall: float = 0.0

    def table(self) -> dict[str, float]:
        """Figures of one run: times in ms."""
        times = np.array(self.seconds) * 1000
        images = sum(map(len, self.logits.values()))
        return {
            "requests": len(self.logits),
            "lost": len(self.failed),
            "sent again": self.tries - len(self.logits) - len(self.failed),
            "p50 ms": round(float(np.percentile(times, 50)), 1),
            "p99 ms": round(float(np.percentile(times, 99)), 1),
            "requests/s": round(len(self.logits) / self.wall, 1),
            "images/s": round(images / self.wall, 1),
        }


def call(
    address: str,
    tenants: list[str],
    *,
    seconds: float,
    most: int,
    pause: float = 0.0,
    patience: float = 60.0,
    progress: Callable[[float, int], None] = lambda seconds, answered: None,
    until: threading.Thread | None = None,
) -> Answered:
    """One thread per tenant, each sending its next request when it has its answer.

    It ends after so many seconds or requests, or with the thread ``until``.
    """
    found, lock = Answered(), threading.Lock()
    began = time.monotonic()

    def stream(tenant: str) -> None:
        client = Client(address, tenant, patience=patience)
        number = 0
        while time.monotonic() - began < seconds and len(found.logits) < most and (until is None or until.is_alive()):
            request_id = f"{tenant}/{number}"
            images = images_of(request_id)
            start = time.monotonic()
            try:
                logits = client.logits(images, request_id=request_id)
            except (RuntimeError, OSError) as error:
                with lock:
                    found.failed.append(f"{request_id}: {error}")
            else:
                with lock:
                    found.seconds.append(time.monotonic() - start)
                    found.logits[request_id] = logits
            number += 1
            time.sleep(pause)
        with lock:
            found.tries += client.tries

    threads = [threading.Thread(target=stream, args=(tenant,), daemon=True) for tenant in tenants]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(5.0 if seconds > 20 else 0.5)
        progress(time.monotonic() - began, len(found.logits))
    found.wall = time.monotonic() - began
    return found
