"""What active faults do to one connection's bytes and events: delay them, hold them or drop them.

A connection has a FaultyTransport only while faults are active or something is still delayed. A
fault of the namespace applies to bytes; a fault of an entity applies to the events of its links, so
that the connection's other links do not notice. `active_faults` decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.engine.engine import (
    Attached,
    Detached,
    Disposed,
    Event,
    Flowed,
    Link,
    Transferred,
)
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.faults.active_faults import ActiveFaults, Silence
from pairbus.broker.faults.delay_line import DelayLine
from pairbus.broker.links import paths
from pairbus.broker.links.links import ReceiverLink, SenderLink
from pairbus.broker.links.paths import Path

if TYPE_CHECKING:
    from pairbus.broker.links.connection import AmqpConnection

_HELD_BYTES_MAX: Final = 4 * 1024 * 1024
"""What a client may say into the void before it is no longer listened to."""
_EVENT_BYTES: Final = 200
_NOW_SECONDS: Final = 0.0005


class FaultyTransport:
    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._namespace = connection.namespace
        self._loop = connection.namespace.loop
        self._bytes: DelayLine[bytes] = DelayLine()
        self._events: dict[str, DelayLine[Event]] = {}
        """By entity."""
        self._output: DelayLine[bytes] = DelayLine()
        self._is_lossy = False
        """It has lost bytes, and makes no sense any more."""
        self._lossy_links: set[Link] = set()
        self._already_drawn: set[Link] = set()
        """The message that arrives there now is not to be cut."""
        self._gives_at: dict[str, float] = {}
        """Until then an entity's line is busy with what it gave out."""
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

    def received(self, data: bytes) -> None:
        faults = self._faults
        if faults is not None and faults.is_cut_off:
            self._connection.cut()
        elif self._silence(None) is Silence.DROP:
            self._is_lossy = True
        else:
            self._put(self._bytes, data, len(data), None)
            self._run()

    def took(self, event: Event) -> None:
        """From the engine, on the way to its link."""
        link = _link(event)
        if link is None:
            self._connection.handle(event)
            return
        entity = _path(link).entity.lower()
        is_message = isinstance(event, Transferred)
        if self._silence(entity) is Silence.DROP:
            self._lose(event, link)
        elif is_message and self._cuts(link, entity, is_whole=True):
            self._connection.cut()
        else:
            self._pass_on(event, entity)

    def arriving(self, link: Link) -> None:
        """Some frames of a message have come, and not yet its last."""
        if self._cuts(link, _path(link).entity, is_whole=False):
            self._connection.cut()

    def _lose(self, event: Event, link: Link) -> None:
        if isinstance(event, Detached):
            self._lossy_links.discard(link)
            self._connection.handle(event)
        else:
            self._lossy_links.add(link)

    def _cuts(self, link: Link, entity: str, *, is_whole: bool) -> bool:
        """Thrown once a message, however many frames it has."""
        if self._faults is None or not isinstance(link.context, SenderLink):
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
        """At once where nothing is wrong: then other links do not notice."""
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
            self._connection.hold_back(True)

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

    def may_give(self, path: Path) -> bool:
        """May the entity give out a message?"""
        entity = path.entity.lower()
        return (
            self._silence(None) is None
            and self._silence(entity) is None
            and self._gives_at.get(entity, 0.0) <= self._loop.time()
        )

    def gave(self, path: Path, size: int) -> None:
        faults, entity = self._faults, path.entity.lower()
        seconds = 0.0 if faults is None else faults.transmission_seconds(entity, size)
        if seconds:
            self._gives_at[entity] = self._loop.time() + seconds
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
            self._gives_at.clear()
        self._run()
        self._connection.offer_messages()
        self._connection.has_output()

    def _close_unreachable(self, faults: ActiveFaults) -> None:
        for link in self._connection.links:
            receives = isinstance(link.context, ReceiverLink)
            error = faults.refusal_of_link(_path(link).entity, receives=receives)
            if error is not None:
                self._connection.end(link, error)

    def _close_lossy(self) -> None:
        for link in list(self._lossy_links):
            path = _path(link)
            if self._silence(path.entity) is Silence.DROP:
                continue
            self._lossy_links.discard(link)
            error = AmqpError("amqp:link:detach-forced", f"{path} could not be reached for a while")
            if link.context is not None:
                self._connection.end(link, error)
            else:
                link.refuse(error)

    # time

    def _run(self) -> None:
        """Let through what has arrived."""
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
        for entity in [entity for entity, at in self._gives_at.items() if at <= now]:
            del self._gives_at[entity]
            connection.offer_messages()
        if self._held_bytes < _HELD_BYTES_MAX // 2:
            connection.hold_back(False)
        self._arm()

    def _arm(self) -> None:
        """Come back when the first thing arrives that nothing blocks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = list(self._gives_at.values())
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
        """The connection is gone, and with it what was on its way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bytes.clear()
        self._output.clear()
        self._events.clear()


def _link(event: Event) -> Link | None:
    """The link that an event is for, if it is for one."""
    if isinstance(event, Attached | Detached | Flowed | Transferred):
        return event.link
    return event.delivery.link if isinstance(event, Disposed) else None


def _path(link: Link) -> Path:
    remote = link.remote
    return paths.parse((remote.source_address if link.is_sender else remote.target_address) or "")
