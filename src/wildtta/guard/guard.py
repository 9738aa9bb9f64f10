"""``wildtta.Guard``: what to watch over an adapter with."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from wildtta.guard.prometheus import Metrics


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Watches an adapter and stops it from getting worse than the source network: ``wildtta.adapt(model, guard=Guard())``.

    A shadow of the source network answers a random tenth of the images. From both networks' answers the guard bets against
    "the adapted network is no worse than the source on this stream"; docs/guard.md says what is tested and what is promised.
    With enough evidence it slows learning down, pauses it, goes back to the last healthy weights, or to the source.
    """

    shadow: float = 0.1
    """Share of the images that the source network answers too; ten times as many at the start, and while something is
    suspected."""
    sample: int = 32
    """Images in one look: as many new ones, and as many from memory."""
    memory: int = 256
    """Images that are kept (on the network's device) to see whether they are still answered well."""
    false_alarms: float = 0.01
    """Bound on the chance of ever slowing down between two restarts although the null holds; a pause needs 3 times the
    evidence, a return to earlier weights 10 times."""
    sender_share: float = 0.25
    """Of the latest 1,024 images that the images of one sender (``with model.senders(ids):``) may be learned from."""
    act: bool = True
    """False: watch and write, but leave the adapter alone."""
    audit: str | os.PathLike[str] | None = None
    """File for one JSON line per look and decision; ``wildtta report`` draws it."""
    registry: CollectorRegistry | None = None
    """A registry of prometheus_client for counters and gauges. It stays in its process: a pickled guard has none."""
    name: str = "model"
    """The label ``model`` of these metrics: one for each adapter."""
    seed: int = 0
    """Of the guard's own draws."""

    def __post_init__(self) -> None:
        for name, what in (("shadow", "share of the images"), ("sender_share", "share")):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= 1:
                raise ValueError(f"{name} must be a {what} in (0, 1], got {value!r}")
        if not _is_number(self.false_alarms) or not 0 < self.false_alarms < 1:
            raise ValueError(f"false_alarms must be a probability in (0, 1), got {self.false_alarms!r}")
        for name in ("sample", "memory", "seed"):
            if type(getattr(self, name)) is not int:
                raise TypeError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if self.sample < 8 or self.memory < self.sample:
            raise ValueError(
                f"expected a sample of at least 8 images and a memory of at least one sample, "
                f"got sample={self.sample!r}, memory={self.memory!r}"
            )
        if not isinstance(self.act, bool):
            raise TypeError(f"act must be True or False, got {self.act!r}")
        if self.audit is not None and not isinstance(self.audit, str | os.PathLike):
            raise TypeError(f"audit must be a path or None, got {self.audit!r}")
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a text, got {self.name!r}")
        if self.registry is not None and (isinstance(self.registry, type) or not hasattr(self.registry, "register")):
            raise TypeError(f"registry must be a CollectorRegistry of prometheus_client or None, got {self.registry!r}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Guard:
        """It never changes, and a registry cannot be copied."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "registry": None}

    def facts(self) -> dict[str, Any]:
        """The options as plain values."""
        hidden = ("registry", "audit")
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name not in hidden}

    def metrics(self) -> Metrics | None:
        if self.registry is None:
            return None
        from wildtta.guard.prometheus import Metrics

        return Metrics(self.registry, self.name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
