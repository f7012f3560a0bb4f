"""Metrics of a syphon for Prometheus, on a port of their own.

`docs/metrics.md` describes each metric. The values of labels are names of entities, never texts of
errors, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pairbus.errors import OutputError, requires_extra
from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.policy import Condition
from pairbus.syphon.receipts import RoundEnded
from pairbus.syphon.usage import SyphonUsage

with requires_extra("the syphon's metrics", "prometheus"):
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        start_http_server,
    )
    from prometheus_client.metrics_core import CounterMetricFamily, Metric

ROUND_SECONDS: Final = (0.25, 0.5, 1, 2, 3, 5, 10, 30)


class SyphonMetrics:
    """Pass it to a job as its `progress`. The job calls it at the end of each round."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        primaries: Iterable[str] = (),
        usage: SyphonUsage | None = None,
    ) -> None:
        """Without `registry`, it makes its own. `primaries` are the names of the primaries in the
        paths of their backlog queues. `usage` is the job's usage.
        """
        self.registry = registry or CollectorRegistry()
        self._server: Any = None
        name, to = "pairbus_syphon", self.registry
        by_path = ("destination", "outcome")
        self._messages = Counter(f"{name}_messages", "Messages by outcome.", by_path, registry=to)
        self._bytes = Counter(f"{name}_bytes", "Bytes of these messages.", by_path, registry=to)
        self._duplicates = Counter(
            f"{name}_duplicates_possible",
            "Messages that may have arrived twice.",
            ("destination",),
            registry=to,
        )
        self._rounds = Histogram(
            f"{name}_round_seconds", "Duration of a round.", buckets=ROUND_SECONDS, registry=to
        )
        self._pending = Gauge(
            f"{name}_pending_queues", "Backlog queues that may hold messages.", registry=to
        )
        self._failing = Gauge(
            f"{name}_failing_queues",
            "Backlog queues that could not be received from or settled in.",
            registry=to,
        )
        self._up = Gauge(
            f"{name}_destination_up",
            "Whether a destination accepted the last message sent to it.",
            ("primary", "destination"),
            registry=to,
        )
        running = Gauge(
            f"{name}_running",
            "1 for each primary whose messages this syphon brings home.",
            ("namespace",),
            registry=to,
        )
        for primary in primaries:
            running.labels(primary).set(1)
        by_queue = ("namespace", "backlog_queue")
        self._left = Gauge(
            f"{name}_backlog_messages",
            "Messages left in the backlog, if the secondary answers.",
            by_queue,
            registry=to,
        )
        self._dead_letters = Gauge(
            f"{name}_backlog_dead_letters",
            "Dead letters of the backlog, if the secondary answers.",
            by_queue,
            registry=to,
        )
        if usage is not None:
            self.add_usage(usage)

    def add_usage(self, usage: SyphonUsage) -> None:
        self.registry.register(_Operations(usage))

    def set_backlog(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Messages and dead letters of each backlog queue. Without a count, a queue has no value:
        an old one would be taken for the truth.
        """
        for index, gauge in enumerate((self._left, self._dead_letters)):
            gauge.clear()
            for queue, both in counts.items():
                gauge.labels(namespace_of(queue) or "", queue).set(both[index])

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
        """Serve `/metrics` until `close`. Returns the port; 0 lets the system choose one."""
        try:
            self._server = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise OutputError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}"
            ) from None
        return int(self._server[0].server_port)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
            server[1].join()


class _Operations:
    """A collector: prometheus_client calls it for each scrape."""

    def __init__(self, usage: SyphonUsage) -> None:
        self._usage = usage

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "pairbus_syphon_operations",
            "Billed operations, in units of 64 KB.",
            labels=("namespace", "entity", "operation"),
        )
        for reading in self._usage.readings():
            for entity, tally in reading.entities.items():
                for operation, count in tally.as_dict().items():
                    if count:
                        family.add_metric((reading.namespace, entity, operation), count)
        yield family
