"""A syphon for Prometheus: how its rounds go, and what it spends, on a port of its own.

`docs/metrics.md` says what each metric means. Labels have destinations as their values, and never
the text of an error. prometheus_client is an extra, and so is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import OptionsError
from pairbus.syphon.policy import Condition
from pairbus.syphon.receipts import RoundEnded
from pairbus.syphon.usage import Usage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


ROUND_SECONDS: Final = (0.25, 0.5, 1, 2, 3, 5, 10, 30)


class SyphonMetrics:
    """To be called with each round's end, as a job's `progress`."""

    def __init__(
        self, registry: CollectorRegistry | None = None, *, usage: Usage | None = None
    ) -> None:
        """A registry of its own, unless it is given one. `usage`: the job's."""
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise OptionsError(
                "metrics need the package prometheus-client, which is not installed: "
                "pip install pairbus[prometheus]"
            ) from error
        self.registry = registry or prometheus.CollectorRegistry()
        self._server: Any = None
        name, to = "pairbus_syphon", self.registry
        by_path = ("destination", "outcome")
        self._messages = prometheus.Counter(
            f"{name}_messages", "Messages, by what became of them.", by_path, registry=to
        )
        self._bytes = prometheus.Counter(f"{name}_bytes", "Their bytes.", by_path, registry=to)
        self._duplicates = prometheus.Counter(
            f"{name}_duplicates_possible",
            "Messages that may have arrived twice.",
            ("destination",),
            registry=to,
        )
        self._rounds = prometheus.Histogram(
            f"{name}_round_seconds", "What a round took.", buckets=ROUND_SECONDS, registry=to
        )
        self._pending = prometheus.Gauge(
            f"{name}_pending_queues", "Backlog queues that may hold more.", registry=to
        )
        self._failing = prometheus.Gauge(
            f"{name}_failing_queues",
            "Backlog queues that could not be received from or settled in.",
            registry=to,
        )
        self._up = prometheus.Gauge(
            f"{name}_destination_up",
            "Whether a destination took the last message that it was sent.",
            ("primary", "destination"),
            registry=to,
        )
        if usage is not None:
            to.register(_Operations(usage))

    def __call__(self, ended: RoundEnded) -> None:
        for receipt in ended.receipts:
            outcome = receipt.outcome.value
            if receipt.count:
                self._messages.labels(receipt.path, outcome).inc(receipt.count)
                self._bytes.labels(receipt.path, outcome).inc(receipt.bytes)
            if receipt.duplicates_possible:
                self._duplicates.labels(receipt.path).inc(receipt.duplicates_possible)
        self._rounds.observe(ended.seconds)
        self._pending.set(len(ended.pending))
        self._failing.set(len(ended.errors))
        for primary, destination in ended.destinations:
            is_up = destination.condition is Condition.UP
            self._up.labels(primary, destination.path).set(is_up)

    def serve(self, port: int, *, host: str = "127.0.0.1") -> int:
        """On `/metrics`, until `close`; answers the port, which the system picks for 0."""
        from prometheus_client import start_http_server

        try:
            self._server = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise OptionsError(
                f"metrics cannot be served on {host}:{port}: {error.strerror or error}"
            ) from None
        return int(self._server[0].server_port)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
            server[1].join()


class _Operations:
    """What prometheus_client asks when it is scraped."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(
            "pairbus_syphon_operations",
            "Operations as they are billed, in units of 64 KB.",
            labels=("namespace", "entity", "operation"),
        )
        for reading in self._usage.readings():
            for entity, tally in reading.entities.items():
                for operation, count in tally.as_dict().items():
                    if count:
                        family.add_metric((reading.namespace, entity, operation), count)
        yield family
