"""Prometheus: what the web interface counts itself, and what the replicas tell when they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wildtta.guard.ladder import Rung

_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_RUNGS = {rung.name.lower(): int(rung) for rung in Rung}
_TENANT_COUNTERS = {
    "requests": "Requests that were answered",
    "images": "Images that were answered",
    "learned": "Steps of learning",
    "dropped": "Requests that were answered and not learned from (overload, or states that cannot be saved)",
    "alarms": "Alarms: of the guard, of the disk, of a sudden restart",
}
_REPLICA_COUNTERS = {
    "groups": "Groups of requests that were answered together",
    "busy_seconds": "Seconds spent on answering and learning",
    "saves": "Times that states were saved",
    "save_failures": "Times that states could not be saved",
}


class Metrics:
    """The metrics of one web interface; the replicas' are added when they are read."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("wildtta_http_requests", "HTTP requests", ["route", "status"], registry=self._registry)
        self._seconds = Histogram(
            "wildtta_http_request_seconds", "Time of a request", ["route"], buckets=_BUCKETS, registry=self._registry
        )

    def count(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self, replicas: Sequence[dict[str, Any]]) -> bytes:
        """In Prometheus' text format; ``replicas``: what :meth:`Backend.status` gave."""
        registry = CollectorRegistry()
        registry.register(_Told(replicas))
        return generate_latest(self._registry) + generate_latest(registry)


class _Told:
    """A collector of what the replicas told."""

    def __init__(self, replicas: Sequence[dict[str, Any]]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterable[Metric]:
        yield from self._of_replicas()
        yield from self._of_tenants()

    def _of_replicas(self) -> Iterable[Metric]:
        facts = [told["replica"] for told in self._replicas]
        for name, help in _REPLICA_COUNTERS.items():
            counter = CounterMetricFamily(f"wildtta_replica_{name}", help, labels=["replica"])
            for replica in facts:
                counter.add_metric([str(replica["index"])], replica[name])
            yield counter
        waiting = GaugeMetricFamily("wildtta_replica_waiting", "Images that wait", labels=["replica"])
        kept = GaugeMetricFamily(
            "wildtta_replica_kept_answers", "Bytes of answers kept for retries", labels=["replica"]
        )
        alarm = GaugeMetricFamily(
            "wildtta_replica_alarm", "1: states cannot be saved and nothing is learned", labels=["replica"]
        )
        for replica in facts:
            waiting.add_metric([str(replica["index"])], replica["waiting"])
            kept.add_metric([str(replica["index"])], replica["kept_answers"])
            alarm.add_metric([str(replica["index"])], float(replica["alarm"] is not None))
        yield from (waiting, kept, alarm)

    def _of_tenants(self) -> Iterable[Metric]:
        tenants = [tenant for told in self._replicas for tenant in told["tenants"].values()]
        for name, help in _TENANT_COUNTERS.items():
            counter = CounterMetricFamily(f"wildtta_tenant_{name}", help, labels=["tenant"])
            for tenant in tenants:
                counter.add_metric([tenant["name"]], tenant[name])
            yield counter
        gauges = {
            "top_share": "Share of the most frequent answer among the last 1,000",
            "distance": "Distance of the weights from the source, relative to their length",
            "paused": "1: an administrator paused it",
            "rung": "Of its guard: 0 learn, 1 slow, 2 pause, 4 trial, 5 source",
            "unsaved_steps": "Steps since its state was saved",
        }
        for name, help in gauges.items():
            gauge = GaugeMetricFamily(f"wildtta_tenant_{name}", help, labels=["tenant"])
            for tenant in tenants:
                value = _RUNGS[tenant[name]] if name == "rung" else tenant[name]
                if value is not None:
                    gauge.add_metric([tenant["name"]], float(value))
            yield gauge
