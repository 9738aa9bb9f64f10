"""The demonstration: three tenants stream corrupted glyphs, one of them is attacked, and its guard acts.

It runs SAR at eight times its learning rate, so that something can be seen within a minute. ``steady``, the default of the
service, moves more slowly and rests under this attack, which is better and shows nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs
from wildtta.guard.guard import Guard
from wildtta.serve.client import Client, ServiceError

DEMO: dict[str, Any] = {
    "model": "glyphs:resnet_gn",
    "method": "sar",
    "options": {"lr_scale": 8.0},
    # The source network answers everything too: a look comes after 32 images, not after 320.
    "guard": Guard(shadow=1.0),
}
_CLASSES = 200
_POOL = 1600
"""Images of a tenant, again and again."""
_FLOOD, _FLOODED_CLASS = 480, 7
_BATCH = 16
_CALM = 20
"""Requests before the attack begins."""
_PACE = 0.2
"""Seconds between two requests of a tenant, at least."""


@dataclass(frozen=True)
class Camera:
    """A tenant and what its images suffer from."""

    tenant: str
    corruption: str
    severity: int
    attacked: bool = False


CAMERAS = (
    Camera("harbour", "contrast", 4),
    Camera("station", "gaussian_noise", 4),
    Camera("market", "gaussian_noise", 4, attacked=True),
)


def images_of(camera: Camera) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """A camera's images in random order, and their classes."""
    glyphs = Glyphs(_POOL, seed=sum(map(ord, camera.tenant)))
    order = torch.randperm(_POOL, generator=torch.Generator().manual_seed(0))
    images = corrupt(glyphs.images(order), camera.corruption, camera.severity, index=order)
    return images.numpy(), glyphs.labels[order.numpy()]


def flood_of(camera: Camera) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """What an attacker sends: always the same class."""
    glyphs = Glyphs(_FLOOD * _CLASSES, seed=1)
    own = torch.arange(_FLOOD) * _CLASSES + _FLOODED_CLASS
    return corrupt(glyphs.images(own), camera.corruption, camera.severity, index=own).numpy(), glyphs.labels[
        own.numpy()
    ]


class Stream:
    """What a camera sends, rendered once."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self._ordinary = images_of(camera)
        self._flood = flood_of(camera) if camera.attacked else None

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], bool]]:
        """Images, classes, and whether they are an attack: a flood of one class, twice as many at a time."""
        for number in itertools.count():
            hostile = self._flood is not None and number >= _CALM
            images, classes = self._flood if self._flood is not None and hostile else self._ordinary
            size = 2 * _BATCH if hostile else _BATCH
            chosen = np.arange(number * size, (number + 1) * size) % len(images)
            yield images[chosen], classes[chosen], hostile


class Demonstration:
    """Streams the cameras' images to a service and tells what happens."""

    def __init__(self, *, say: Callable[[str], object]) -> None:
        self._say = say
        self._address = ""
        self._streams = [Stream(camera) for camera in CAMERAS]
        self._right: dict[str, list[float]] = {camera.tenant: [] for camera in CAMERAS}
        self._told: set[tuple[str, float]] = set()

    def run(self, address: str, ended: threading.Event, seconds: float | None = None, *, page: bool = True) -> None:
        """Send to the service at ``address`` until told to end, or for so many seconds."""
        self._address = address
        until = float("inf") if seconds is None else time.monotonic() + seconds
        if page and not webbrowser.open(self._address):
            self._say(f"Open {self._address} in a browser.")
        threads = [threading.Thread(target=self._send, args=(stream, ended), daemon=True) for stream in self._streams]
        self._say("harbour and station adapt to low contrast and noise; market does until it is attacked.")
        for thread in threads:
            thread.start()
        while not ended.wait(1.0) and time.monotonic() < until:
            self._tell_events()
        ended.set()
        for thread in threads:
            thread.join(5.0)
        for tenant, right in self._right.items():
            if right:
                early, late = np.mean(right[:_CALM]), np.mean(right[-_CALM:])
                self._say(f"{tenant}: {100 * early:.0f} % right at first, {100 * late:.0f} % at the end")

    def _send(self, stream: Stream, ended: threading.Event) -> None:
        camera = stream.camera
        client = Client(self._address, camera.tenant, patience=10)
        attacked = False
        for images, labels, hostile in stream:
            if ended.is_set():
                return
            if hostile and not attacked:
                attacked = True
                self._say(f"{camera.tenant} is attacked: one class from now on, many at a time")
            began = time.monotonic()
            try:
                answer = client.predict(images)
            except (ServiceError, ConnectionError) as error:
                if not ended.is_set():
                    self._say(f"{camera.tenant}: {error}")
                continue
            if not hostile:
                self._right[camera.tenant].append(float(np.mean(np.array(answer["classes"]) == labels)))
            ended.wait(max(0.0, _PACE - (time.monotonic() - began)))

    def _tell_events(self) -> None:
        for camera in CAMERAS:
            try:
                status = Client(self._address, camera.tenant, patience=2).status()
            except (ServiceError, ConnectionError):
                continue
            for event in status["events"]:
                if (key := (camera.tenant, event["time"])) not in self._told:
                    self._told.add(key)
                    self._say(f"{camera.tenant}: {event['kind']}: {event['text']}")
