"""Events as Prometheus metrics, for an application that asks for them with an observer.

`docs/metrics.md` says what each of them means. Labels have entities or backlog queues as their
values, never both on one metric and never the text or type of an error, so that an outage adds few
series. prometheus_client is an extra, and so is imported only when an observer is made.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from pairbus.errors import OptionsError
from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Diverted,
    Event,
    FailedBack,
    FailedOver,
    Paired,
    PingSent,
    PrimaryFailed,
    Recovered,
    SendFailed,
    Throttled,
)
from pairbus.telemetry.levels import Level, Levels

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ENTITY: Final = ("namespace", "entity")
QUEUE: Final = ("namespace", "backlog_queue")

COUNTERS: Final = {
    "diverted_messages": ("Messages that went to a backlog queue, by entity.", ENTITY),
    "primary_failures": ("Failures on the primary before a failover.", ENTITY),
    "recoveries": ("Successes that spared an entity a failover.", ENTITY),
    "failovers": ("Entities that failed over.", ENTITY),
    "failbacks": ("Entities that failed back.", (*ENTITY, "reason")),
    "failed_over_seconds": ("How long entities were failed over that failed back.", ENTITY),
    "pings": ("Pings to entities that were failed over.", ENTITY),
    "pings_answered": ("Those of them that were answered.", ENTITY),
    "throttles": ("Sends that the primary answered with server busy.", ENTITY),
    "send_failures": ("Sends that neither namespace took.", ENTITY),
    "backlog_messages": ("Messages that went to a backlog queue, by queue.", QUEUE),
    "backlog_withdrawals": ("Backlog queues taken out of the rotation.", QUEUE),
    "backlog_readmissions": ("Backlog queues put back into it.", QUEUE),
    "backlog_throttles": ("Sends that a backlog queue answered with server busy.", QUEUE),
}
GAUGES: Final = {
    Level.PAIRINGS: ("pairings", "Clients that are paired.", ("namespace",)),
    Level.ENTITIES_FAILED_OVER: (
        "failed_over",
        "Clients for which the entity is failed over.",
        ENTITY,
    ),
    Level.QUEUES_WITHDRAWN: (
        "backlog_withdrawn",
        "Clients for which the queue is out of the rotation.",
        QUEUE,
    ),
}
SEND_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusObserver:
    """Counts what happens to the pairings whose options, or `pairing.observe`, it is given to.

    It reports to the default registry unless given another. Several may report to one registry, and
    several clients may share one; with one each, the gauges are right also while clients of
    the same primary close at different times.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise OptionsError(
                "PrometheusObserver needs the package prometheus-client, which is not installed: "
                "pip install pairbus[prometheus]"
            ) from error
        self._metrics = _metrics_in(prometheus_client.REGISTRY if registry is None else registry)
        self._levels = Levels()

    def __call__(self, event: Event) -> None:
        metrics, of = self._metrics, event.namespace
        match event:
            case Paired():
                for queue in event.backlog_queues:
                    metrics.begin(of, queue)
            case Diverted():
                metrics.count("diverted_messages", of, event.path, by=event.count)
                metrics.count("backlog_messages", of, event.backlog_queue, by=event.count)
                metrics.divert_seconds.labels(of, event.backlog_queue).observe(event.seconds)
            case PrimaryFailed():
                metrics.count("primary_failures", of, event.path)
            case Recovered():
                metrics.count("recoveries", of, event.path)
            case FailedOver():
                metrics.count("failovers", of, event.path)
            case FailedBack():
                metrics.count("failbacks", of, event.path, event.reason)
                metrics.count("failed_over_seconds", of, event.path, by=event.after_seconds)
            case BacklogWithdrawn():
                metrics.count("backlog_withdrawals", of, event.backlog_queue)
            case BacklogReadmitted():
                metrics.count("backlog_readmissions", of, event.backlog_queue)
            case Throttled(backlog_queue=None):
                metrics.count("throttles", of, event.path)
            case Throttled(backlog_queue=str(queue)):
                metrics.count("backlog_throttles", of, queue)
            case PingSent():
                metrics.count("pings", of, event.path)
                metrics.count("pings_answered", of, event.path, by=int(event.answered))
            case SendFailed():
                metrics.count("send_failures", of, event.path)
        for move in self._levels.moves(event):
            labels = (move.namespace, move.name) if move.name else (move.namespace,)
            metrics.gauges[move.level].labels(*labels).inc(move.by)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self.counters: dict[str, Counter] = {
            name: Counter(f"pairbus_{name}", text, labels, registry=registry)
            for name, (text, labels) in COUNTERS.items()
        }
        # Across processes that report together, the sum of those that live.
        self.gauges: dict[Level, Gauge] = {
            level: Gauge(
                f"pairbus_{name}", text, labels, registry=registry, multiprocess_mode="livesum"
            )
            for level, (name, text, labels) in GAUGES.items()
        }
        self.divert_seconds: Histogram = Histogram(
            "pairbus_divert_seconds",
            "How long sends to a backlog queue took.",
            QUEUE,
            registry=registry,
            buckets=SEND_SECONDS,
        )

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self.counters[name].labels(*labels).inc(by)

    def begin(self, namespace: str, queue: str) -> None:
        """Show what is known of a queue from the start: a rate needs a zero to rise from."""
        for name, (_, labels) in COUNTERS.items():
            if labels == QUEUE:
                self.counters[name].labels(namespace, queue)
        self.gauges[Level.QUEUES_WITHDRAWN].labels(namespace, queue)
        self.divert_seconds.labels(namespace, queue)


# A registry takes each name once, so all observers that report to one share its metrics.
_LOCK: Final = threading.Lock()
_BY_REGISTRY: Final[WeakKeyDictionary[CollectorRegistry, _Metrics]] = WeakKeyDictionary()


def _metrics_in(registry: CollectorRegistry) -> _Metrics:
    with _LOCK:
        metrics = _BY_REGISTRY.get(registry)
        if metrics is None:
            metrics = _BY_REGISTRY[registry] = _Metrics(registry)
        return metrics
