"""Counters and gauges for Prometheus (``pip install 'wildtta[monitor]'``)."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from wildtta.guard.judge import Decision, Judge, Look

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge

_GAUGES = {
    "evidence": "Evidence e that the adapted network is worse than the source",
    "rung": "0 learn, 1 slow, 2 pause, 4 trial, 5 source",
    "disagreement": "Share of images that source and adapted network answer differently",
    "top_share": "Share of the most frequent answer among the latest images",
    "distance": "Distance of the weights from the source, relative to their length",
}


class _Families:
    """The metrics of one registry. It takes a name once; its models share the metric and differ by label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge

        self.gauges: dict[str, Gauge] = {
            name: Gauge(f"wildtta_guard_{name}", help, ["model"], registry=None) for name, help in _GAUGES.items()
        }
        self.looks: Counter = Counter("wildtta_guard_looks", "Comparisons with the source", ["model"], registry=None)
        self.decisions: Counter = Counter(
            "wildtta_guard_decisions", "Actions of the guard", ["model", "action"], registry=None
        )
        known: list[Any] = []
        for metric in (*self.gauges.values(), self.looks, self.decisions):
            try:
                registry.register(metric)
            except ValueError as error:
                for each in known:
                    registry.unregister(each)
                raise ValueError(
                    f"registry= has a metric of the guard's name already ({error}); give the guard a registry of its own, "
                    "such as prometheus_client.CollectorRegistry()"
                ) from error
            known.append(metric)


_known: weakref.WeakKeyDictionary[Any, _Families] = weakref.WeakKeyDictionary()
_turn = threading.Lock()


class Metrics:
    """What a guard knows, as metrics of one registry, told apart by the label ``model``."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise ImportError("metrics need prometheus_client: pip install 'wildtta[monitor]'") from error
        with _turn:
            if registry not in _known:
                _known[registry] = _Families(registry)
            self._families = _known[registry]
        self._model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> Metrics:
        """A copied adapter goes on under the same label."""
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A registry belongs to its process: an adapter that was pickled comes back without."""
        return type(None), ()

    def show(self, look: Look, judge: Judge) -> None:
        self._families.looks.labels(self._model).inc()
        for name, value in (
            ("evidence", judge.evidence),
            ("rung", int(judge.ladder.rung)),
            ("disagreement", look.disagreement),
            ("top_share", look.top_share),
            ("distance", look.distance),
        ):
            self._families.gauges[name].labels(self._model).set(value)

    def count(self, decision: Decision) -> None:
        self._families.decisions.labels(self._model, decision.action.name.lower()).inc()
