"""Helpers for tests of the fast client: encoded messages, and a way to see what is in a queue.

The other side is always the real broker, or, where it must misbehave, a socket that says what a
test tells it to.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pairbus.amqp.codec.sections import read_property, slice_message
from pairbus.amqp.codec.types import Described, Symbol, ULong
from pairbus.amqp.codec.values import encode
from pairbus.fast.errors import SendIncomplete
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import Receiver
from pairbus.fast.sender import Sender


def message(
    name: str,
    *,
    body: bytes = b"body",
    group: str | None = None,
    annotations: dict[str, Any] | None = None,
) -> bytes:
    """An encoded message with this id."""
    fields = [name] if group is None else [name, *[None] * 9, group]
    sections = [encode(Described(ULong(0x73), fields)), encode(Described(ULong(0x75), body))]
    if annotations:
        named = {Symbol(key): value for key, value in annotations.items()}
        sections.insert(0, encode(Described(ULong(0x72), named)))
    return b"".join(sections)


def messages(count: int, *, body: bytes = b"body", first: int = 0) -> list[bytes]:
    return [message(f"m-{number}", body=body) for number in range(first, first + count)]


def send_one(sender: Sender, data: bytes) -> None:
    """Send a single message, and raise what the SDK would."""
    try:
        sender.send([data])
    except SendIncomplete as failed:
        raise failed.error from failed


def name_of(data: bytes) -> str:
    parts = slice_message(data)
    return str(read_property(parts.bare, parts.properties, 0))


def names(received: Iterable[ReceivedMessage | bytes]) -> list[str]:
    return [name_of(one if isinstance(one, bytes) else one.data) for one in received]


def bare(data: bytes) -> bytes:
    """Without the sections that the broker adds."""
    return slice_message(data).bare


def take(receiver: Receiver, count: int, *, seconds: float = 30.0) -> list[ReceivedMessage]:
    """Receive exactly `count` messages."""
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        some = receiver.receive(count - len(taken), max_wait_seconds=seconds)
        assert some, f"only {len(taken)} of {count} messages came"
        taken += some
    return taken


def exhaust(receiver: Receiver) -> None:
    """Receive until it fails, which it must."""
    while receiver.receive(1000, max_wait_seconds=30):
        pass


@contextmanager
def listening(script: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a peer that runs the script for each connection, then closes it."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not done.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.settimeout(10)
                    with suppress(OSError):
                        script(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            thread.join()
