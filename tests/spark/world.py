"""A broker with options for the data source, and a way to fill and see its queues."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.broker import Broker
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.message import ReceivedMessage
from tests.fast.world import peeked, take

VARIABLE = "SERVICEBUS_CONNECTION_STRING"
KEY = "bm8tbG9nLW5vLXBsYW4tbm8tZXJyb3Itc2hvd3MtdGhpcw=="
"""Of the broker that Spark knows."""


def names(rows: Iterable[Any]) -> list[str]:
    return [row["messageId"] for row in rows]


def rows_of(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    """As tasks do it: each with a reader that was pickled."""
    found: list[dict[str, Any]] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            found += batch.to_pylist()
    return found


@dataclass
class Bus:
    broker: Broker

    @property
    def connection_string(self) -> str:
        return self.broker.connection_string

    @property
    def options(self) -> dict[str, str]:
        return {"connectionString": self.connection_string}

    def client(self) -> FastClient:
        return Address.from_connection_string(self.connection_string).client()

    def send(self, path: str, messages: Sequence[bytes]) -> None:
        with self.client() as client:
            client.sender(path).send(messages)

    def peek(self, path: str) -> list[dict[str, Any]]:
        """All messages of a queue, as rows."""
        with self.client() as client:
            return peeked(client, path)

    def use(self, path: str, use: Callable[[Any], Any], *, count: int) -> list[ReceivedMessage]:
        """Receive so many, and let `use` settle them."""
        with self.client() as client:
            receiver = client.receiver(path, credit=count, at_most=count)
            taken = take(receiver, count)
            use((receiver, taken))
            receiver.close()
        return taken

    def dead_letter(self, path: str, reason: str, *, count: int) -> None:
        self.use(path, lambda got: got[0].dead_letter(got[1], reason=reason), count=count)
