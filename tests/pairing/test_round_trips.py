"""A diverted message costs one round trip: over a distance, nothing else matters.

The secondary is behind a relay that records which side sends on each connection. So this counts
round trips and measures no time.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

import pytest
from azure.servicebus import ServiceBusMessage

HEARTBEAT_BYTES = 8
TRANSFER = 0x14


class Relay:
    """Passes bytes on, in both directions."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.said: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
        """By connection: who said what, in order."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            number += 1
            for who, source, sink in (("client", near, far), ("service", far, near)):
                self._start(number, who, source, sink)

    def _start(self, number: int, who: str, source: socket.socket, sink: socket.socket) -> None:
        def pass_on() -> None:
            with source:
                try:
                    while data := source.recv(65536):
                        if len(data) > HEARTBEAT_BYTES:
                            self.said[number].append((who, data))
                        sink.sendall(data)
                    sink.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

        threading.Thread(target=pass_on, daemon=True).start()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def relay(world) -> Iterator[Relay]:
    host, port = world.secondary.endpoint.split(":")
    made = Relay(host, int(port))
    yield made
    made.close()


@pytest.fixture
def text(world, relay) -> str:
    """The secondary's connection string, through the relay."""
    text = world.secondary.connection_string()
    return text.replace(world.secondary.endpoint, f"localhost:{relay.port}")


def frames(said: list[tuple[str, bytes]]) -> list[int]:
    """The code of each AMQP performative that the client has sent, except protocol headers."""
    data = b"".join(data for who, data in said if who == "client")
    codes, at = [], 0
    while at < len(data):
        if data.startswith(b"AMQP", at):
            at += 8
        else:
            codes.append(data[at + 10])
            at += int.from_bytes(data[at : at + 4], "big")
    return codes


def test_a_diverted_message_costs_one_round_trip(world, relay, text):
    client = world.pair(manager=world.manager(text), factory=world.factory(text))
    path = world.queue()
    sender = world.sender(client, path)
    world.primary.fault("cannot_send", path)
    world.send(sender, "first")

    for body in ("second", "third", "fourth"):
        before = {number: len(said) for number, said in relay.said.items()}
        world.send(sender, body)
        since = [said[before.get(number, 0) :] for number, said in [*relay.said.items()]]
        [said] = [each for each in since if any(body.encode() in data for _, data in each)]
        assert [who for who, _ in groupby(who for who, _ in said)] == ["client", "service"]

    world.check(path, backlog=["first", "second", "third", "fourth"])


def test_without_a_ready_connection_the_first_message_costs_no_more_than_opening_one(
    world, relay, text
):
    path = world.queue()
    client = world.pair(
        manager=world.manager(text), factory=world.factory(text), secondary_connections="lazy"
    )
    world.primary.fault("cannot_send", path)
    world.send(world.sender(client, path), "diverted-1")
    plain = world.enter(world.shell.plain_client(text, retry_total=0))
    with plain.get_queue_sender(world.backlog_path(0)) as sender:
        sender.send_messages(ServiceBusMessage("plain-1"))

    first, opened = (
        frames(said)
        for word in (b"diverted-1", b"plain-1")
        for said in [*relay.said.values()]
        if any(word in data for _, data in said)
    )
    # The same frames, so the same round trips; afterwards, the plain sender was closed.
    assert opened[: len(first)] == first
    assert first.count(TRANSFER) == 2  # the token, and the message
