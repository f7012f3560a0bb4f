"""The demo's traffic: paired senders, receivers of the official SDK, and who counts what waits.

All of them work on threads, write into the account, and end when they are told to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient as PlainClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import SendAvailabilityPairedNamespaceOptions, ServiceBusClient
from pairbus.client.status import PairingStatus
from pairbus.demo.delivery_check import Account

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
"""Of each entity, where its messages arrive."""

# Seldom, the SDK loses a delivery that arrives between two receive calls. The message comes again
# when its lock has run out, for which nobody wants to wait a minute.
_LOCK: Final = {"LockDuration": "PT10S"}
# A send that was under way at the kill is diverted under the same id, though the primary may have
# stored it. These entities take an id once, so it arrives once.
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
"""The primary's, as a Config.json has them."""

RETRY_SECONDS: Final = 0.5
COUNT_SECONDS: Final = 0.5
END_SECONDS_MAX: Final = 10.0
_BODY_BYTES_MAX: Final = 2_000


class Worker:
    """Threads that end when they are told to."""

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

    def join(self) -> None:
        deadline = time.monotonic() + END_SECONDS_MAX
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class Senders(Worker):
    """A paired client, and a thread for each entity that sends at a steady rate."""

    def __init__(self, account: Account, *, rate: float, seed: int) -> None:
        super().__init__()
        self._account = account
        self._pause = len(PLACES) / rate
        self._seed = seed
        self._open = ExitStack()
        self._client: ServiceBusClient | None = None
        self._generation = 0
        self.slowest = 0.0
        """The longest that a call has taken, in seconds."""
        self.error = ""
        """Of the last call that has raised."""

    def pair(self, primary: str, secondary: str, ca_file: str) -> None:
        # Without retries the first failure is known at once; with an interval of 0 it is diverted.
        client = ServiceBusClient.from_connection_string(primary, retry_total=0)
        partner = PlainClient.from_connection_string(secondary)
        manager = ServiceBusAdministrationClient.from_connection_string(
            secondary, connection_verify=ca_file
        )
        for each in (manager, partner, client):  # the primary's is closed first
            self._open.callback(each.close)
        client.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager,
                partner,
                backlog_queue_count=BACKLOG_QUEUES,
                failover_interval=timedelta(0),
                ping_primary_interval=timedelta(seconds=1),
                primary_namespace_name=PRIMARY,
            )
        )
        self._client = client

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
        self.stop()
        self.join()
        with suppress(Exception):  # who is gone need not be told
            self._open.close()

    def _send(self, entity: str, number: int) -> None:
        assert self._client is not None
        dice = Random(f"{self._seed} {self._generation} {entity}")
        # The first ones are spread, so that they do not all send at the same moment.
        due = time.monotonic() + self._pause * number / len(PLACES)
        made = 0
        with self._opened(entity) as sender:
            while not self.stopping.wait(max(0.0, due - time.monotonic())):
                made += 1
                text = bytes(dice.randrange(32, 127) for _ in range(dice.randint(1, 200)))
                message = ServiceBusMessage(
                    text * dice.randint(1, _BODY_BYTES_MAX // 200),
                    message_id=f"{entity}-{self._generation}-{made:05d}",
                    application_properties={"number": made},
                )
                self._send_one(sender, entity, message)
                # What an outage has held up is not made up for in a burst.
                due = max(due + self._pause * dice.uniform(0.5, 1.5), time.monotonic())

    def _opened(self, entity: str) -> Any:
        assert self._client is not None
        if entity == TOPIC:
            return self._client.get_topic_sender(entity)
        return self._client.get_queue_sender(entity)

    def _send_one(self, sender: Any, entity: str, message: ServiceBusMessage) -> None:
        """Until it is sent: as an application does that must not lose one."""
        message_id = str(message.message_id)
        self._account.begins(entity, message_id)
        while True:  # bounded by who stops us
            began = time.monotonic()
            try:
                sender.send_messages(message)
            except Exception as error:  # whatever it is, it is one that should not have been
                self.error = f"{entity}: {type(error).__name__}: {error}"
                self._account.raised(entity)
                if self.stopping.wait(RETRY_SECONDS):
                    return
            else:
                self._account.sent(entity, message_id)
                self.slowest = max(self.slowest, time.monotonic() - began)
                return


class Receivers(Worker):
    """The official SDK alone, a thread for each queue and subscription of the primary. What every
    application needs that receives: when the connection is lost, it makes a new one."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account

    def start(self, primary: str, places: Sequence[str]) -> None:
        for place in places:
            self.work(f"receive-{place}", self._receive, primary, place)

    def close(self) -> None:
        self.stop()
        self.join()

    def _receive(self, primary: str, place: str) -> None:
        while not self.stopping.is_set():
            with (
                # A connection that breaks has more kinds of errors than the SDK's own.
                suppress(Exception),
                PlainClient.from_connection_string(primary, retry_total=0) as client,
                self._opened(client, place) as receiver,
            ):
                self._take(receiver, place)
            self.stopping.wait(RETRY_SECONDS)

    @staticmethod
    def _opened(client: PlainClient, place: str) -> Any:
        topic, _, subscription = place.partition("/")
        if subscription:
            return client.get_subscription_receiver(topic, subscription)
        return client.get_queue_receiver(place)

    def _take(self, receiver: Any, place: str) -> None:
        while not self.stopping.is_set():
            for message in receiver.receive_messages(max_message_count=50, max_wait_time=1):
                number = message.sequence_number
                is_late = bool(message.delivery_count)
                self._account.arrived(place, str(message.message_id), number, is_late=is_late)
                receiver.complete_message(message)
                self._account.settled(place, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    backlog: int = 0
    left: int | None = None
    at: float = float("-inf")
    """When the namespaces were asked."""


class Counter(Worker):
    """Asks both namespaces again and again what lies in their queues."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counted()

    def start(self, primary: str, secondary: str, ca_files: tuple[str, str]) -> None:
        self.work("count", self._count, (primary, secondary), ca_files)

    def close(self) -> None:
        self.stop()
        self.join()

    def _count(self, texts: tuple[str, str], ca_files: tuple[str, str]) -> None:
        with ExitStack() as stack:
            east, west = (
                stack.enter_context(
                    ServiceBusAdministrationClient.from_connection_string(
                        text, connection_verify=ca_file, retry_total=0
                    )
                )
                for text, ca_file in zip(texts, ca_files, strict=True)
            )
            while not self.stopping.is_set():
                at = time.monotonic()
                with suppress(AzureError):
                    # The backlog first: what has left it since is counted on the primary.
                    backlog = _waiting(west.list_queues_runtime_properties())
                    self.counted = Counted(backlog=backlog, left=_left(east), at=at)
                self.stopping.wait(COUNT_SECONDS)


def _left(primary: ServiceBusAdministrationClient) -> int | None:
    try:
        return _waiting(primary.list_queues_runtime_properties()) + _waiting(
            primary.list_subscriptions_runtime_properties(TOPIC)
        )
    except AzureError:
        return None


def _waiting(described: Any) -> int:
    """Dead letters count: they are not where they should be."""
    return sum(each.total_message_count or 0 for each in described)
