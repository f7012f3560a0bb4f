"""A namespace as Prometheus metrics, made on request from what is counted anyway.

`docs/metrics.md` describes each metric. prometheus_client is an extra, so importing this module may
raise ImportError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pairbus.broker.namespace import Namespace

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


async def metrics_of(namespace: Namespace) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(_collect(namespace))))
    # With thousands of entities this takes a second, and messages must not wait for it.
    return await asyncio.to_thread(generate_latest, registry)


class _Collected:
    """A collector for prometheus_client."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []  # else it would collect twice

    def collect(self) -> list[Metric]:
        return self._metrics


def _collect(namespace: Namespace) -> Iterator[Metric]:
    """On the loop, where nothing changes meanwhile. Most counts are 0 and left out."""
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
        for state, count in queue.message_counts.items():
            if count or state == "active":
                messages.add_metric((name, queue.name, state), count)
        sizes.add_metric((name, queue.name), queue.size_bytes)
    yield messages
    yield sizes
    yield _gauge(name, "connections", "AMQP connections.", len(namespace.connections))
    opened = CounterMetricFamily(
        "pairbus_broker_connections_opened",
        "AMQP connections that were opened.",
        labels=("namespace",),
    )
    opened.add_metric((name,), namespace.connections_opened)
    yield opened
    active = sum(fault.is_active for fault in namespace.faults.faults)
    yield _gauge(name, "faults", "Faults on demand that are active.", active)


def _gauge(namespace: str, what: str, description: str, value: int) -> Metric:
    gauge = GaugeMetricFamily(f"pairbus_broker_{what}", description, labels=("namespace",))
    gauge.add_metric((namespace,), value)
    return gauge
