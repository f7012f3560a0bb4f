"""The events of an `Engine`: one small object for each action of the peer.

The reader dispatches on `type(event)`. Events hold handles (`Link`, `Delivery`, `Session`), so an
event may be read long after its link is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pairbus.amqp.engine.delivery import Delivery
from pairbus.amqp.engine.link import Link
from pairbus.amqp.engine.session import Session
from pairbus.amqp.outcomes import AmqpError, Outcome

# Not frozen: that would make them three times as expensive, and one of these is made for every
# transfer and every disposition.


@dataclass(slots=True, eq=False)
class Opened:
    """The peer opened the connection; in the server role it has been answered already."""

    container_id: str
    hostname: str | None
    properties: Mapping[str, object]


@dataclass(slots=True, eq=False)
class SessionBegun:
    session: Session


@dataclass(slots=True, eq=False)
class SessionEnded:
    """The peer ended a session. Its links have ended with it; a `Detached` for each came before
    this.
    """

    session: Session
    error: AmqpError | None


@dataclass(slots=True, eq=False)
class Attached:
    """The peer attached a link, to be accepted or refused now or later.

    In the client role also: the peer answered our attach, which needs no reaction. If it refuses,
    `link.remote` has neither source nor target, and `Detached` with the error follows.
    """

    link: Link


@dataclass(slots=True, eq=False)
class Detached:
    """The peer detached the link. For a link that we closed first, there is no event.

    The answer is on its way; its deliveries can no longer be settled.
    """

    link: Link
    closed: bool
    error: AmqpError | None


@dataclass(slots=True, eq=False)
class Flowed:
    """Credit or drain changed on a link that we send on."""

    link: Link


@dataclass(slots=True, eq=False)
class Transferred:
    """One complete message arrived; aborted ones never surface."""

    link: Link
    delivery: Delivery
    data: bytes
    message_format: int
    settled: bool


@dataclass(slots=True, eq=False)
class Oversized:
    """A message was larger than its link allows. The engine has rejected it already."""

    link: Link
    error: AmqpError


@dataclass(slots=True, eq=False)
class Disposed:
    """The peer sent the outcome of deliveries that we sent; at most once, then their settlement.

    `deliveries` is in the order in which they were sent. A peer may settle many at once.

    If `settled`, both sides have dropped the deliveries, and the handles are no longer valid.
    """

    link: Link
    deliveries: list[Delivery]
    outcome: Outcome
    settled: bool


@dataclass(slots=True, eq=False)
class ConnectionClosed:
    """The peer closed the connection, or broke a rule and we did; the last event of an engine.

    Every link and session ended with it, without an event of its own.
    """

    error: AmqpError | None
    by_peer: bool


Event = (
    Opened
    | SessionBegun
    | SessionEnded
    | Attached
    | Detached
    | Flowed
    | Transferred
    | Oversized
    | Disposed
    | ConnectionClosed
)
