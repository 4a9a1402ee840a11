"""What the service counts of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtimed.api.ports import SandboxVerbs

_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class _SandboxCollector(Collector):
    """Reads the sandboxes when it is asked, so that no count can drift."""

    def __init__(self, sandboxes: SandboxVerbs) -> None:
        self._sandboxes = sandboxes

    def collect(self) -> Iterable[Metric]:
        states = GaugeMetricFamily("runtime_sandboxes", "Sandboxes that are not stopped.", labels=["state"])
        for state, count in self._sandboxes.counts().items():
            states.add_metric([state], count)
        yield states
        started = CounterMetricFamily("runtime_machines_started", "Machines started, by how.", labels=["how"])
        for how, count in self._sandboxes.started_by_how().items():
            started.add_metric([how], count)
        yield started


class Metrics:
    """One registry for one service."""

    def __init__(self, sandboxes: SandboxVerbs) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_SandboxCollector(sandboxes))
        self._requests = Counter(
            "runtime_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "runtime_http_request_seconds",
            "Until the last byte of an answer.",
            ["method", "route"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._errors = Counter(
            "runtime_errors", "Errors of the service and its machines, by code.", ["code"], registry=self._registry
        )

    def answered(self, *, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def failed(self, code: str) -> None:
        """Count an error that is not the caller's: `guest_unresponsive`, `host_lost`, `outcome_unknown` and so on."""
        self._errors.labels(code).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
