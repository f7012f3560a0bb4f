"""Every period and time limit of a paired client, in seconds: the ping period, the throttle wait,
and how much time one call has on each of the two namespaces.

What an application can set comes from its options (`pairbus.options` has the defaults and ranges).
The rest are the constants here. Nothing here reads a clock or waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.options import SendAvailabilityPairedNamespaceOptions

# A backlog queue gets at least this long for a send, however short the caller's timeout is:
# delivering a message late is better than losing it.
BACKLOG_SECONDS_MIN: Final = 1.0
# If the caller gives no timeout: the maximum for one backlog queue, and the minimum for all of them
# together.
BACKLOG_SECONDS_EACH: Final = 20.0
BACKLOG_SECONDS_ALL: Final = 60.0
# Opening a connection gets at least this long; less if there is another backlog queue. The SDK
# needs half a second at best.
OPEN_SECONDS_MIN: Final = 5.0
OPEN_ONE_SECONDS_MIN: Final = 2.0
# One backlog queue gets at most this part of the time that is left, so that one that does not
# answer leaves time for the others.
BACKLOG_SHARE: Final = 1 / 3
# A backlog queue that failed is left alone for this long before a connection to it is tried, which
# costs nothing. It is short, because all queues may have failed at once.
QUEUE_REST_SECONDS: Final = 5.0
# The first ping after a failover comes after a random part of the ping period, at least this much.
# Clients that fail over together would otherwise ping together, and all go back in one moment.
FIRST_PING_PHASE_MIN: Final = 0.5
# A connection to a backlog queue that could not be opened in advance is tried again after this.
READY_RETRY_SECONDS: Final = 30.0
# How many messages a peek returns at most. It is billed by the request, and for each 64 KiB.
PEEK_PAGE: Final = 50
# A ping or a probe has this long, or as long as a send if that is less.
TASK_SECONDS_MAX: Final = 30.0
# Links that are opened before an entity fails back have this long, or as long as a send.
LINK_SECONDS_MAX: Final = 5.0
# A call is cut only this long after the SDK's own time-out.
GRACE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times that the options of a pairing set."""

    failover_seconds: float
    """How long an entity may fail before it fails over."""
    ping_seconds: float
    """The time between two pings of an entity that is failed over."""
    send_seconds: float
    """The time limit of one attempt, where the caller gives no timeout."""
    throttle_wait_seconds: float
    """How long a call waits when the service is busy, before it sends again."""
    fail_back_wait_seconds: float | None
    """How long an entity waits for the backlog on its way back; None: as long as it takes."""
    throttle_waits_max: int
    """How often one call waits for a busy service: as often as the SDK would retry."""

    @classmethod
    def of(cls, options: SendAvailabilityPairedNamespaceOptions, *, retries: int) -> Timing:
        """`retries` is the `retry_total` of the primary's client."""
        return cls(
            failover_seconds=options.failover_interval.total_seconds(),
            ping_seconds=options.ping_primary_interval.total_seconds(),
            send_seconds=options.send_timeout.total_seconds(),
            throttle_wait_seconds=options.throttle_wait.total_seconds(),
            fail_back_wait_seconds=(
                None
                if options.fail_back_wait_max is None
                else options.fail_back_wait_max.total_seconds()
            ),
            throttle_waits_max=max(1, retries),
        )

    @property
    def task_seconds(self) -> float:
        """The time limit of a ping or a probe."""
        return min(self.send_seconds, TASK_SECONDS_MAX)

    @property
    def link_seconds(self) -> float:
        """The time limit for links that are opened before an entity fails back."""
        return min(self.send_seconds, LINK_SECONDS_MAX)


class TimeBudget:
    """How much time one call has left on each of the two namespaces.

    The caller's timeout applies to each of them. One backlog queue gets a part of it, because there
    are others. Without a timeout, each attempt has the send timeout of the options, and at most 20
    seconds on a backlog queue.
    """

    __slots__ = ("_backlog_until", "_primary_until", "_send_seconds", "_timeout")

    def __init__(self, timeout: float | None, send_seconds: float) -> None:
        self._timeout = timeout
        self._send_seconds = send_seconds
        self._primary_until: float | None = None
        self._backlog_until: float | None = None

    def on_primary(self, *, now: float) -> float:
        if self._timeout is None:
            return self._send_seconds
        if self._primary_until is None:
            self._primary_until = now + self._timeout
        return max(0.001, self._primary_until - now)  # the SDK takes 0 as "no limit"

    def forget_primary(self) -> None:
        """A call that returns to the primary gets its full time again."""
        self._primary_until = None

    def in_backlog(self, *, now: float, queues_left: int = 1, at_least: float = 0.0) -> float:
        """The time for the backlog; if several queues are left, the time for one of them."""
        limit = self._timeout
        if limit is None:
            limit = max(self._send_seconds, BACKLOG_SECONDS_ALL)
        if self._backlog_until is None:
            self._backlog_until = now + limit
        left = self._backlog_until - now
        if self._timeout is None:
            left = min(left, self._send_seconds, BACKLOG_SECONDS_EACH)
        elif queues_left > 1:
            left *= max(1 / queues_left, BACKLOG_SHARE)
        return max(at_least, left)

    def can_wait(self, seconds: float, *, is_backlog: bool, now: float) -> bool:
        """Whether a throttled call may wait that long. True if its caller set no limit."""
        if self._timeout is None:
            return True
        return (self.in_backlog(now=now) if is_backlog else self.on_primary(now=now)) > seconds
