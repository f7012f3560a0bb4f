"""The links of a client: what each of them may do, the peer's answers, and the client's errors.

Nothing here blocks. A caller checks a link's attributes to see the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pairbus.amqp.engine import Delivery, Link, SettlementGroup
from pairbus.amqp.frames import SERIAL
from pairbus.amqp.outcomes import AmqpError, Outcome

MessageFactory = Callable[["ClientReceiverLink", int, bytes, bytes], Any]
"""Makes the object for a message from its link, delivery-id, tag and bytes."""


class ClientError(Exception):
    """What a call on a connection or link raises."""

    def __init__(self, message: str, error: AmqpError | None = None) -> None:
        super().__init__(f"{message}: {error}" if error else message)
        self.error = error
        """What the peer said."""


class ConnectionLost(ClientError):
    """The connection could not be opened, or it has ended: its links are gone."""


class LinkLost(ClientError):
    """The peer refused or ended one link. The connection stays open."""


class PeerSilent(ClientError, TimeoutError):
    """No answer came in time. It is unknown whether the peer has handled the request."""


class ClientLink:
    """What both kinds have in common."""

    def __init__(self, link: Link) -> None:
        self._link = link
        link.context = self
        self.attached = False
        """Whether the peer has accepted the link."""
        self.error: AmqpError | None = None
        """The peer's reason for the end of the link, if it gave one."""

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def is_over(self) -> bool:
        """Detached by either side, or gone with its session or connection."""
        return not self._link.alive

    @property
    def alive(self) -> bool:
        return self.attached and self._link.alive

    @property
    def is_detached(self) -> bool:
        """By both sides."""
        return self._link.is_detached

    @property
    def credit(self) -> int:
        """How many messages the sender (this side or the peer) may still send."""
        return self._link.credit

    @property
    def size_max(self) -> int:
        """The peer's limit for a message. 0: it gave none."""
        return self._link.remote.max_message_size

    @property
    def properties(self) -> Mapping[str, Any]:
        """The peer's."""
        return self._link.remote.properties

    def check(self) -> None:
        """Raises LinkLost if the link has ended."""
        if not self._link.alive:
            raise LinkLost(f"link {self.name!r} was ended", self.error)

    def detach(self) -> None:
        """Detach the link for good. It ends at once; the peer's answer comes later."""
        self._link.close()


class ClientReceiverLink(ClientLink):
    def __init__(self, link: Link, make: MessageFactory) -> None:
        super().__init__(link)
        self._make = make
        self._wants_credit_back = False
        self.inbox: list[Any] = []
        """The messages that have arrived and were not taken. The caller may replace the list."""
        self.arrived_bytes = 0
        """The size of all messages so far."""
        link.receive_into(self._arrived)

    def _arrived(self, number: int, tag: bytes, data: bytes) -> None:
        self.inbox.append(self._make(self, number, tag, data))
        self.arrived_bytes += len(data)

    def grant(self, credit: int) -> None:
        """Set the peer's credit. This replaces the earlier value."""
        self._wants_credit_back = False
        self._link.set_credit(credit)

    def drain(self) -> None:
        """Take the credit back. Messages in transit still arrive, then `credit` is 0."""
        if self.credit and not self._wants_credit_back:
            self._wants_credit_back = True
            self._link.request_drain()

    def settle(self, ids: Iterable[int], outcome: Outcome) -> SettlementGroup:
        """Settle deliveries by their ids; gaps are allowed.

        The peer answers, and the `SettlementGroup` counts what is left to answer. If the link is
        over, nothing is sent and nothing is left.
        """
        if self.is_over:
            return SettlementGroup(outcome.kind)
        return self._link.session.settle(ids, outcome)


class ClientSenderLink(ClientLink):
    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._tag = 0

    def send(self, payload: bytes, *, message_format: int = 0) -> Delivery:
        """Check `credit` first. The delivery's `outcome` is set when the peer has answered."""
        self.check()
        self._tag = self._tag + 1 & SERIAL
        tag = self._tag.to_bytes(4, "big")
        return self._link.send(tag, payload, message_format=message_format)
