"""The link of a client that receives: from credit to messages that are locked or deleted, and from
outcomes to settlements.

It answers a settlement only when that is durable. `Poll` counts what the client asked for in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pairbus.amqp.engine import Delivery, Disposed, Link
from pairbus.amqp.outcomes import AmqpError, Outcome, OutcomeKind, rejected
from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.kinds import Operation
from pairbus.broker.links.host import LinkHost
from pairbus.broker.links.paths import Path
from pairbus.broker.links.request_codec import ticks
from pairbus.broker.message import LARGE_FROM_BYTES, Message, stamped
from pairbus.broker.messages.lifecycle import Settlement
from pairbus.broker.messages.mailbox import Lock, Mailbox
from pairbus.broker.messages.queue import Queue, lock_lost
from pairbus.broker.messages.sessions import MessageSession
from pairbus.cost.meter import UNIT_BYTES, Tally, units_of

SESSION_FILTER: Final = "com.microsoft:session-filter"
_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
_TIMEOUT: Final = "com.microsoft:timeout"
_WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
_SESSION_WAIT_MS: Final = 60_000
_DEAD_LETTER_REASON: Final = "DeadLetterReason"
_DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

_SETTLEMENTS: Final = {
    OutcomeKind.ACCEPTED: Settlement.COMPLETE,
    OutcomeKind.RELEASED: Settlement.RELEASE,
    OutcomeKind.REJECTED: Settlement.DEAD_LETTER,
    # Settled without an outcome: the receiver released it and did not say that it processed it.
    OutcomeKind.NONE: Settlement.RELEASE,
}


class ReceiverLink:
    """The link of a client that receives, from a whole mailbox or from one session."""

    right = Right.LISTEN

    def __init__(
        self,
        connection: LinkHost,
        link: Link,
        queue: Queue,
        mailbox: Mailbox,
        path: Path,
    ) -> None:
        self.connection = connection
        self.link = link
        self.queue = queue
        self.mailbox = mailbox
        self.path = path
        self.session: MessageSession | None = None
        # Receive-and-delete: the delivery is settled when it is sent.
        self._deletes = link.remote.snd_settle_mode == 1
        self._deleting = self._deleting_bytes = 0
        """Messages whose deletion is not durable yet. They are sent when it is."""
        self._tally = queue.tally
        self._poll = Poll(queue.tally)
        self._has_delivered = False
        """Since the last flow."""
        self._has_flowed_early = False
        """The client has granted credit while it waited for a session."""
        link.context = self

    # attach

    def open(self) -> None:
        self.link.accept()
        self.mailbox.attach()

    def open_session(self, session_id: str | None, *, now_ms: int) -> None:
        """Open the named session, or wait for the next available one.

        A session that another receiver holds is refused here, and not by `attach`, which logs what
        it refuses: receivers that compete for a session are nothing unusual.
        """
        sessions = self.mailbox.sessions
        assert sessions is not None
        if session_id is None:
            asked = self.link.remote.properties.get(_TIMEOUT)
            wait_ms = int(asked) if isinstance(asked, int) and asked > 0 else _SESSION_WAIT_MS
            self.queue.waiting[self] = now_ms + wait_ms
            self.queue.runtime.expect(now_ms + wait_ms)
            self.queue.serve_waiting(now_ms=now_ms)
        elif sessions.is_held(session_id):
            self.connection.end(
                self.link,
                AmqpError(
                    "com.microsoft:session-cannot-be-locked",
                    f"session {session_id!r} of {self.queue.description} is locked by another "
                    "receiver",
                ),
            )
        else:
            self.session_granted(session_id, now_ms=now_ms)

    def session_granted(self, session_id: str, *, now_ms: int) -> None:
        assert self.mailbox.sessions is not None
        until_ms = now_ms + self.queue.lock_ms
        self.session = self.mailbox.sessions.hold(session_id, self, until_ms=until_ms)
        self.queue.runtime.expect(until_ms)
        self.mailbox.attach()
        self.link.accept(
            filter={SESSION_FILTER: session_id}, properties={_LOCKED_UNTIL: ticks(until_ms)}
        )
        if self._has_flowed_early:
            self.flowed(now_ms=now_ms)
        self.connection.has_output()

    def session_timed_out(self) -> None:
        self._tally.empty_receive += 1
        self.connection.end(
            self.link,
            AmqpError(_TIMEOUT, f"no session of {self.queue.description} became available in time"),
        )

    def session_lost(self) -> None:
        """The session's lock has expired. The queue has taken the messages back already."""
        assert self.session is not None
        name = self.session.session_id
        self.session = None  # so that `closed` does not release it once more
        self.mailbox.detach(self)
        self.connection.end(
            self.link,
            AmqpError(
                "com.microsoft:session-lock-lost",
                f"the lock of session {name!r} of {self.queue.description} has expired",
            ),
        )

    def closed(self) -> None:
        """The link is gone. A session is free at once; locks of single messages keep running."""
        self.queue.waiting.pop(self, None)
        self._poll.end(delivered=self._has_delivered)
        if self.session is not None:
            session, self.session = self.session, None
            self.mailbox.detach(self)
            self.queue.release_session(
                session, has_expired=False, now_ms=self.queue.runtime.now_ms()
            )
        elif self.mailbox.sessions is None:
            self.mailbox.detach(self)

    # delivering

    @property
    def _is_waiting(self) -> bool:
        """For a session. Until then, the client's attach is not answered."""
        return self.session is None and self.mailbox.sessions is not None

    def flowed(self, *, now_ms: int) -> None:
        if self._is_waiting:
            self._has_flowed_early = True
            return
        credit = self.link.credit
        if credit > 0:
            refused = self.connection.namespace.fault_refusal(self.path.entity, Operation.RECEIVE)
            if refused is not None:
                self.connection.end(self.link, refused)
                return
        self._poll.granted(credit, delivered=self._has_delivered, drain=self.link.drain)
        self._has_delivered = False
        if credit > 0:
            self.mailbox.has_credit(self)
            self.queue.pump(self.mailbox, now_ms=now_ms)
        self._answer_drain()

    def _answer_drain(self) -> None:
        if self._deleting == 0 and self.link.drain:
            self._poll.end(delivered=self._has_delivered)
            self.link.drained()
            self.connection.has_output()

    def room(self) -> int:
        connection = self.connection
        if (
            connection.is_congested
            or self._is_waiting
            # Messages that wait for the disk, or for the client's session window, wait in memory.
            or self.link.session.outgoing_bytes + self._deleting_bytes >= _WINDOW_BYTES_MAX
            or (self.session is not None and self.session.is_ending)
        ):
            return 0
        return min(self.link.credit - self._deleting, connection.deliveries_max(self.path))

    def deliver(self, messages: Sequence[Message], *, now_ms: int) -> None:
        self._has_delivered = True
        if self._deletes:
            for message in messages:
                self._delete(message)
            return
        link, output_bytes = self.link, 0
        for lock in self.queue.lock(self.mailbox, messages, self.session, now_ms=now_ms):
            message = lock.message
            data = stamped(message, locked_until_ms=lock.until_ms)
            size = len(data)
            output_bytes += size
            self._tally.receive += 1 if size <= UNIT_BYTES else units_of(size)
            link.send(lock.token, data, context=lock)
            if size > LARGE_FROM_BYTES:
                message.bare = b""
        self.connection.count_output(output_bytes, self.path)

    def _delete(self, message: Message) -> None:
        """Deleted first, and sent when that is durable. If the process dies in between, the message
        is lost, which this mode allows; the other order could deliver it twice.
        """
        self._deleting += 1
        self._deleting_bytes += message.size
        self.queue.remove(self.mailbox, [message], self._deleted, message)

    def _deleted(self, error: AmqpError | None, message: Message) -> None:
        self._deleting -= 1
        self._deleting_bytes -= message.size
        if error is None:
            if self.link.alive:
                data = stamped(message)
                self._tally.receive += units_of(len(data))
                self.link.send(message.sequence.to_bytes(8, "big"), data, settled=True)
                self.connection.count_output(len(data), self.path)
                if self._deleting == 0 and self.link.credit > 0:
                    # Their bytes may have held back the next message.
                    self.mailbox.has_credit(self)
                    self.queue.pump(self.mailbox, now_ms=self.queue.runtime.now_ms())
            else:
                # The receiver left in between and never got the message, so it is not lost.
                self.queue.put_back(self.mailbox, message)
        self._answer_drain()

    # settling

    def disposed(self, event: Disposed, *, now_ms: int) -> None:
        outcome = event.outcome
        kind = outcome.kind
        if kind is OutcomeKind.MODIFIED:
            settlement = Settlement.DEFER if outcome.undeliverable else Settlement.ABANDON
        elif kind is OutcomeKind.NONE and not event.settled:
            return
        elif kind in _SETTLEMENTS:
            settlement = _SETTLEMENTS[kind]
        else:
            return
        deliveries = [
            delivery for delivery in event.deliveries if self._may_settle(delivery, event, now_ms)
        ]
        if settlement is not Settlement.COMPLETE:
            for delivery in deliveries:
                self._settle_with_details(delivery, settlement, outcome, event, now_ms=now_ms)
        elif self.queue.description.enable_batched_operations:
            self._complete(deliveries, event, now_ms)
        else:
            for delivery in deliveries:
                self._complete([delivery], event, now_ms)

    def _complete(self, deliveries: list[Delivery], event: Disposed, now_ms: int) -> None:
        """A receiver names many messages in one range. They are deleted and answered together."""
        messages = [delivery.context.message for delivery in deliveries]
        if messages:
            self.queue.complete(
                self.mailbox, messages, self._settled, deliveries, event.settled, now_ms=now_ms
            )

    def _may_settle(self, delivery: Delivery, event: Disposed, now_ms: int) -> bool:
        """Whether the receiver still holds the lock. If not, it gets the reason."""
        lock: Lock = delivery.context
        error = self.connection.namespace.fault_refusal(self.path.entity, Operation.SETTLE)
        if error is None:
            if self.mailbox.valid_lock(lock.token, now_ms=now_ms) is lock:
                return True
            if event.settled:
                return False
            error = self._lost(lock)
        delivery.settle(rejected(error))
        self.connection.has_output()
        return False

    def _settle_with_details(
        self,
        delivery: Delivery,
        settlement: Settlement,
        outcome: Outcome,
        event: Disposed,
        *,
        now_ms: int,
    ) -> None:
        """Abandon, defer and dead-letter may carry properties; dead-letter also its reason."""
        if outcome.error is not None:
            properties: dict[str, Any] = dict(outcome.error.info)
            reason = properties.pop(_DEAD_LETTER_REASON, None)
            description = (
                properties.pop(_DEAD_LETTER_DESCRIPTION, None) or outcome.error.description
            )
        else:
            properties, reason, description = dict(outcome.annotations or {}), None, None
        self.queue.settle(
            self.mailbox,
            delivery.context,
            settlement,
            self._settled,
            [delivery],
            event.settled,
            now_ms=now_ms,
            reason=None if reason is None else str(reason),
            description=str(description) if description else None,
            properties=properties or None,
        )

    def _settled(self, error: AmqpError | None, deliveries: list[Delivery], by_peer: bool) -> None:
        # Answer only when it is durable: if the process dies before, the messages are delivered
        # again.
        if not by_peer:
            for delivery in deliveries:
                if error is None:
                    delivery.echo()
                else:
                    delivery.settle(rejected(error))
            self.connection.has_output()
        if self.link.credit > 0:
            # The limit of unsettled deliveries may have held back the next message.
            self.mailbox.has_credit(self)
            self.queue.runtime.wake(self.queue, self.mailbox)

    def _lost(self, lock: Lock) -> AmqpError:
        if lock.session is not None:
            return AmqpError(
                "com.microsoft:session-lock-lost",
                f"the lock of session {lock.session.session_id!r} of {self.queue.name!r} is lost",
            )
        return lock_lost(f"message {lock.message.wire_sequence} of {self.queue.description}")


class Poll:
    """Counts the receives of one link that ended without a message.

    A receiver polls by granting credit. The poll ends when the receiver takes the credit back, when
    it detaches, and when it grants the same credit again. If nothing was delivered, that is one
    receive, as it is to the service. Both ends of a link can see all of this, so a receiver that
    counts by the same rule comes to the same number.
    """

    __slots__ = ("_credit", "_is_open", "_tally", "_was_answered")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._is_open = False
        self._was_answered = False
        self._credit = 0

    def granted(self, credit: int, *, delivered: bool, drain: bool) -> None:
        """`credit` counts from now; 0 ends the poll. `delivered`: since the last call."""
        if credit <= 0:
            self.end(delivered=delivered)
        elif not self._is_open:
            self._is_open, self._credit = True, credit
        elif delivered:
            self._was_answered, self._credit = True, credit
        elif not drain:
            # More credit after a delivery continues the same poll: messages for the earlier
            # credit may still have been on their way when the receiver granted more.
            if not self._was_answered or credit <= self._credit:
                self._tally.empty_receive += 1
            self._credit = credit

    def end(self, *, delivered: bool) -> None:
        if self._is_open and not delivered and not self._was_answered:
            self._tally.empty_receive += 1
        self._is_open = self._was_answered = False
