"""An attacker beside an ordinary tenant: hostile images, malformed requests; and what they make the service hold."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from serve_callers import Array, pool
from serve_fuzz import fuzz
from wildtta.serve import Client, ServiceError

Facts = dict[str, Any]


class Attack:
    """Hostile inputs for a tenant of the attacker's own, and malformed requests, until it is ended."""

    def __init__(self, address: str, malformed: int) -> None:
        self._address, self._malformed = address, malformed
        self._statuses: Counter[int | None] = Counter()
        self._hostile: Counter[int] = Counter()
        self._over = threading.Event()
        self._memory: list[dict[str, float]] = []
        self._threads = [
            threading.Thread(target=self._fuzz, daemon=True),
            threading.Thread(target=self._poison, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _fuzz(self) -> None:
        part = max(1, self._malformed // 10)
        for first in range(0, self._malformed, part):
            fuzz(self._address, first, min(first + part, self._malformed), self._statuses)
            self._memory.append(_service_memory(self._address))
            print(f"  {first + part} malformed requests, MiB {self._memory[-1]}: {dict(self._statuses)}", flush=True)

    def _poison(self) -> None:
        client = Client(self._address, "attacker", patience=5)
        draw = np.random.default_rng(0)
        while not self._over.is_set():
            self._hostile[_status(client, _worst(draw))] += 1

    def end(self) -> Facts:
        """Wait for the malformed requests, stop the rest, tell what came back."""
        self._threads[0].join()
        self._over.set()
        self._threads[1].join()
        if not self._malformed:
            return {}
        return {
            "malformed requests": sum(self._statuses.values()),
            "statuses": {str(status): number for status, number in sorted(self._statuses.items(), key=str)},
            "5xx": sum(number for status, number in self._statuses.items() if status is not None and status >= 500),
            "hostile inputs": dict(self._hostile),
            "MiB after each tenth": {name: [held[name] for held in self._memory] for name in self._memory[0]},
        }


def _status(client: Client, images: Array) -> int:
    try:
        client.logits(images)
    except ServiceError as error:
        return error.status
    return 200


def _worst(draw: np.random.Generator) -> Array:
    """One class, grey, noise of any strength in the network's own units, and numbers at the edge of float32."""
    kind = int(draw.integers(4))
    if kind == 0:
        return pool("gaussian_noise")[7::200][:8]
    if kind == 1:
        return np.full((8, 3, 32, 32), 128, np.uint8)
    scale = 10.0 ** float(draw.integers(-3, 4)) if kind == 2 else 1e37
    return (draw.standard_normal((8, 3, 32, 32)) * scale).astype(np.float32)


def _service_memory(address: str) -> dict[str, float]:
    """MiB of private memory (what no other process shares) of each process of this service, by its name."""
    with urllib.request.urlopen(f"{address}/v1/tenants", timeout=10) as response:
        (replica,) = json.load(response)["replicas"]
    raylet = _parent(Path(f"/proc/{replica['process']}"))
    found: dict[str, float] = {"answers kept by the replica": round(replica["kept_answers"] / 2**20, 1)}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not folder.name.isdigit() or _parent(folder) != raylet:
                continue
            name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            if "wildtta" in name or "Proxy" in name:
                rollup = (folder / "smaps_rollup").read_text()
                private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private"))
                found[name.removeprefix("ray::").removeprefix("ServeReplica:wildtta:").partition(".")[0]] = round(
                    private / 1024, 1
                )
    return found


def _parent(folder: Path) -> str:
    status = (folder / "status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
