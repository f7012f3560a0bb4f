"""Bookkeeping for both shells' pools: the idle and the borrowed connections to backlog queues.

A sender of the SDK must not be used by two calls at once, and opening one takes half a second, so
open ones are kept. One for each backlog queue stays open; the extra ones from an outage are closed
after a minute of idleness. Nothing here opens, closes or waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import ReferenceType, ref

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.sdk import private

# Over a distance, a connection sends few messages a second, and the SDK has one for each sender on
# the primary, too. The pool opens as many as there are calls at the same time.
CONNECTIONS_PER_QUEUE_MAX = 64
# Opening many at once takes long, and longest in one event loop. Meanwhile the others wait for the
# connections that are open.
OPENINGS_AT_ONCE_MAX = 32
IDLE_SECONDS_MAX = 60.0

Sender = TypeVar("Sender")


@dataclass(slots=True, eq=False)
class BacklogConnection(Generic[Sender]):
    queue: str
    sender: Sender
    is_fresh: bool = True
    """Nothing has been sent on it yet, so a failure means that the queue fails and not that the
    link is stale.
    """
    idle_since: float = 0.0
    call: ReferenceType[object] | None = None
    """The call that has it. If that is gone, a Ctrl-C has kept it from giving the connection back.
    None: it was lent without a call.
    """

    @property
    def is_abandoned(self) -> bool:
        return self.call is not None and self.call() is None


@dataclass(slots=True)
class _QueueConnections(Generic[Sender]):
    idle: list[BacklogConnection[Sender]] = field(default_factory=list)
    lent: set[BacklogConnection[Sender]] = field(default_factory=set)
    waiting: list[object] = field(default_factory=list)
    """The places of the calls that wait for a connection: the first one gets the next."""

    @property
    def has_room(self) -> bool:
        """Whether another connection may be opened."""
        openings = sum(connection.is_fresh for connection in self.lent)
        return len(self.lent) < CONNECTIONS_PER_QUEUE_MAX and openings < OPENINGS_AT_ONCE_MAX


class PoolState(Generic[Sender]):
    def __init__(self, make: Callable[[str], Sender]) -> None:
        """`make` makes a sender for a backlog queue, without connecting it."""
        self._make = make
        self._queues: dict[str, _QueueConnections[Sender]] = {}
        self.batch_bytes_max = private.MESSAGE_BYTES_ASSUMED
        """The largest batch that the last new connection accepts."""
        self.ended: list[BacklogConnection[Sender]] = []
        """To be closed. The shell removes each of them when it has begun to close it."""

    # A Ctrl-C can come between any two steps. So a connection is in its new place before it leaves
    # the old one.

    def take(
        self, queue: str, place: object = None, *, call: object = None
    ) -> BacklogConnection[Sender] | None:
        """The most recently used idle connection, or a new one. None if too many are in use or
        being opened, or if others wait: then `place` is in line until `stop_waiting`.
        """
        found = self._of(queue)
        is_next = not found.waiting or found.waiting[0] is place
        if is_next and (found.idle or found.has_room):
            new = None if found.idle else BacklogConnection(queue, self._make(queue))
            connection = new or found.idle[-1]
            connection.call = None if call is None else ref(call)
            found.lent.add(connection)
            if new is None:
                found.idle.pop()
            return connection
        # Only a call that has to wait is in line: an interrupt could leave it there, and the others
        # would wait for it.
        if place is not None and place not in found.waiting:
            found.waiting.append(place)
        return None

    def stop_waiting(self, queue: str, place: object) -> bool:
        """The call has a connection, or gives up. Returns whether others wait."""
        found = self._of(queue)
        if place in found.waiting:
            found.waiting.remove(place)
        return bool(found.waiting)

    def clear(self, queue: str) -> None:
        """End the idle connections of a queue: one of its connections has failed."""
        for connection in [*self._of(queue).idle]:
            self._end(connection)

    def put_back(
        self, connection: BacklogConnection[Sender], *, is_usable: bool, now: float
    ) -> None:
        if not is_usable:
            self._end(connection)
            return
        if connection.is_fresh:
            connection.is_fresh = False
            _, self.batch_bytes_max = private.link_limits(connection.sender)
        connection.idle_since = now
        found = self._of(connection.queue)
        found.idle.append(connection)
        found.lent.discard(connection)

    def has_ready(self, queue: str) -> bool:
        """Whether a connection is open, or in use and about to be open."""
        found = self._of(queue)
        return bool(found.lent) or any(private.is_attached(x.sender) for x in found.idle)

    def trim(self, *, keep: frozenset[str], now: float) -> None:
        """End the connections that are abandoned, and those that were idle for too long, except one
        for each queue in `keep`.
        """
        for connection in self.lent:
            if connection.is_abandoned:
                self._end(connection)
        for queue, found in self._queues.items():
            spared = 1 if queue in keep else 0
            # The pool lends from the other end, so the oldest are in front.
            while len(found.idle) > spared and found.idle[0].idle_since < now - IDLE_SECONDS_MAX:
                self._end(found.idle[0])

    def clear_all(self) -> None:
        for queue in [*self._queues]:
            self.clear(queue)

    @property
    def lent(self) -> list[BacklogConnection[Sender]]:
        return [connection for found in self._queues.values() for connection in found.lent]

    def _end(self, connection: BacklogConnection[Sender]) -> None:
        self.ended.append(connection)
        found = self._of(connection.queue)
        found.lent.discard(connection)
        if connection in found.idle:
            found.idle.remove(connection)

    def _of(self, queue: str) -> _QueueConnections[Sender]:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _QueueConnections()
        return found


class PoolExhausted(OperationTimeoutError):
    """Too many messages were diverted at once. This says nothing about the queue."""

    def __init__(self, queue: str, seconds: float) -> None:
        super().__init__(
            message=f"all connections to backlog queue {queue!r} were in use, or being opened, for "
            f"{seconds:g} s; send fewer messages at once, or larger batches"
        )
