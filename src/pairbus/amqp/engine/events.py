"""The events of an `Engine`: one small object for each action of the peer.

The reader dispatches on `type(event)`. Events hold handles (`Link`, `Delivery`, `Session`), so an
event may be read long after its link is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from pairbus.amqp.engine.link import Delivery, Link
from pairbus.amqp.engine.session import Session
from pairbus.amqp.outcomes import AmqpError, Outcome


class _Event:
    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r:.60}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


# Plain slotted classes and not dataclasses: a frozen dataclass costs three times as much to make,
# and one of these is made for every transfer and every disposition.


class Opened(_Event):
    """The peer opened the connection; in the server role it has been answered already."""

    __slots__ = ("container_id", "hostname", "properties")

    def __init__(
        self, container_id: str, hostname: str | None, properties: Mapping[str, object]
    ) -> None:
        self.container_id = container_id
        self.hostname = hostname
        self.properties = properties


class SessionBegun(_Event):
    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session


class SessionEnded(_Event):
    """The peer ended a session. Its links have ended with it; a `Detached` for each came before
    this.
    """

    __slots__ = ("error", "session")

    def __init__(self, session: Session, error: AmqpError | None) -> None:
        self.session = session
        self.error = error


class Attached(_Event):
    """The peer attached a link, to be accepted or refused now or later.

    In the client role also: the peer answered our attach, which needs no reaction. A refused attach
    comes as `Attached` with `link.remote.is_refusal`, then `Detached` with the error.
    """

    __slots__ = ("link",)

    def __init__(self, link: Link) -> None:
        self.link = link


class Detached(_Event):
    """The peer detached the link. For a link that we closed first, there is no event.

    The answer is on its way; its deliveries can no longer be settled.
    """

    __slots__ = ("closed", "error", "link")

    def __init__(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        self.link = link
        self.closed = closed
        self.error = error


class Flowed(_Event):
    """Credit or drain changed on a link that we send on."""

    __slots__ = ("link",)

    def __init__(self, link: Link) -> None:
        self.link = link


class Transferred(_Event):
    """One complete message arrived; aborted ones never surface."""

    __slots__ = ("data", "delivery", "link", "message_format", "settled")

    def __init__(
        self, link: Link, delivery: Delivery, data: bytes, message_format: int, settled: bool
    ) -> None:
        self.link = link
        self.delivery = delivery
        self.data = data
        self.message_format = message_format
        self.settled = settled


class Oversized(_Event):
    """A message was larger than its link allows. The engine has rejected it already."""

    __slots__ = ("error", "link")

    def __init__(self, link: Link, error: AmqpError) -> None:
        self.link = link
        self.error = error


class Disposed(_Event):
    """The peer sent the outcome of deliveries that we sent; at most once, then their settlement.

    They are of one link, in the order in which they were sent. A peer settles many at once.

    If `settled`, both sides have dropped the deliveries, and the handles are dead. For deliveries
    that we received, this is the answer to our `update`.
    """

    __slots__ = ("deliveries", "outcome", "settled")

    def __init__(self, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        self.deliveries = deliveries
        self.outcome = outcome
        self.settled = settled


class ConnectionClosed(_Event):
    """The peer closed the connection, or broke a rule and we did; the last event of an engine.

    Every link and session ended with it, without an event of its own.
    """

    __slots__ = ("by_peer", "error")

    def __init__(self, error: AmqpError | None, by_peer: bool) -> None:
        self.error = error
        self.by_peer = by_peer


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
