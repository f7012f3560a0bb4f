"""Events as Prometheus metrics, for an application that gives the observer to a pairing.

`docs/metrics.md` explains each metric. A metric has a label for the entity or for the backlog
queue, never both, and never the text or type of an error, so an outage adds few series.
prometheus_client is an extra, so it is imported only when an observer is created.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from pairbus import events
from pairbus.errors import requires_extra
from pairbus.events import Event
from pairbus.telemetry.gauges import Gauge, GaugeTracker
from pairbus.telemetry.sends import ReadSends, SendTotals

if TYPE_CHECKING:
    import prometheus_client
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily

ENTITY: Final = ("namespace", "entity")
QUEUE: Final = ("namespace", "backlog_queue")
PAIR: Final = ("namespace",)

COUNTERS: Final = {
    "diverted_messages": ("Messages that went to a backlog queue, by entity.", ENTITY),
    "primary_failures": ("Failures on the primary before a failover.", ENTITY),
    "recoveries": ("Successful sends that avoided a failover.", ENTITY),
    "failovers": ("Entities that failed over.", ENTITY),
    "failbacks": ("Entities that failed back.", (*ENTITY, "reason")),
    "failed_over_seconds": ("Time spent failed over, added at failback.", ENTITY),
    "failback_delays": ("Warnings that the backlog does not come home.", ENTITY),
    "flaps": ("Failovers soon after a failback.", ENTITY),
    "pings": ("Pings to entities that were failed over.", ENTITY),
    "pings_answered": ("Pings that were answered.", ENTITY),
    "throttles": ("Sends the primary rejected because it was busy.", ENTITY),
    "send_failures": ("Sends that neither namespace accepted.", ENTITY),
    "backlog_messages": ("Messages that went to a backlog queue, by queue.", QUEUE),
    "backlog_withdrawals": ("Backlog queues that left the rotation.", QUEUE),
    "backlog_readmissions": ("Backlog queues that came back into it.", QUEUE),
    "backlog_throttles": ("Sends a backlog queue rejected because it was busy.", QUEUE),
    "outbox_stored_messages": ("Messages that were stored in the outbox.", ENTITY),
    "outbox_sent_messages": ("Messages that left the outbox.", ENTITY),
    "outbox_held_messages": ("Messages in the outbox that are not sent any more.", ENTITY),
    "outbox_stalls": ("Failed attempts to send what waits in the outbox.", ENTITY),
    "syphon_failures": ("Failures of the syphon in a client.", PAIR),
    "syphon_restarts": ("Restarts of the syphon in a client.", PAIR),
}
GAUGES: Final = {
    Gauge.PAIRINGS: ("pairings", "Clients that are paired.", PAIR),
    Gauge.ENTITIES_FAILED_OVER: (
        "failed_over",
        "Clients for which the entity is failed over.",
        ENTITY,
    ),
    Gauge.ENTITIES_FLAPPING: (
        "flapping",
        "Clients for which the entity needs more answered pings because it flaps.",
        ENTITY,
    ),
    Gauge.QUEUES_WITHDRAWN: (
        "backlog_withdrawn",
        "Clients for which the queue is out of the rotation.",
        QUEUE,
    ),
    Gauge.SYPHONS_DOWN: ("syphons_down", "Clients whose syphon failed.", PAIR),
    Gauge.OUTBOX_MESSAGES: ("outbox_messages", "Messages that wait in outboxes.", PAIR),
}
SEND_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusObserver:
    """Counts the events of every pairing it is given to, in the options or by `pairing.observe`.

    It reports to prometheus_client's default registry, or to the one that you pass. Several
    observers may report to one registry, and several clients may share an observer. If each client
    has its own, the gauges stay exact while clients of the same primary close at different times.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        with requires_extra("PrometheusObserver", "prometheus"):
            import prometheus_client
        self._metrics = _metrics_in(prometheus_client.REGISTRY if registry is None else registry)
        self._gauge_tracker = GaugeTracker()

    def watch_sends(self, namespace: str, read: ReadSends) -> Callable[[], None]:
        return self._metrics.sends.watch_sends(namespace, read)

    def __call__(self, event: Event) -> None:
        metrics, namespace = self._metrics, event.namespace
        match event:
            case events.Paired():
                for queue in event.backlog_queues:
                    metrics.begin(namespace, queue)
            case events.Diverted():
                metrics.count("diverted_messages", namespace, event.path, by=event.count)
                metrics.count("backlog_messages", namespace, event.backlog_queue, by=event.count)
                metrics.divert_seconds.labels(namespace, event.backlog_queue).observe(event.seconds)
            case events.PrimaryFailed():
                metrics.count("primary_failures", namespace, event.path)
            case events.Recovered():
                metrics.count("recoveries", namespace, event.path)
            case events.FailedOver():
                metrics.count("failovers", namespace, event.path)
            case events.FailedBack():
                metrics.count("failbacks", namespace, event.path, event.reason)
                metrics.count("failed_over_seconds", namespace, event.path, by=event.after_seconds)
            case events.FailBackDelayed():
                metrics.count("failback_delays", namespace, event.path)
            case events.Flapping():
                metrics.count("flaps", namespace, event.path)
            case events.BacklogWithdrawn():
                metrics.count("backlog_withdrawals", namespace, event.backlog_queue)
            case events.BacklogReadmitted():
                metrics.count("backlog_readmissions", namespace, event.backlog_queue)
            case events.Throttled(backlog_queue=None):
                metrics.count("throttles", namespace, event.path)
            case events.Throttled(backlog_queue=str(queue)):
                metrics.count("backlog_throttles", namespace, queue)
            case events.PingSent():
                metrics.count("pings", namespace, event.path)
                metrics.count("pings_answered", namespace, event.path, by=int(event.answered))
            case events.SendFailed():
                metrics.count("send_failures", namespace, event.path)
            case events.StoredInOutbox():
                metrics.count("outbox_stored_messages", namespace, event.path, by=event.count)
            case events.LeftOutbox():
                metrics.count("outbox_sent_messages", namespace, event.path, by=event.count)
            case events.HeldInOutbox():
                metrics.count("outbox_held_messages", namespace, event.path)
            case events.OutboxStalled():
                metrics.count("outbox_stalls", namespace, event.path)
            case events.SyphonFailed():
                metrics.count("syphon_failures", namespace)
            case events.SyphonRestarted():
                metrics.count("syphon_restarts", namespace)
        for change in self._gauge_tracker.changes(event):
            labels = (change.namespace, change.name) if change.name else (change.namespace,)
            metrics.gauges[change.gauge].labels(*labels).inc(change.delta)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        import prometheus_client

        self.counters: dict[str, prometheus_client.Counter] = {
            name: prometheus_client.Counter(f"pairbus_{name}", text, labels, registry=registry)
            for name, (text, labels) in COUNTERS.items()
        }
        # livesum: with several processes, the sum over those that still run.
        self.gauges: dict[Gauge, prometheus_client.Gauge] = {
            gauge: prometheus_client.Gauge(
                f"pairbus_{name}", text, labels, registry=registry, multiprocess_mode="livesum"
            )
            for gauge, (name, text, labels) in GAUGES.items()
        }
        self.divert_seconds = prometheus_client.Histogram(
            "pairbus_divert_seconds",
            "Duration of sends to a backlog queue.",
            QUEUE,
            registry=registry,
            buckets=SEND_SECONDS,
        )

        self.sends = SendTotals()
        registry.register(_SendCollector(self.sends))

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self.counters[name].labels(*labels).inc(by)

    def begin(self, namespace: str, queue: str) -> None:
        """Publish zeros for a pair and a queue from the start: `rate()` needs a zero to start
        from.
        """
        for name, (_, labels) in COUNTERS.items():
            if labels == QUEUE:
                self.counters[name].labels(namespace, queue)
            elif labels == PAIR:
                self.counters[name].labels(namespace)
        self.gauges[Gauge.SYPHONS_DOWN].labels(namespace)
        self.gauges[Gauge.OUTBOX_MESSAGES].labels(namespace)
        self.gauges[Gauge.QUEUES_WITHDRAWN].labels(namespace, queue)
        self.divert_seconds.labels(namespace, queue)


class _SendCollector:
    """Publishes the sends. They are counted by the pairings, and read when Prometheus asks."""

    def __init__(self, sends: SendTotals) -> None:
        self._sends = sends

    def describe(self) -> Iterator[CounterMetricFamily]:
        from prometheus_client.core import CounterMetricFamily

        yield CounterMetricFamily(
            "pairbus_sent_messages", "Messages that the primary accepted.", labels=ENTITY
        )

    def collect(self) -> Iterator[CounterMetricFamily]:
        for family in self.describe():
            for labels, count in self._sends.totals().items():
                family.add_metric(labels, count)
            yield family


# A registry accepts each name only once, so all observers of a registry share its metrics.
_LOCK: Final = threading.Lock()
_BY_REGISTRY: Final[WeakKeyDictionary[CollectorRegistry, _Metrics]] = WeakKeyDictionary()


def _metrics_in(registry: CollectorRegistry) -> _Metrics:
    with _LOCK:
        metrics = _BY_REGISTRY.get(registry)
        if metrics is None:
            metrics = _BY_REGISTRY[registry] = _Metrics(registry)
        return metrics
