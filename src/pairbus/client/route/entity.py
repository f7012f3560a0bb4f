"""What the router keeps of one entity: its health, its backlog queue, its pings and its counts.

Mutable, and the router's alone. No decision is taken here but one: when the next ping is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.client.route.health import Health, State
from pairbus.client.route.plans import Ping, ToBacklog, ToPrimary
from pairbus.client.route.status import EntityStatus


@dataclass(slots=True, eq=False)
class Entity:
    key: str
    path: str
    """As it was first spelled."""
    health: Health
    to_primary: ToPrimary
    """The plan of this epoch; the same object each time, because every send asks for it."""
    direct: ToPrimary | None
    """`to_primary` while the entity is healthy, else None: one look instead of two per send."""
    queue: str | None = None
    """Its backlog queue. It may have left the rotation since; then another is picked on demand."""
    to_backlog: ToBacklog | None = None
    """The last plan that led there; the same object as long as it holds, for the same reason."""
    last_error: BaseException | None = None
    next_ping: float | None = None
    slot: int = 0
    """Which one that is, counted from the failover."""
    ping_out: Ping | None = None
    """Perhaps of an earlier epoch: its outcome is still to come."""
    sent: int = 0
    diverted: int = 0
    failures: int = 0
    throttled: int = 0
    refused: int = 0
    pings_sent: int = 0
    pings_answered: int = 0

    @property
    def wake_at(self) -> float | None:
        """When time alone changes something here."""
        if self.health.state is State.FAILED_OVER:
            return self.next_ping if self.ping_out is None else None
        return self.health.deadline

    def schedule_ping(self, *, ping_seconds: float, now: float) -> None:
        """The first moment after `now` that is a multiple of the interval after the failover.

        So pings keep their rate however late one is sent, and a delay, however long, is followed
        by one ping and not by all those that were missed.
        """
        began = self.health.since
        self.slot = max(self.slot + 1, int((now - began) // ping_seconds))
        while (at := began + self.slot * ping_seconds) <= now:  # once or twice, by rounding
            self.slot += 1
        self.next_ping = at

    def status(self, *, backlog_queue: str | None) -> EntityStatus:
        return EntityStatus(
            path=self.path,
            state=self.health.state,
            since=self.health.since,
            first_failure=self.health.first_failure,
            last_error=self.last_error,
            backlog_queue=backlog_queue,
            sent=self.sent,
            diverted=self.diverted,
            failures=self.failures,
            throttled=self.throttled,
            refused=self.refused,
            pings_sent=self.pings_sent,
            pings_answered=self.pings_answered,
            next_ping=self.next_ping,
        )
