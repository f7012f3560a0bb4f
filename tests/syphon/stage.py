"""Two namespaces: messages are put into one and read from the other.

With the fast client, because the SDK needs half a second to open a link. Messages are identified by
their ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.codec.sections import read_property, slice_message
from pairbus.client.sdk.messages import diverted
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import Receiver
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.drain import DrainTask, drain
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import Drained, Receipt, ReceiptOutcome
from tests.fast.world import take
from tests.syphon.backlog import encoded

QUIET_SECONDS = 1.0
"""A queue that gives out nothing for this long is empty, or all of it is locked."""


class Namespace(Protocol):
    @property
    def connection_string(self) -> str: ...


def metric(namespace: Namespace, name: str) -> int:
    """A metric of a broker, by its name without the prefix and without its labels."""
    host = Address.from_connection_string(namespace.connection_string).host
    with urlopen(f"http://{host}/$metrics") as answer:
        [value] = re.findall(rf"^pairbus_broker_{name}{{.*}} (\S+)$", answer.read().decode(), re.M)
    return int(float(value))


def id_of(data: bytes) -> str:
    parts = slice_message(data)
    return str(read_property(parts.bare, parts.properties, 0))


def backlog_names(count: int) -> list[str]:
    return [f"contoso/x-servicebus-transfer/{number}" for number in range(count)]


class Stage:
    """Fills a backlog, drains it, and shows what became of the messages."""

    def __init__(self, primary: Namespace, secondary: Namespace, queues: Sequence[str]) -> None:
        self.primary, self.secondary = primary, secondary
        self.queues = list(queues)

    # --- before -----------------------------------------------------------------------------------

    def divert(
        self,
        ids: Iterable[str],
        path: str = "orders",
        queue: str | None = None,
        diverted_by: str | None = None,
    ) -> None:
        messages = [diverted(_message(one), path, diverted_by=diverted_by) for one in ids]
        self.put([encoded(message) for message in messages], queue)

    def put(self, messages: Sequence[bytes], queue: str | None = None) -> None:
        with self.client(self.secondary) as client:
            client.sender(queue or self.queues[0]).send(messages)

    # --- the syphon -------------------------------------------------------------------------------

    def address(self, namespace: Namespace) -> Address:
        return Address.from_connection_string(namespace.connection_string)

    def task(self, **settings: Any) -> DrainTask:
        usual: dict[str, Any] = {
            "run": "run",
            "round": 1,
            "queues": tuple(self.queues),
            "primary": self.address(self.primary),
            "secondary": self.address(self.secondary),
            "seconds": 20.0,
            "chunk": 20,
        }
        return DrainTask(**usual | settings)

    def drain(self, **settings: Any) -> Drained:
        return drain(self.task(**settings))

    def options(self, **settings: Any) -> SyphonOptions:
        return SyphonOptions(
            primaries={"contoso": self.address(self.primary)},
            secondary=self.address(self.secondary),
            **settings,
        )

    # --- after ------------------------------------------------------------------------------------

    def client(self, namespace: Namespace) -> FastClient:
        return Address.from_connection_string(namespace.connection_string).client(
            timeout_seconds=60.0
        )

    def home(self, path: str = "orders") -> list[str]:
        """Ids in the order of their arrival; removes the messages."""
        return self._taken(self.primary, path, is_all=True)

    def free(self, queue: str | None = None) -> list[str]:
        """Ids of the messages in a backlog queue that are not locked; removes them."""
        return self._taken(self.secondary, queue or self.queues[0])

    def dead_lettered(self, queue: str | None = None) -> list[str]:
        return self._taken(self.secondary, f"{queue or self.queues[0]}/$DeadLetterQueue")

    def left(self, queue: str | None = None) -> int:
        """How many messages are in a backlog queue, locked or not, up to a page."""
        with self.client(self.secondary) as client:
            return len(client.management(queue or self.queues[0]).peek(1, 250))

    def lock(self, client: FastClient, count: int) -> tuple[Receiver, list[ReceivedMessage]]:
        """Locks the first messages of the first backlog queue, and no others."""
        receiver = client.receiver(self.queues[0], credit=count, at_most=count)
        return receiver, take(receiver, count)

    def _taken(self, namespace: Namespace, path: str, *, is_all: bool = False) -> list[str]:
        """`is_all`: nothing is locked, so wait until the entity is empty, however slow it is."""
        ids: list[str] = []
        with self.client(namespace) as client:
            receiver = client.receiver(path, credit=1000, mode="receiveAndDelete")
            management = client.management(path)
            while not is_all or management.peek(1, 1):
                found = receiver.receive(1000, max_wait_seconds=QUIET_SECONDS)
                ids += [id_of(one.data) for one in found]
                if not found and not is_all:
                    break
            ids += [id_of(one.data) for one in receiver.stop()]
        return ids


def _message(message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(b"x" * 100, message_id=message_id)


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:04d}" for number in range(count)]


def firsts(ids: Iterable[str]) -> list[str]:
    """Without duplicates: order is about first arrivals."""
    return list(dict.fromkeys(ids))


def copies(ids: Iterable[str]) -> int:
    """How many are duplicates."""
    return sum(count - 1 for count in Counter(ids).values())


def count(receipts: Iterable[Receipt], outcome: ReceiptOutcome) -> int:
    return sum(each.count for each in receipts if each.outcome is outcome)


def possible_duplicates(receipts: Iterable[Receipt]) -> int:
    return sum(each.duplicates_possible for each in receipts)


def after_sends(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], Any]) -> None:
    """Act once, when the primary has acknowledged the n-th batch and it is not settled yet."""
    real, batches = BacklogQueue.settle, 0

    def settle(self: BacklogQueue, *args: Any, **settings: Any) -> None:
        nonlocal batches
        batches += 1
        if batches == number:
            act()
        real(self, *args, **settings)

    monkeypatch.setattr(BacklogQueue, "settle", settle)
