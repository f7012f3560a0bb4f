"""The demo's traffic: paired senders, receivers with the official SDK, and a message counter.

Each runs on its own threads until it is stopped. Sends and arrivals go into the ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient as PlainClient
from azure.servicebus import ServiceBusMessage

from pairbus import SendAvailabilityPairedNamespaceOptions, ServiceBusClient
from pairbus.cli.administration import administration_client
from pairbus.cli.target import parse_target
from pairbus.client.route.status import PairingStatus
from pairbus.demo.ledger import Ledger
from pairbus.errors import one_line
from pairbus.telemetry.prometheus import PrometheusObserver

PRIMARY: Final = "east"
SECONDARY: Final = "west"
QUEUES: Final = ("orders", "payments", "shipments")
TOPIC: Final = "events"
SUBSCRIPTIONS: Final = ("audit", "billing")
BACKLOG_QUEUES: Final = 3

PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    **{queue: (queue,) for queue in QUEUES},
    TOPIC: tuple(f"{TOPIC}/{subscription}" for subscription in SUBSCRIPTIONS),
}
"""For each entity, the queue or the subscriptions where its messages arrive."""

# A receiver may lose a delivery, for example with its connection. The message is delivered again
# when its lock expires; with the default of one minute, the demo would wait for it.
_LOCK: Final = {"LockDuration": "PT10S"}
# A send that is in progress at the kill is diverted with the same id, although the primary may have
# stored it. These entities accept an id once, so the message arrives once.
_ONCE: Final = {
    "RequiresDuplicateDetection": True,
    "DuplicateDetectionHistoryTimeWindow": "PT1H",
}
ENTITIES: Final[Mapping[str, Any]] = {
    "Queues": [{"Name": queue, "Properties": {**_ONCE, **_LOCK}} for queue in QUEUES],
    "Topics": [
        {
            "Name": TOPIC,
            "Properties": _ONCE,
            "Subscriptions": [
                {"Name": subscription, "Properties": _LOCK} for subscription in SUBSCRIPTIONS
            ],
        }
    ],
}
"""The primary's entities, in the form of a Config.json."""

RETRY_SECONDS: Final = 0.5
COUNT_SECONDS: Final = 0.5
END_SECONDS_MAX: Final = 10.0
_BODY_BYTES_MAX: Final = 2_000


class WorkerThreads:
    """Threads that work until they are stopped."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def work(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"demo-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def is_working(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self.stopping.set()

    def close(self) -> None:
        self.stop()
        deadline = time.monotonic() + END_SECONDS_MAX
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class Senders(WorkerThreads):
    """A paired client, and for each entity a thread that sends at a steady rate."""

    def __init__(self, ledger: Ledger, *, rate: float, seed: int) -> None:
        super().__init__()
        self._ledger = ledger
        self._pause = len(PLACES) / rate
        self._seed = seed
        self._resources = ExitStack()
        self._client: ServiceBusClient | None = None
        self._generation = 0
        self.slowest_seconds = 0.0
        """The duration of the slowest send that succeeded."""
        self.error = ""
        """The error of the last send that raised."""
        self.metrics_url = ""
        """Where the client publishes its metrics; empty if it does not."""

    def pair(
        self, primary: str, secondary: str, ca_file: Path, *, has_metrics: bool = False
    ) -> None:
        observers = [self._publish_metrics()] if has_metrics else []
        # Without retries, the first failure shows at once; with an interval of 0, it fails over.
        client = ServiceBusClient.from_connection_string(primary, retry_total=0)
        partner = PlainClient.from_connection_string(secondary)
        manager = administration_client(parse_target(secondary, ca_file))
        for each in (manager, partner, client):  # closed in reverse order: the primary's first
            self._resources.callback(each.close)
        client.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager,
                partner,
                backlog_queue_count=BACKLOG_QUEUES,
                failover_interval=timedelta(0),
                ping_primary_interval=timedelta(seconds=1),
                primary_namespace_name=PRIMARY,
                observers=observers,
            )
        )
        self._client = client

    def _publish_metrics(self) -> PrometheusObserver:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        for call in (thread.join, server.server_close, server.shutdown):  # in reverse order
            self._resources.callback(call)
        self.metrics_url = f"http://127.0.0.1:{server.server_port}/metrics"
        return PrometheusObserver(registry)

    @property
    def status(self) -> PairingStatus | None:
        pairing = None if self._client is None else self._client.pairing
        return None if pairing is None else pairing.status()

    def start(self) -> None:
        self.stopping.clear()
        self._generation += 1
        for number, entity in enumerate(PLACES):
            self.work(f"send-{entity}", self._send, entity, number)

    def close(self) -> None:
        super().close()
        with suppress(Exception):  # the other side may be gone
            self._resources.close()

    def _send(self, entity: str, number: int) -> None:
        assert self._client is not None
        random = Random(f"{self._seed} {self._generation} {entity}")
        # Spread the first sends, so that the threads do not all send at the same moment.
        due = time.monotonic() + self._pause * number / len(PLACES)
        count = 0
        with self._open_sender(entity) as sender:
            while not self.stopping.wait(max(0.0, due - time.monotonic())):
                count += 1
                text = bytes(random.randrange(32, 127) for _ in range(random.randint(1, 200)))
                message = ServiceBusMessage(
                    text * random.randint(1, _BODY_BYTES_MAX // 200),
                    message_id=f"{entity}-{self._generation}-{count:05d}",
                    application_properties={"number": count},
                )
                self._send_one(sender, entity, message)
                # No burst after a delay: sends that an outage delayed are not made up for.
                due = max(due + self._pause * random.uniform(0.5, 1.5), time.monotonic())

    def _open_sender(self, entity: str) -> Any:
        assert self._client is not None
        if entity == TOPIC:
            return self._client.get_topic_sender(entity)
        return self._client.get_queue_sender(entity)

    def _send_one(self, sender: Any, entity: str, message: ServiceBusMessage) -> None:
        """Repeats the send until it succeeds, like an application that must not lose a message."""
        message_id, account = str(message.message_id), self._ledger.accounts[entity]
        account.attempt(message_id)  # before the send: it may arrive before the send returns
        while True:  # until it succeeds or the senders are stopped
            started_at = time.monotonic()
            try:
                sender.send_messages(message)
            except Exception as error:  # any error: a paired send should not fail here
                self.error = f"{entity}: {one_line(error)}"
                self._ledger.raised[entity] += 1
                if self.stopping.wait(RETRY_SECONDS):
                    return
            else:
                account.acknowledge(message_id)
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started_at)
                return


class Receivers(WorkerThreads):
    """A thread with the official SDK for each queue and subscription of the primary.

    When the connection is lost, it makes a new one, as every receiving application must.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def start(self, primary: str, places: Sequence[str]) -> None:
        for place in places:
            self.work(f"receive-{place}", self._receive, primary, place)

    def _receive(self, primary: str, place: str) -> None:
        seen: set[int] = set()
        while not self.stopping.is_set():
            with (
                # A broken connection raises more kinds of errors than the SDK's own.
                suppress(Exception),
                PlainClient.from_connection_string(primary, retry_total=0) as client,
                self._open_receiver(client, place) as receiver,
            ):
                self._receive_all(receiver, place, seen)
            self.stopping.wait(RETRY_SECONDS)

    @staticmethod
    def _open_receiver(client: PlainClient, place: str) -> Any:
        topic, _, subscription = place.partition("/")
        if subscription:
            return client.get_subscription_receiver(topic, subscription)
        return client.get_queue_receiver(place)

    def _receive_all(self, receiver: Any, place: str, seen: set[int]) -> None:
        """`seen`: the sequence numbers that have arrived here before."""
        entity = place.partition("/")[0]
        account = self._ledger.accounts[entity]
        while not self.stopping.is_set():
            # One at a time: the SDK loses a message that arrives between two calls, if its own
            # keep-alive thread reads it at the wrong moment. Without more credit, none does.
            for message in receiver.receive_messages(max_message_count=1, max_wait_time=1):
                id_, number = str(message.message_id), message.sequence_number
                account.deliver(id_, place=place, sequence_number=number)
                if message.delivery_count and number not in seen:
                    self._ledger.late[entity] += 1
                seen.add(number)
                account.attempt_removal(id_, place)
                receiver.complete_message(message)
                account.acknowledge_removal(id_, place, sequence_number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    backlog: int = 0
    left: int | None = None
    """Messages on the primary; None while it is down."""
    at: float = float("-inf")
    """When the counting started."""


class MessageCounter(WorkerThreads):
    """Repeatedly asks both namespaces for the number of messages in their queues."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def start(self, primary: str, secondary: str, ca_files: tuple[Path, Path]) -> None:
        self.work("count", self._count, (primary, secondary), ca_files)

    def _count(self, texts: tuple[str, str], ca_files: tuple[Path, Path]) -> None:
        with ExitStack() as stack:
            east, west = (
                stack.enter_context(
                    administration_client(parse_target(text, ca_file), retry_total=0)
                )
                for text, ca_file in zip(texts, ca_files, strict=True)
            )
            while not self.stopping.is_set():
                at = time.monotonic()
                with suppress(AzureError):
                    # Count the backlog first: messages that leave it in the meantime are then
                    # counted on the primary.
                    backlog = _waiting(west.list_queues_runtime_properties())
                    self.counts = Counts(backlog=backlog, left=_left(east), at=at)
                self.stopping.wait(COUNT_SECONDS)


def _left(primary: Any) -> int | None:
    try:
        return _waiting(primary.list_queues_runtime_properties()) + _waiting(
            primary.list_subscriptions_runtime_properties(TOPIC)
        )
    except AzureError:
        return None


def _waiting(properties: Any) -> int:
    """Counts dead letters as well, because they have not arrived."""
    return sum(each.total_message_count or 0 for each in properties)
