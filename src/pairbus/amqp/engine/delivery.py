"""Deliveries: messages that were received, or sent and not yet settled, and how they are settled.

You may keep a delivery for any time. When it is settled, or its link has ended, its methods do
nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from pairbus.amqp.engine.session import Session
from pairbus.amqp.engine.wire import Wire
from pairbus.amqp.outcomes import (
    ACCEPTED,
    NO_OUTCOME,
    AmqpError,
    Outcome,
    OutcomeKind,
    rejected,
)
from pairbus.amqp.performatives import ACCEPTED_BY_RECEIVER, SETTLED_BY_SENDER, statement


class DeliveryLink(Protocol):
    """The part of a link that its deliveries use."""

    context: Any
    is_sender: bool
    session: Session
    _wire: Wire
    _unsettled: int


class Delivery:
    """One message in transit: received by us, or sent by us and not yet settled."""

    __slots__ = (
        "_number",
        "_shared",
        "context",
        "link",
        "outcome",
        "settled",
        "tag",
    )

    def __init__(self, link: DeliveryLink, number: int, tag: bytes) -> None:
        self.link = link
        self.tag = tag
        self.context: Any = None
        self.settled = False
        """By either side, or by the end of its link."""
        self.outcome: Outcome | None = None
        """Sent by us: the peer's first outcome."""

        self._number = number
        self._shared: SharedAnswer | None = None

    def accept(self) -> None:
        """Accept the delivery: send the outcome to the peer, and drop the delivery."""
        link = self.link
        if self._shared is not None or link.is_sender:
            self.settle(ACCEPTED)
        elif not self.settled:
            self.settled = True
            session = link.session
            wire = session._wire
            del session._received[self._number]
            link._unsettled -= 1
            wire.received_count -= 1
            wire.dispose(session.channel, ACCEPTED_BY_RECEIVER, self._number)

    def reject(self, error: AmqpError) -> None:
        self.settle(rejected(error))

    def settle(self, outcome: Outcome | None = None) -> None:
        """Send the peer this outcome, if there is one, and drop the delivery."""
        if self.settled:
            return
        link = self.link
        if self._shared is not None:
            self._forget()
            self._shared.settled(self, outcome)
        elif self._forget():
            said = statement(
                outcome or NO_OUTCOME,
                is_receiver=not link.is_sender,
                settled=True,
                tracked=link._wire.is_server,
            )
            link._wire.dispose(link.session.channel, said, self._number)

    def echo(self) -> None:
        """Sent by us: settle with the outcome type that the peer asked for, and no error."""
        if not self.settled and self._forget():
            link = self.link
            kind = self.outcome.kind if self.outcome else OutcomeKind.NONE
            said = SETTLED_BY_SENDER.get(kind, SETTLED_BY_SENDER[OutcomeKind.NONE])
            link._wire.dispose(link.session.channel, said, self._number)

    def _drop(self) -> None:
        """Its session is over and clears its tables."""
        wire = self.link._wire
        self.settled = True
        self.link._unsettled -= 1
        if self.link.is_sender:
            wire.sent_count -= 1
        else:
            wire.received_count -= 1

    def _forget(self) -> bool:
        """Settle it on our side. False if the peer does not know it yet."""
        self.settled = True
        link = self.link
        session, wire = link.session, link._wire
        if not link.is_sender:
            if self._shared is None:
                del session._received[self._number]
            wire.received_count -= 1
        elif self._number >= 0:
            del session._sent[self._number]
            wire.sent_count -= 1
        else:
            return False  # it waits for credit, and will be sent settled
        link._unsettled -= 1
        return True


class SharedAnswer:
    """Deliveries that have the same delivery-id. The official Python SDK sends them when threads
    or tasks share a connection.

    One answer counts for all of them. So nothing is sent until each of them is settled, and if one
    was refused, the refusal is sent: in doubt a message is sent twice, but none is lost.
    """

    __slots__ = ("_channel", "_number", "_outcome", "_received", "_wire", "waiting")

    def __init__(self, session: Session, first: Delivery) -> None:
        self.waiting = {first: None}  # a set that keeps the order
        self._outcome: Outcome | None = None
        self._number = first._number
        self._channel = session.channel
        self._received = session._received
        self._wire = session._wire
        self._received[self._number] = self
        first._shared = self

    def join(self, delivery: Delivery) -> None:
        self.waiting[delivery] = None
        delivery._shared = self

    def _drop(self) -> None:
        for delivery in self.waiting:
            delivery._drop()

    def settled(self, delivery: Delivery, outcome: Outcome | None) -> None:
        if outcome is not None and (self._outcome is None or self._outcome is ACCEPTED):
            self._outcome = outcome
        self.left(delivery)

    def left(self, delivery: Delivery) -> None:
        """This delivery no longer needs an answer."""
        del self.waiting[delivery]
        if self.waiting:
            return
        del self._received[self._number]
        if self._outcome is not None:
            said = statement(
                self._outcome, is_receiver=True, settled=True, tracked=self._wire.is_server
            )
            self._wire.dispose(self._channel, said, self._number)
