"""Counters and gauges for Prometheus (``pip install 'wildtta[monitor]'``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wildtta.guard.judge import Decision, Judge, Look

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics:
    """What a guard knows, as metrics of one registry, told apart by the label ``model``."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        try:
            from prometheus_client import Counter, Gauge
        except ImportError as error:
            raise ImportError("metrics need prometheus_client: pip install 'wildtta[monitor]'") from error

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"wildtta_guard_{name}", help, ["model"], registry=registry)

        self._model = model
        self._evidence = gauge("evidence", "Evidence e that the adapted network is worse than the source")
        self._rung = gauge("rung", "0 learn, 1 slow, 2 pause")
        self._disagreement = gauge("disagreement", "Share of images that source and adapted network answer differently")
        self._top_share = gauge("top_share", "Share of the most frequent answer among the latest images")
        self._distance = gauge("distance", "Distance of the weights from the source, relative to their length")
        self._looks = Counter("wildtta_guard_looks", "Comparisons with the source", ["model"], registry=registry)
        self._decisions = Counter(
            "wildtta_guard_decisions", "Actions of the guard", ["model", "action"], registry=registry
        )

    def show(self, look: Look, judge: Judge) -> None:
        self._looks.labels(self._model).inc()
        self._evidence.labels(self._model).set(judge.evidence)
        self._rung.labels(self._model).set(int(judge.ladder.rung))
        self._disagreement.labels(self._model).set(look.disagreement)
        self._top_share.labels(self._model).set(look.top_share)
        self._distance.labels(self._model).set(look.distance)

    def count(self, decision: Decision) -> None:
        self._decisions.labels(self._model, decision.action.name.lower()).inc()
