"""A snapshot of a router, to be shown. Times are the router's own: monotonic seconds.

Whoever shows it to a person makes dates of them; nothing here knows what day it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.client.route.health import State


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityStatus:
    path: str
    """As it was first spelled."""
    state: State
    since: float
    first_failure: float | None
    """The first failure after the last success; None while healthy."""
    last_error: BaseException | None
    """Of the primary: a send's or a ping's."""
    backlog_queue: str | None
    """The one in use, or to be used after a failover; None when none is left."""
    sent: int
    """Messages that the primary took."""
    diverted: int
    """Messages that a backlog queue took."""
    failures: int
    """Attempts on the primary that failed in a way that counts."""
    throttled: int
    """Attempts that the service asked to repeat later."""
    refused: int
    """Sends that neither namespace took."""
    pings_sent: int
    """Those of which the outcome is known."""
    pings_answered: int
    next_ping: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnQueue:
    queue: str
    error: BaseException
    since: float
    retry_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationStatus:
    in_rotation: tuple[str, ...]
    withdrawn: tuple[WithdrawnQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    namespace: str
    entities: tuple[EntityStatus, ...]
    """In the order in which they were first used."""
    rotation: RotationStatus
    pings_sent: int
    pings_answered: int
    pings_out: int
    """Those of which the outcome is not known yet."""
    is_closed: bool
