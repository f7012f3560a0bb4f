"""Two namespaces, messages in the backlog queues of one, and a drain of them in each way.

After each drain the primary's queues are emptied. Each message must be there exactly once, or there
is no figure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ours
import syphon_processes as processes
from delay import line
from load import DURABLE, data_section
from loop import LoadError
from pairbus.amqp.codec.sections import read_property, slice_message
from pairbus.amqp.codec.types import Int
from pairbus.amqp.codec.values import encode
from pairbus.fast.address import Address
from syphon_movers import READY_SECONDS_MAX, Mover, mover

SIZE = 500
BACKLOGS = tuple(f"bench/x-servicebus-transfer/{number}" for number in range(10))
TARGETS = tuple(f"orders-{number}" for number in range(5))
CORES = os.cpu_count() or 1
ID_DIGITS = 9
# Messages in memory while the backlog queues are filled.
AT_ONCE = 10_000
BYTES_AT_ONCE = 16 * 1024 * 1024
# A drain hangs if it is slower than this many messages a second, after the start.
RATE_MIN = 50
START_SECONDS_MAX = 60.0
LATE_SECONDS = 20.0
QUIET_SECONDS = 0.05


def backlog_message(message_id: str, path: str, size: int = SIZE) -> bytes:
    """As a paired sender diverts it."""
    properties = {"n": Int(1), "x-ms-path": path}
    head = b"\x00\x53\x73" + encode([message_id]) + b"\x00\x53\x74" + encode(properties)
    return DURABLE + head + data_section(bytes(size))


def backlog_messages(first: int, count: int, size: int = SIZE) -> Iterator[list[bytes]]:
    """Messages numbered from `first` on, for all targets in turn, some thousands at a time.

    They differ only in their ids, because encoding a million messages one by one takes long.
    """
    blank = "0" * ID_DIGITS
    ends = [backlog_message(blank, target, size).split(blank.encode(), 1) for target in TARGETS]
    at_once = max(1, min(AT_ONCE, BYTES_AT_ONCE // size))
    for start in range(first, first + count, at_once):
        some = range(start, min(start + at_once, first + count))
        yield [(b"%0*d" % (ID_DIGITS, number)).join(ends[number % len(ends)]) for number in some]


class Stage:
    def __init__(self, primary: ours.Ours, secondary: ours.Ours, folder: Path) -> None:
        self._brokers = {"primary": primary, "secondary": secondary}
        self._texts = {
            name: f"{broker.connection_string};UseDevelopmentEmulator=true"
            for name, broker in self._brokers.items()
        }
        self._folder = folder
        self._started = 0

    @contextlib.contextmanager
    def away(self, round_trip_ms: float, *, tls: bool = False) -> Iterator[dict[str, Any]]:
        """A way to both namespaces that takes a round trip; an argument for `drain`."""
        with contextlib.ExitStack() as stack:
            ends: dict[str, Any] = {}
            for name, broker in self._brokers.items():
                port = stack.enter_context(line(broker.port, round_trip_ms))
                text = broker.connection_string.replace(f":{broker.port}/", f":{port}/")
                if tls:
                    ends |= {name: text, f"{name}_port": port}
                    ends[f"{name}_ca_file"] = str(broker.ca_file())
                else:
                    ends[name] = f"{text};UseDevelopmentEmulator=true"
            yield ends

    # --- processes that bring them home -----------------------------------------------------------

    def mover(
        self, way: str, queues: tuple[str, ...] = BACKLOGS, ends: dict[str, str] | None = None
    ) -> Any:
        self._started += 1
        folder = self._folder / f"mover-{self._started}"
        return mover(way, **self._texts | (ends or {}), queues=queues, folder=folder)

    def drain(
        self, mover: Mover, count: int, *, size: int = SIZE, ends: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """By one process, which is ready before and after. `ends`: its way to the namespaces, if
        it is not the usual one.
        """
        self._fill(count, size)
        return self._measure([mover], [count], ends=ends or {})

    def drain_with_the_sdk(self, count: int, ends: dict[str, str] | None = None) -> dict[str, Any]:
        """One process for each core, each with its share of the backlog queues."""
        groups = [BACKLOGS[number::CORES] for number in range(min(CORES, len(BACKLOGS)))]
        with contextlib.ExitStack() as stack:
            movers = [stack.enter_context(self.mover("sdk", group, ends)) for group in groups]
            for each in movers:
                each.answer(READY_SECONDS_MAX)
            self._fill(count)
            return self._measure(movers, [count // len(BACKLOGS) * len(each) for each in groups])

    def wakes(self, mover: Mover, count: int) -> list[float]:
        mover.tell(do="wakes", count=count, target=TARGETS[0])
        return list(mover.answer(START_SECONDS_MAX * (1 + count))["seconds"])

    # --- one drain --------------------------------------------------------------------------------

    def _measure(
        self, movers: list[Mover], counts: list[int], ends: dict[str, str] | None = None
    ) -> dict[str, Any]:
        count = sum(counts)

        def pids() -> dict[str, list[int]]:
            found = {name: [broker.pid] for name, broker in self._brokers.items()}
            for mover in movers:
                for kind, each in mover.pids().items():
                    found.setdefault(kind, []).extend(each)
            return found

        with processes.watched(pids) as watch:
            before = processes.cpu_seconds(pids())
            for mover, share in zip(movers, counts, strict=True):
                mover.tell(do="drain", count=share, ends=ends or {})
            seconds_max = START_SECONDS_MAX + count / RATE_MIN
            seconds = max(mover.answer(seconds_max)["seconds"] for mover in movers)
            after = processes.cpu_seconds(pids())
        self._check(count)
        return {
            "count": count,
            "seconds": seconds,
            "rate": count / seconds,
            "cost_us": {
                kind: (after[kind] - before.get(kind, 0.0)) / count * 1e6 for kind in after
            },
            "before_mb": watch.before_mb,
            "peak_mb": watch.peaks_mb,
        }

    def _fill(self, count: int, size: int = SIZE) -> None:
        each = count // len(BACKLOGS)
        with Address.from_connection_string(self._texts["secondary"]).client() as client:
            for place, queue in enumerate(BACKLOGS):
                sender = client.sender(queue)
                for some in backlog_messages(place * each, each, size):
                    sender.send(some)

    def _check(self, count: int) -> None:
        """Empty the primary: every message that was sent must be there exactly once."""
        seen = bytearray(count)
        found = 0
        with Address.from_connection_string(self._texts["primary"]).client() as client:
            for target in TARGETS:
                receiver = client.receiver(target, credit=5_000, mode="receiveAndDelete")
                left = count // len(TARGETS)
                # Wait for what is missing, and then a moment for duplicates.
                while received := receiver.receive(
                    5_000, max_wait_seconds=LATE_SECONDS if left > 0 else QUIET_SECONDS
                ):
                    for one in received:
                        seen[_number(one.data)] = 1
                    left -= len(received)
                found += count // len(TARGETS) - left
        if not found == sum(seen) == count:
            raise LoadError(
                f"{found} messages came home, {sum(seen)} of them different, where {count} were "
                "sent"
            )


def _number(data: bytes) -> int:
    parts = slice_message(data)
    return int(read_property(parts.bare, parts.properties, 0))
