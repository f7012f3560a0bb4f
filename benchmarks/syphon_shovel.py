"""The same drain by RabbitMQ's Shovel: from the queues of one node to those of another.

The queues are durable, the messages persistent, and a shovel acknowledges a message at its source
when its destination has confirmed it. All shovels are created together when the source queues are
full. They run inside the destination's node, which was faster than inside the source's. The nodes
do not form a cluster: the shovels reach the source over TCP, a round trip away if there is a
distance.
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

SOURCES = tuple(f"backlog-{number}" for number in range(10))
TARGETS = tuple(f"orders-{number}" for number in range(5))
FLIGHT = 1_000
"""Unconfirmed messages of each publisher that fills a source."""
LOOK_SECONDS = 0.005
RATE_MIN = 200
START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of queue, with the fastest settings for it (see page.md)."""

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
    "classic": Kind("classic", prefetch=200, version=2),
    "quorum": Kind("quorum", prefetch=1_000),
}


class Shovels:
    def __init__(
        self, source: rabbitmq.Node, target: rabbitmq.Node, shovels: int = len(SOURCES)
    ) -> None:
        self._source = source
        self._target = target
        self._source_port = source.port
        self._names = [f"shovel-{number}" for number in range(shovels)]

    def drain(self, kind: Kind, count: int, size: int) -> dict[str, Any]:
        """From creating the shovels to the arrival of the last message."""
        with contextlib.closing(_channel(self._target)) as target:
            _remake(target, TARGETS, kind)
            self._fill(kind, count // len(SOURCES), size)
            before = self._cpu_seconds()
            try:
                seconds = self._arrival(target, kind, count)
                spent = {name: it - before[name] for name, it in self._cpu_seconds().items()}
            finally:
                self._clear()
            arrived = _depth(target)
            if arrived != count:
                raise LoadError(f"{arrived} messages were shovelled, where {count} were sent")
        return {
            "count": count,
            "seconds": seconds,
            "rate": count / seconds,
            "cost_us": {name: it / count * 1e6 for name, it in spent.items()},
        }

    def _cpu_seconds(self) -> dict[str, float]:
        nodes = {"primary": self._target, "secondary": self._source}
        return {name: rows.cpu_seconds(node.pid) for name, node in nodes.items()}

    def _arrival(self, target: native.Channel, kind: Kind, count: int) -> float:
        until = time.monotonic() + START_SECONDS_MAX + count / RATE_MIN
        with ThreadPoolExecutor(1) as beside:
            # The command takes a second to start and to end, but the shovels do not wait for it.
            begun = beside.submit(self._target.evaluate, self._setting(kind))
            while _depth(target) < count:
                if time.monotonic() > until or (begun.done() and begun.exception()):
                    begun.result()
                    raise LoadError(f"{_depth(target)} of {count} messages were shovelled")
                time.sleep(LOOK_SECONDS)
            return time.time() - int(begun.result()) / 1e6

    def _setting(self, kind: Kind) -> str:
        """Creates all shovels, and returns when that began, in microseconds."""
        login = f"{rabbitmq.USER}:{rabbitmq.PASSWORD}"
        shovels = []
        for number, name in enumerate(self._names):
            source = number % len(SOURCES)
            values: dict[str, str | int] = {
                "src-protocol": "amqp091",
                "src-uri": f"amqp://{login}@127.0.0.1:{self._source_port}",
                "src-queue": SOURCES[source],
                "src-prefetch-count": kind.prefetch,
                "dest-protocol": "amqp091",
                "dest-uri": "amqp://",  # within the node
                "dest-queue": TARGETS[source % len(TARGETS)],
                "ack-mode": "on-confirm",
            }
            pairs = ", ".join(f"{{{_erlang(key)}, {_erlang(it)}}}" for key, it in values.items())
            shovels.append(f"{{{_erlang(name)}, [{pairs}]}}")
        return (
            "Begun = erlang:system_time(microsecond), "
            '[ok = rabbit_runtime_parameters:set(<<"/">>, <<"shovel">>, N, P, none)'
            f" || {{N, P}} <- [{', '.join(shovels)}]], Begun."
        )

    @contextlib.contextmanager
    def away(self, round_trip_ms: float) -> Iterator[None]:
        """The source is a round trip away."""
        with line(self._source.port, round_trip_ms) as self._source_port:
            yield
        self._source_port = self._source.port

    def _clear(self) -> None:
        names = ", ".join(_erlang(name) for name in self._names)
        self._target.evaluate(
            f'[rabbit_runtime_parameters:clear(<<"/">>, <<"shovel">>, N, none) || N <- [{names}]].'
        )

    def _fill(self, kind: Kind, each: int, size: int) -> None:
        with contextlib.ExitStack() as stack:

            def channel() -> native.Channel:
                return stack.enter_context(contextlib.closing(_channel(self._source)))

            _remake(channel(), SOURCES, kind)
            loop.run(
                [
                    native.Publisher(channel(), source.encode(), bytes(size), each, FLIGHT)
                    for source in SOURCES
                ]
            )


def _remake(channel: native.Channel, queues: tuple[str, ...], kind: Kind) -> None:
    for queue in queues:
        channel.delete(queue.encode())
        channel.declare(queue.encode(), kind.name.encode(), kind.version)


def _channel(node: rabbitmq.Node) -> native.Channel:
    return native.Channel(node.port, rabbitmq.USER, rabbitmq.PASSWORD)


def _depth(target: native.Channel) -> int:
    return sum(target.depth(queue.encode()) for queue in TARGETS)


def _erlang(value: str | int) -> str:
    return f'<<"{value}">>' if isinstance(value, str) else str(value)


@contextlib.contextmanager
def shovels(folder: Path) -> Iterator[tuple[Shovels, str]]:
    """With the version of the nodes. Raises PeerMissing if RabbitMQ is not available."""
    rabbitmq.install()
    with (
        rabbitmq.node(folder / "source", plugin="rabbitmq_shovel") as source,
        rabbitmq.node(folder / "target", plugin="rabbitmq_shovel") as target,
    ):
        yield Shovels(source, target), source.version
