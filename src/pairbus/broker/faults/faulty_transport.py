"""What active faults do to one connection's bytes and events: delay them, hold them or drop them.

A connection has a FaultyTransport only while faults are active or something is still delayed. A
fault of the namespace applies to bytes; a fault of an entity applies to the events of its links, so
that the connection's other links do not notice. `active_faults` decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from pairbus.amqp.engine import Attached, Detached, Disposed, Event, Flowed, Link, Transferred
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.active_faults import ActiveFaults, Silence
from pairbus.broker.faults.controller import FaultTarget

_HELD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Held input of one connection. Above this, reading pauses."""
_EVENT_BYTES: Final = 200
"""What an event without a message counts."""
_NOW_SECONDS: Final = 0.0005
"""Timers count in milliseconds: what is due in half of one is due now."""

T = TypeVar("T")


class FaultyConnection(Protocol):
    """A connection, as far as a FaultyTransport is concerned."""

    @property
    def links(self) -> Iterable[Link]: ...
    @property
    def is_closing(self) -> bool: ...
    def entity_of(self, link: Link) -> str: ...
    def take(self, data: bytes) -> None: ...
    def handle(self, event: Event) -> None: ...
    def output(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def offer_messages(self) -> None: ...
    def has_output(self) -> None: ...
    def end(self, link: Link, error: AmqpError) -> None: ...
    def cut(self) -> None: ...
    def drop_faulty_transport(self) -> None: ...


class FaultyTransport:
    def __init__(self, connection: FaultyConnection, namespace: FaultTarget) -> None:
        self._connection = connection
        self._namespace = namespace
        self._loop = namespace.loop
        self._bytes: DelayLine[bytes] = DelayLine()
        self._events: dict[str, DelayLine[Event]] = {}
        """By entity."""
        self._output: DelayLine[bytes] = DelayLine()
        self._is_lossy = False
        """Bytes were dropped, so the rest of the stream cannot be read."""
        self._lossy_links: set[Link] = set()
        self._already_drawn: set[Link] = set()
        """The message that arrives there in several frames was not chosen for a fault."""
        self._busy_until: dict[str, float] = {}
        """By entity: the time until which its bandwidth is used up."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _faults(self) -> ActiveFaults | None:
        return self._namespace.active_faults

    @property
    def is_over(self) -> bool:
        return (
            self._faults is None
            and not self._bytes
            and not self._output
            and not any(self._events.values())
        )

    # in: bytes

    def received_bytes(self, data: bytes) -> None:
        faults = self._faults
        if faults is not None and faults.is_cut_off:
            self._connection.cut()
        elif self._silence(None) is Silence.DROP:
            self._is_lossy = True
        else:
            self._put(self._bytes, data, len(data), None)
            self._run()

    def received_event(self, event: Event) -> None:
        """From the engine, on the way to its link."""
        link = _link_of(event)
        if link is None:
            self._connection.handle(event)
            return
        entity = self._connection.entity_of(link).lower()
        is_message = isinstance(event, Transferred)
        if self._silence(entity) is Silence.DROP:
            self._drop(event, link)
        elif is_message and self._cuts(link, entity, is_whole=True):
            self._connection.cut()
        else:
            self._pass_on(event, entity)

    def received_part(self, link: Link) -> None:
        """Some frames of a message have come, but not its last."""
        if self._cuts(link, self._connection.entity_of(link), is_whole=False):
            self._connection.cut()

    def _drop(self, event: Event, link: Link) -> None:
        if isinstance(event, Detached):
            self._lossy_links.discard(link)
            self._connection.handle(event)
        else:
            self._lossy_links.add(link)

    def _cuts(self, link: Link, entity: str, *, is_whole: bool) -> bool:
        """Decides once per message, independent of its number of frames."""
        if self._faults is None or _right_of(link) is not Right.SEND:
            return False
        if link in self._already_drawn:
            if is_whole:
                self._already_drawn.discard(link)
            return False
        if self._faults.cuts_in_transfer(entity):
            return True
        if not is_whole:
            self._already_drawn.add(link)
        return False

    def _pass_on(self, event: Event, entity: str) -> None:
        """No delay where no fault applies, so that other links are not affected."""
        line = self._events.get(entity)
        size = len(event.data) if isinstance(event, Transferred) else _EVENT_BYTES
        if line is None:
            faults = self._faults
            if faults is None or not (faults.is_slow(entity) or faults.silence(entity)):
                self._connection.handle(event)
                return
            line = self._events[entity] = DelayLine()
        self._put(line, event, size, entity)

    def _put(self, line: DelayLine[Any], thing: Any, size: int, entity: str | None) -> None:
        faults = self._faults
        latency = transmission = 0.0
        if faults is not None:
            latency = faults.latency_seconds(entity)
            transmission = faults.transmission_seconds(entity, size)
        line.put(
            thing,
            size,
            now=self._loop.time(),
            latency_seconds=latency,
            transmission_seconds=transmission,
        )
        if self._held_bytes > _HELD_BYTES_MAX:
            self._connection.pause_reading()

    @property
    def _held_bytes(self) -> int:
        return self._bytes.size_bytes + sum(line.size_bytes for line in self._events.values())

    # out

    def holds_output(self) -> bool:
        """Asked before anything is written."""
        if self._silence(None) is not None:
            return True
        faults = self._faults
        if not self._output and (faults is None or not faults.transmission_seconds(None, 1)):
            return False
        data = self._connection.output()
        if data:
            seconds = 0.0 if faults is None else faults.transmission_seconds(None, len(data))
            now = self._loop.time()
            self._output.put(data, len(data), now=now, transmission_seconds=seconds)
            self._arm()
        return bool(self._output)

    def may_deliver(self, entity: str) -> bool:
        entity = entity.lower()
        return (
            self._silence(None) is None
            and self._silence(entity) is None
            and self._busy_until.get(entity, 0.0) <= self._loop.time()
        )

    def count_output(self, entity: str, size: int) -> None:
        """A message of the entity is sent."""
        faults, entity = self._faults, entity.lower()
        seconds = 0.0 if faults is None else faults.transmission_seconds(entity, size)
        if seconds:
            self._busy_until[entity] = self._loop.time() + seconds
            self._arm()

    # changes

    def faults_changed(self) -> None:
        """A fault has started or ended."""
        faults = self._faults
        lost = self._is_lossy and self._silence(None) is not Silence.DROP
        if lost or (faults is not None and faults.is_cut_off):
            self._connection.cut()
            return
        if faults is not None:
            self._close_unreachable(faults)
        self._close_lossy()
        if faults is None:
            lines: list[DelayLine[Any]] = [self._bytes, self._output, *self._events.values()]
            for line in lines:
                line.hurry()
            self._busy_until.clear()
        self._run()
        self._connection.offer_messages()
        self._connection.has_output()

    def _close_unreachable(self, faults: ActiveFaults) -> None:
        for link in self._connection.links:
            receives = _right_of(link) is Right.LISTEN
            error = faults.refusal_of_link(self._connection.entity_of(link), receives=receives)
            if error is not None:
                self._connection.end(link, error)

    def _close_lossy(self) -> None:
        for link in list(self._lossy_links):
            entity = self._connection.entity_of(link)
            if self._silence(entity) is Silence.DROP:
                continue
            self._lossy_links.discard(link)
            error = AmqpError(
                "amqp:link:detach-forced", f"{entity!r} could not be reached for a while"
            )
            self._connection.end(link, error)

    # time

    def _run(self) -> None:
        """Pass on the items that have arrived."""
        connection, now = self._connection, self._loop.time() + _NOW_SECONDS
        if self._silence(None) is None:
            while (data := self._bytes.take(now=now)) is not None and not connection.is_closing:
                connection.take(data)
            while (data := self._output.take(now=now)) is not None and not connection.is_closing:
                connection.write(data)
        for entity, line in list(self._events.items()):
            if self._silence(entity) is not None:
                continue
            while (event := line.take(now=now)) is not None and not connection.is_closing:
                connection.handle(event)
            if not line:
                self._events.pop(entity, None)
        for entity in [entity for entity, at in self._busy_until.items() if at <= now]:
            del self._busy_until[entity]
            connection.offer_messages()
        if self._held_bytes < _HELD_BYTES_MAX // 2:
            connection.resume_reading()
        self._arm()

    def _arm(self) -> None:
        """Set the timer for the next arrival that no silence holds back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = list(self._busy_until.values())
        if self._silence(None) is None:
            times += [line.next_at or 0.0 for line in (self._bytes, self._output) if line]
        for entity, line in self._events.items():
            if line and self._silence(entity) is None:
                times.append(line.next_at or 0.0)
        if times and not self._connection.is_closing:
            self._timer = self._loop.call_at(min(times), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._run()
        self._connection.has_output()
        self._connection.drop_faulty_transport()
        self._namespace.run()

    def _silence(self, entity: str | None) -> Silence | None:
        return None if self._faults is None else self._faults.silence(entity)

    @property
    def is_silent(self) -> bool:
        return self._silence(None) is not None

    def close(self) -> None:
        """The connection is gone, and everything that was delayed with it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bytes.clear()
        self._output.clear()
        self._events.clear()


def _link_of(event: Event) -> Link | None:
    """The link that an event belongs to, if it belongs to one."""
    of_link = Attached | Detached | Flowed | Transferred | Disposed
    return event.link if isinstance(event, of_link) else None


def _right_of(link: Link) -> Right | None:
    """SEND for a client's sender, LISTEN for its receiver, None for requests and replies."""
    return getattr(link.context, "right", None)


class DelayLine(Generic[T]):
    """Items come out later than they went in, in the same order.

    Pure: `now` is in seconds of any clock that never goes back. Each item has a latency, and
    occupies the line for its transmission time.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._items: deque[tuple[float, int, T]] = deque()
        self._free_at = 0.0
        self._last_at = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def put(
        self,
        item: T,
        size_bytes: int,
        *,
        now: float,
        latency_seconds: float = 0.0,
        transmission_seconds: float = 0.0,
    ) -> None:
        self._free_at = max(self._free_at, now) + transmission_seconds
        self._last_at = max(self._free_at + latency_seconds, self._last_at)
        self._items.append((self._last_at, size_bytes, item))
        self.size_bytes += size_bytes

    def take(self, *, now: float) -> T | None:
        """The next item that has arrived."""
        if not self._items or self._items[0][0] > now:
            return None
        _, size_bytes, item = self._items.popleft()
        self.size_bytes -= size_bytes
        return item

    @property
    def next_at(self) -> float | None:
        return self._items[0][0] if self._items else None

    def hurry(self) -> None:
        """The delay is over: everything on the line arrives now."""
        self._items = deque((0.0, size, item) for _, size, item in self._items)
        self._free_at = self._last_at = 0.0

    def clear(self) -> None:
        self._items.clear()
        self.size_bytes = 0
