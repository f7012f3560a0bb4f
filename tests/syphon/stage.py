"""Two namespaces, and what is put into one and read from the other: by the fast client, for the SDK
takes half a second to open a link. Messages are told apart by their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.codec.sections import read_property, slice_message
from pairbus.client.sdk.messages import diverted
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.syphon.delivery import Delivery, Half
from pairbus.syphon.drain import DrainTask, drain
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import Drained, Outcome, Receipt
from tests.syphon.backlog import encoded

QUIET_SECONDS = 0.3
"""A queue that gives out nothing for so long has nothing that could be had."""


class Namespace(Protocol):
    @property
    def connection_string(self) -> str: ...


def id_of(data: bytes) -> str:
    parts = slice_message(data)
    return str(read_property(parts.bare, parts.properties, 0))


def backlog_names(count: int) -> list[str]:
    return [f"contoso/x-servicebus-transfer/{number}" for number in range(count)]


class Stage:
    """Fills a backlog, drains it, and looks what became of the messages."""

    def __init__(self, primary: Namespace, secondary: Namespace, queues: Sequence[str]) -> None:
        self.primary, self.secondary = primary, secondary
        self.queues = list(queues)

    # --- before -----------------------------------------------------------------------------------

    def divert(self, ids: Iterable[str], path: str = "orders", queue: str | None = None) -> None:
        self.put([encoded(diverted(_message(one), path)) for one in ids], queue)

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
            timeout_seconds=15.0
        )

    def home(self, path: str = "orders") -> list[str]:
        """Ids in the order of their arrival; taken away."""
        return self._taken(self.primary, path)

    def free(self, queue: str | None = None) -> list[str]:
        """What is left in a backlog queue and locked by nobody; taken away."""
        return self._taken(self.secondary, queue or self.queues[0])

    def dead_lettered(self, queue: str | None = None) -> list[str]:
        return self._taken(self.secondary, f"{queue or self.queues[0]}/$DeadLetterQueue")

    def left(self, queue: str | None = None) -> int:
        """How many are left in it, locked or not, up to a page."""
        with self.client(self.secondary) as client:
            return len(client.management(queue or self.queues[0]).peek(1, 250))

    def _taken(self, namespace: Namespace, path: str) -> list[str]:
        ids: list[str] = []
        with self.client(namespace) as client:
            receiver = client.receiver(path, credit=1000, mode="receiveAndDelete")
            while found := receiver.receive(1000, max_wait_seconds=QUIET_SECONDS):
                ids += [id_of(one.data) for one in found]
            ids += [id_of(one.data) for one in receiver.stop()]
        return ids


def _message(message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(b"x" * 100, message_id=message_id)


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:04d}" for number in range(count)]


def firsts(ids: Iterable[str]) -> list[str]:
    """Without what had been there before: order is a matter of first arrivals."""
    return list(dict.fromkeys(ids))


def copies(ids: Iterable[str]) -> int:
    """How many came that had come already."""
    return sum(count - 1 for count in Counter(ids).values())


def count(receipts: Iterable[Receipt], outcome: Outcome) -> int:
    return sum(each.count for each in receipts if each.outcome is outcome)


def doubts(receipts: Iterable[Receipt]) -> int:
    return sum(each.duplicates_possible for each in receipts)


def after_sends(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], Any]) -> None:
    """Once, when the primary has acknowledged the n-th half chunk, and nobody has settled that."""
    real, halves = Delivery.land, 0

    def land(self: Delivery, half: Half) -> None:
        nonlocal halves
        real(self, half)
        halves += 1
        if halves == number:
            act()

    monkeypatch.setattr(Delivery, "land", land)
