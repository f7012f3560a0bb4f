"""What the router keeps of one entity: its health, its backlog queue, its pings and its counts.

This module makes one decision: when the next ping is due (`schedule_ping`). `Agenda` returns the
entity that is due next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Final

from pairbus.client.route.health import Health
from pairbus.client.route.own_backlog import OwnBacklog
from pairbus.client.route.plans import PeekBacklog, Ping
from pairbus.client.route.status import EntityStatus
from pairbus.errors import one_line

_STALE_MAX: Final = 64


@dataclass(slots=True, eq=False)
class RoutedEntity:
    path: str
    """As it was first spelled."""
    health: Health
    queue: str | None = None
    """Its backlog queue. If it has left the rotation, another one is picked on demand."""
    last_error: BaseException | None = None
    is_unreachable: bool = False
    """The last error says that the whole namespace cannot be reached."""
    pings_from: float = 0.0
    """The pings of this failover are due whole ping periods after this: the failover, or up to half
    a period earlier.
    """
    next_ping: float | None = None
    slot: int = 0
    """The number of the next ping, counted from `pings_from`."""
    ping_out: Ping | None = None
    """A ping whose outcome is still unknown. It may belong to an earlier epoch."""
    own: OwnBacklog = field(default_factory=OwnBacklog)
    """This client's messages in the backlog. Empty without fail_back="ordered"."""
    sent: int = 0
    diverted: int = 0
    failures: int = 0
    throttled: int = 0
    refused: int = 0
    pings_sent: int = 0
    pings_answered: int = 0

    @property
    def wake_at(self) -> float | None:
        """The next time at which this entity changes without a send."""
        state = self.health.state
        if state.is_on_primary:
            return self.health.deadline
        ping_at = self.next_ping if self.ping_out is None else None
        if not state.is_returning:
            return ping_at
        peek_at = self.own.next_peek if self.own.peek_out is None else None
        moments = (ping_at, peek_at, self.health.deadline)
        return min((at for at in moments if at is not None), default=None)

    def take_ping(self, *, ping_seconds: float, now: float) -> Ping | None:
        """The ping that is due now, if any."""
        is_due = self.next_ping is not None and self.next_ping <= now and self.ping_out is None
        if self.health.state.is_on_primary or not is_due:
            return None
        self.ping_out = Ping(self.path, self.health.epoch)
        self.schedule_ping(ping_seconds=ping_seconds, now=now)
        return self.ping_out

    def take_peek(self, *, now: float) -> PeekBacklog | None:
        """The peek at its backlog queue that is due now, if any."""
        own = self.own
        if not self.health.state.is_returning or self.queue is None:
            return None
        if own.peek_out is not None or own.next_peek > now:
            return None
        own.peek_out = PeekBacklog(
            path=self.path,
            queue=self.queue,
            epoch=self.health.epoch,
            from_sequence=own.cursor,
            diverted=self.diverted,
        )
        return own.peek_out

    def schedule_ping(self, *, ping_seconds: float, now: float) -> None:
        """The first time after `now` that is a whole number of ping periods after `pings_from`.

        So pings keep their rate even if one is sent late. After a long delay, one ping follows, not
        all the missed ones.
        """
        began = self.pings_from
        self.slot = max(self.slot + 1, int((now - began) // ping_seconds))
        while (at := began + self.slot * ping_seconds) <= now:  # at most twice, because of rounding
            self.slot += 1
        self.next_ping = at

    def status(
        self, *, backlog_queue: str | None, date: Callable[[float], datetime]
    ) -> EntityStatus:
        first_failure = self.health.first_failure
        return EntityStatus(
            path=self.path,
            state=self.health.state.value,
            since=date(self.health.since),
            first_failure=None if first_failure is None else date(first_failure),
            last_error=None if self.last_error is None else one_line(self.last_error),
            backlog_queue=backlog_queue,
            sent=self.sent,
            diverted=self.diverted,
            failures=self.failures,
            throttled=self.throttled,
            refused=self.refused,
            pings_sent=self.pings_sent,
            pings_answered=self.pings_answered,
            next_ping=None if self.next_ping is None else date(self.next_ping),
            pings_needed=self.health.pings_needed,
        )


class Agenda:
    """Which entity is due next.

    A heap, because a failing namespace can affect a thousand entities, and the lookup runs under
    the lock that senders need. An entry is valid if it matches its entity's `wake_at`. Outdated
    entries stay in the heap for a while.
    """

    def __init__(self) -> None:
        self._entities: dict[str, RoutedEntity] = {}
        self._heap: list[tuple[float, str]] = []

    def update(self, entity: RoutedEntity) -> None:
        """To be called after each change of `entity.wake_at`."""
        at, path = entity.wake_at, entity.path
        if at is None:
            self._entities.pop(path, None)
        else:
            self._entities[path] = entity
            heappush(self._heap, (at, path))
        # An entity that fails and recovers repeatedly adds an entry each time.
        if len(self._heap) > 2 * len(self._entities) + _STALE_MAX:
            self._heap = [
                (each.wake_at, path)
                for path, each in self._entities.items()
                if each.wake_at is not None
            ]
            heapify(self._heap)

    @property
    def next(self) -> float | None:
        """When the next entity is due."""
        while self._heap:  # bounded: each round removes an entry
            at, path = self._heap[0]
            entity = self._entities.get(path)
            if entity is not None and entity.wake_at == at:
                return at
            heappop(self._heap)
        return None

    def take(self, *, now: float) -> list[RoutedEntity]:
        """Removes and returns the entities that are due, earliest first."""
        due = []
        while (at := self.next) is not None and at <= now:
            _, path = heappop(self._heap)
            due.append(self._entities.pop(path))
        return due
