"""The same drain by RabbitMQ's Shovel: from queues of one virtual host to those of another.

The queues are durable, the messages persistent, and a shovel acknowledges a message at its source
when its destination has confirmed it. All shovels are created together when the source queues are
full. They work inside the node: with TCP connections of their own they were slower.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import loop
import native
import rabbitmq
import rows
from delay import line
from loop import LoadError

AWAY, HOME = "away", "home"
SOURCES = tuple(f"backlog-{number}" for number in range(10))
TARGETS = tuple(f"orders-{number}" for number in range(5))
FLIGHT = 1_000
"""Unconfirmed messages of each publisher that fills a source."""
LOOK_SECONDS = 0.005
RATE_MIN = 200
START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of queue, with the fastest settings for it (see README.md)."""

    name: str
    prefetch: int
    version: int = 0

    @property
    def title(self) -> str:
        return f"RabbitMQ's Shovel, {self.name} queues, prefetch {self.prefetch:,}"

    def with_prefetch(self, prefetch: int) -> Kind:
        return replace(self, prefetch=prefetch)


KINDS = {
    # Version 2 of classic queues, which is optional, was faster than version 1.
    "classic": Kind("classic", prefetch=5_000, version=2),
    "quorum": Kind("quorum", prefetch=200),
}


class Shovels:
    def __init__(self, node: rabbitmq.Node, shovels: int = len(SOURCES)) -> None:
        self._node = node
        self.port = 0
        """If set, the shovels connect to the node over TCP at this port, and not within it."""
        self._names = [f"shovel-{number}" for number in range(shovels)]

    def drain(self, kind: Kind, count: int, size: int) -> dict[str, Any]:
        """From creating the shovels to the arrival of the last message."""
        with contextlib.closing(self._channel(HOME)) as home:
            self._remake(home, TARGETS, kind)
            self._fill(kind, count // len(SOURCES), size)
            before = rows.cpu_seconds(self._node.pid)
            try:
                seconds = self._arrival(home, kind, count)
                spent = rows.cpu_seconds(self._node.pid) - before
            finally:
                self._clear()
            arrived = _depth(home)
            if arrived != count:
                raise LoadError(f"{arrived} messages were shovelled, where {count} were sent")
        return {
            "count": count,
            "seconds": seconds,
            "rate": count / seconds,
            "cost_us": {"node": spent / count * 1e6},
        }

    def _arrival(self, home: native.Channel, kind: Kind, count: int) -> float:
        until = time.monotonic() + START_SECONDS_MAX + count / RATE_MIN
        with ThreadPoolExecutor(1) as beside:
            # The command takes a second to start and to end, but the shovels do not wait for it.
            begun = beside.submit(self._node.evaluate, self._setting(kind))
            while _depth(home) < count:
                if time.monotonic() > until or (begun.done() and begun.exception()):
                    begun.result()
                    raise LoadError(f"{_depth(home)} of {count} messages were shovelled")
                time.sleep(LOOK_SECONDS)
            return time.time() - int(begun.result()) / 1e6

    def _setting(self, kind: Kind) -> str:
        """Creates all shovels, and returns when that began, in microseconds."""
        shovels = []
        for number, name in enumerate(self._names):
            source = number % len(SOURCES)
            values: dict[str, str | int] = {
                "src-protocol": "amqp091",
                "src-uri": self._uri(AWAY),
                "src-queue": SOURCES[source],
                "src-prefetch-count": kind.prefetch,
                "dest-protocol": "amqp091",
                "dest-uri": self._uri(HOME),
                "dest-queue": TARGETS[source % len(TARGETS)],
                "ack-mode": "on-confirm",
            }
            pairs = ", ".join(f"{{{_erlang(key)}, {_erlang(it)}}}" for key, it in values.items())
            shovels.append(f"{{{_erlang(name)}, [{pairs}]}}")
        return (
            "Begun = erlang:system_time(microsecond), "
            f"[ok = rabbit_runtime_parameters:set({_erlang(AWAY)}, {_erlang('shovel')}, N, P, none)"
            f" || {{N, P}} <- [{', '.join(shovels)}]], Begun."
        )

    @contextlib.contextmanager
    def away(self, round_trip_ms: float) -> Iterator[None]:
        """Both ends of every shovel are a round trip away from the node."""
        with line(self._node.port, round_trip_ms) as port:
            self.port = port
            yield
        self.port = 0

    def _uri(self, vhost: str) -> str:
        if not self.port:
            return f"amqp:///{vhost}"
        return f"amqp://{rabbitmq.USER}:{rabbitmq.PASSWORD}@127.0.0.1:{self.port}/{vhost}"

    def _clear(self) -> None:
        names = ", ".join(_erlang(name) for name in self._names)
        self._node.evaluate(
            f"[rabbit_runtime_parameters:clear({_erlang(AWAY)}, {_erlang('shovel')}, N, none)"
            f" || N <- [{names}]]."
        )

    def _fill(self, kind: Kind, each: int, size: int) -> None:
        with contextlib.ExitStack() as stack:

            def channel() -> native.Channel:
                return stack.enter_context(contextlib.closing(self._channel(AWAY)))

            self._remake(channel(), SOURCES, kind)
            loop.run(
                [
                    native.Publisher(channel(), source.encode(), bytes(size), each, FLIGHT)
                    for source in SOURCES
                ]
            )

    def _remake(self, channel: native.Channel, queues: tuple[str, ...], kind: Kind) -> None:
        for queue in queues:
            channel.delete(queue.encode())
            channel.declare(queue.encode(), kind.name.encode(), kind.version)

    def _channel(self, vhost: str) -> native.Channel:
        return native.Channel(self._node.port, rabbitmq.USER, rabbitmq.PASSWORD, vhost)


def _depth(home: native.Channel) -> int:
    return sum(home.depth(target.encode()) for target in TARGETS)


def _erlang(value: str | int) -> str:
    return f'<<"{value}">>' if isinstance(value, str) else str(value)


@contextlib.contextmanager
def shovels(folder: Path) -> Iterator[tuple[Shovels, str]]:
    """With the version of the node. Raises PeerMissing if RabbitMQ is not available."""
    rabbitmq.install()
    with rabbitmq.node(folder, plugin="rabbitmq_shovel") as node:
        node.add_vhosts(AWAY, HOME)
        yield Shovels(node), node.version
