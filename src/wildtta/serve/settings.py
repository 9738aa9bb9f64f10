"""What a service is told when it starts; the same for every process of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wildtta.data.preprocessing import InputProtocol
from wildtta.guard.guard import Guard

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is refused. Every bound is on what one request, or one stranger, can make the service hold."""

    body: int = 16 * MIB
    """Bytes of a request."""
    pixels: int = 16_000_000
    """Of an image, as its header promises them: a small file may promise any number."""
    images: int = 64
    """Of one request."""
    tenants: int = 10_000
    """That one replica takes up; a stranger may invent any number of names."""
    waiting: int = 1024
    """Images of one tenant that wait; more are told to come again."""
    flight: int = 256 * MIB
    """Bytes of all requests that one web interface has not answered yet."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A service: the network, the method, how requests are grouped, when states are saved, what is refused."""

    model: str = "glyphs:resnet_gn"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    method: str = "steady"
    options: Mapping[str, Any] = field(default_factory=dict)
    guard: Guard | None = None
    learn: bool = True
    """False: the bare network behind the same service."""
    protocol: InputProtocol
    size: int
    """Height and width of the network's input."""
    names: tuple[str, ...] = ()
    """Of the classes, where they are known."""
    folder: str
    """Of the states; it outlives the service. On several machines: a folder that all of them see."""

    replicas: int = 1
    device: str = "auto"
    threads: int = 1
    """CPU threads of a replica's network."""
    active: int = 64
    resident: int = 1024

    batch: int = 64
    """Images of one group at most."""
    wait: float = 0.005
    """Seconds that a request waits for others to join its group, at most."""
    alone: bool = False
    """Groups hold one tenant's requests only: slower, and a tenant's answers do not depend on others to the last bit."""
    busy: int = 256
    """Waiting images above which groups are answered and not learned from."""

    save_steps: int = 64
    """A state in the folder is at most so many steps older than the one in memory …"""
    save_seconds: float = 30.0
    """… and so many seconds."""
    remembered: int = 1024
    """Request ids that are remembered of each tenant."""
    kept_answers: int = 64 * MIB
    """Bytes of answers that a replica keeps, so that a retry gets the same one."""

    limits: Limits = field(default_factory=Limits)
    tokens: Mapping[str, str] | None = None
    hosts: tuple[str, ...] | None = None
    """Names that a browser may call the service by; None: any. (Against pages that rebind their own name to localhost.)"""
    record: str | None = None
    """A folder: every replica writes which requests it answered together, so that a run can be repeated."""
    log: str | None = None
    log_level: str = "INFO"
