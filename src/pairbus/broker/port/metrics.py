"""A namespace as Prometheus metrics, made when they are asked for from what is counted anyway.

`docs/metrics.md` says what each of them means. prometheus_client is an extra: whoever imports this
module is ready for an ImportError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.queue import Queue
from pairbus.broker.namespace import Namespace

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


async def metrics_of(namespace: Namespace) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(_collect(namespace))))
    # With thousands of entities that takes a second, which messages are not to wait for.
    return await asyncio.to_thread(generate_latest, registry)


class _Collected:
    """What prometheus_client asks for metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []  # or it would collect once more, to see what there is

    def collect(self) -> list[Metric]:
        return self._metrics


def _collect(namespace: Namespace) -> Iterator[Metric]:
    """On the loop, where nothing moves meanwhile. What is 0 is left out, where it mostly is."""
    name = namespace.name
    operations = CounterMetricFamily(
        "pairbus_broker_operations",
        "Operations as they would be billed, in units of 64 KB.",
        labels=("namespace", "entity", "operation"),
    )
    for entity, tally in namespace.meter.read().entities.items():
        for operation, count in tally.as_dict().items():
            if count:
                operations.add_metric((name, entity, operation), count)
    yield operations
    messages = GaugeMetricFamily(
        "pairbus_broker_messages",
        "Messages in an entity.",
        labels=("namespace", "entity", "state"),
    )
    sizes = GaugeMetricFamily(
        "pairbus_broker_size_bytes",
        "What an entity's messages count towards its quota.",
        labels=("namespace", "entity"),
    )
    for queue in namespace.directory:
        for state, count in _counts(queue).items():
            if count or state == "active":
                messages.add_metric((name, queue.name, state), count)
        sizes.add_metric((name, queue.name), queue.size_bytes)
    yield messages
    yield sizes
    yield _gauge(name, "connections", "AMQP connections.", len(namespace.connections))
    active = sum(fault.is_active for fault in namespace.faults.faults)
    yield _gauge(name, "faults", "Faults on demand that are active.", active)


def _gauge(namespace: str, what: str, words: str, value: int) -> Metric:
    gauge = GaugeMetricFamily(f"pairbus_broker_{what}", words, labels=("namespace",))
    gauge.add_metric((namespace,), value)
    return gauge


def _counts(queue: Queue) -> dict[str, int]:
    main, dead, lost = (queue.mailboxes[kind].counters for kind in MailboxKind)
    return {
        "active": main.active,
        "scheduled": main.scheduled,
        "deferred": main.deferred,
        # Which may be deferred as well.
        "dead_letter": dead.active + dead.deferred,
        "transfer_dead_letter": lost.active + lost.deferred,
    }
