"""Counters and gauges for Prometheus (``pip install 'wildtta[monitor]'``)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from wildtta.guard.judge import Decision, Judge, Look

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics:
    """What a guard knows, as metrics of one registry, told apart by the label ``model``."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        if registry not in _collectors:  # several guards may share a registry, which takes a name once
            _collectors[registry] = _Collectors(registry)
        self._to = _collectors[registry]

    def show(self, look: Look, judge: Judge) -> None:
        to, model = self._to, self._model
        to.looks.labels(model).inc()
        to.evidence.labels(model).set(judge.evidence)
        to.rung.labels(model).set(int(judge.ladder.rung))
        to.disagreement.labels(model).set(look.disagreement)
        to.top_share.labels(model).set(look.top_share)
        to.distance.labels(model).set(look.distance)

    def count(self, decision: Decision) -> None:
        self._to.decisions.labels(self._model, decision.action.name.lower()).inc()


class _Collectors:
    """The metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            from prometheus_client import Counter, Gauge
        except ImportError as error:
            raise ImportError("metrics need prometheus_client: pip install 'wildtta[monitor]'") from error

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"wildtta_guard_{name}", help, ["model"], registry=registry)

        self.evidence = gauge("evidence", "Evidence e that the adapted network is worse than the source")
        self.rung = gauge("rung", "0 learn, 1 slow, 2 pause")
        self.disagreement = gauge("disagreement", "Share of images that source and adapted network answer differently")
        self.top_share = gauge("top_share", "Share of the most frequent answer among the latest images")
        self.distance = gauge("distance", "Distance of the weights from the source, relative to their length")
        self.looks = Counter("wildtta_guard_looks", "Comparisons with the source", ["model"], registry=registry)
        self.decisions = Counter(
            "wildtta_guard_decisions", "Actions of the guard", ["model", "action"], registry=registry
        )


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _Collectors] = weakref.WeakKeyDictionary()
