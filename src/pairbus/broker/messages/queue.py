"""A queue: takes messages in, gives them out, and moves them by `lifecycle.py`'s decisions.

Each change goes to the store first and into effect when it is durable. Until then the message is
`busy`: nobody else touches it, and if the disk refuses, all is put back as it was. Callers hand in
`now_ms` (epoch milliseconds) and a callback that is told the error, or None.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import EntityDescription
from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.message import Message, State
from pairbus.broker.messages import forwarding, lifecycle
from pairbus.broker.messages.enqueue import Enqueuer
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.lifecycle import (
    DeadLetter,
    Decision,
    Defer,
    MailboxKind,
    MakeAvailable,
    Refuse,
    Remove,
    Settlement,
)
from pairbus.broker.messages.mailbox import Lock, Mailbox
from pairbus.broker.messages.sessions import Consumer, Session
from pairbus.broker.storage.store import Counters, StoredEntity
from pairbus.cost.meter import Tally

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

Done = Callable[..., None]
"""Called as `done(error, *arguments)` when the change is durable, or has failed."""


def lock_lost(what: str) -> AmqpError:
    return AmqpError(
        "com.microsoft:message-lock-lost",
        f"the lock of {what} is invalid: it has expired, or the message was settled already",
    )


class SessionSeeker(Protocol):
    def session_granted(self, session_id: str, *, now_ms: int) -> None: ...
    def session_timed_out(self) -> None: ...


class Queue:
    def __init__(
        self,
        namespace: Namespace,
        stored: StoredEntity,
        description: EntityDescription,
        counters: Sequence[Counters],
    ) -> None:
        self.namespace = namespace
        self.entity_id = stored.entity_id
        self.description = description
        self.tally: Tally = namespace.meter.of(description.name)
        self.lock_ms = 0
        self.set_description(description)
        self.created_ms: int = stored.created_ms
        self.updated_ms: int = stored.updated_ms
        self.accessed_ms: int = stored.accessed_ms
        """When it was last used; 0 for never."""
        self.available_ms = namespace.now_ms()
        """Since when it could be used as it is: idleness counts from here at the earliest."""
        self.mailboxes = {
            kind: Mailbox(
                kind,
                counters[kind.value],
                namespace.store,
                namespace.lock_tokens,
                has_sessions=description.requires_session and kind is MailboxKind.MAIN,
            )
            for kind in MailboxKind
        }
        self.main = self.mailboxes[MailboxKind.MAIN]
        self._counters = tuple(counters)
        self.saved_access_ms = stored.accessed_ms
        self.waiting: OrderedDict[SessionSeeker, int] = OrderedDict()
        """Those who asked for the next available session, and until when they wait."""
        self.enqueuer = Enqueuer(self)

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def size_bytes(self) -> int:
        """Dead letters count towards the quota, too."""
        main, dead, transfer = self._counters
        return main.bytes + dead.bytes + transfer.bytes

    @property
    def is_in_use(self) -> bool:
        """It is not idle: somebody is attached, it forwards, or something is still to come."""
        return (
            self.description.forward_to is not None
            or self.main.counters.scheduled > 0
            or any(mailbox.attached for mailbox in self.mailboxes.values())
        )

    @property
    def idle_since_ms(self) -> int:
        return max(self.accessed_ms, self.available_ms)

    # in

    def enqueue(
        self, batch: Sequence[IncomingMessage], done: Done, *arguments: Any, now_ms: int
    ) -> AmqpError | list[int]:
        """Take all of the batch or nothing: an error, or the sequence numbers given.

        `done` is called when the messages are durable; not if an error is returned.
        """
        self.accessed_ms = now_ms
        if self.description.enable_batched_operations:
            return self.enqueuer.enqueue(batch, done, arguments, now_ms=now_ms)
        # Each operation by itself: it shares its transaction with nothing else.
        self.namespace.committer.separate()
        result = self.enqueuer.enqueue(batch, done, arguments, now_ms=now_ms)
        self.namespace.committer.separate()
        return result

    def place(self, mailbox: Mailbox, message: Message) -> None:
        """Store a new message, which `arrived` will show once it is durable."""
        counters = mailbox.counters
        counters.add(message.state, message.size)
        if message.sequence > counters.last_sequence:  # dead letters bring their number along
            counters.last_sequence = message.sequence
        self.namespace.store.insert(counters, message)
        # The disk has it before we are told so. Held and busy, it is not read from there as well.
        message.busy = True
        mailbox.held[message.sequence] = message

    def unplace(self, mailbox: Mailbox, message: Message) -> None:
        """The disk refused it."""
        mailbox.counters.add(message.state, message.size, -1)
        mailbox.held.pop(message.sequence, None)

    def arrived(self, mailbox: Mailbox, message: Message) -> None:
        message.busy = False
        if message.state == State.ACTIVE:
            mailbox.arrive(message)
            self.namespace.wake(self, mailbox)
        else:
            mailbox.held.pop(message.sequence, None)
            if message.due_ms is not None:
                self.namespace.expect(message.due_ms)
        if message.expires_ms is not None:
            self.namespace.expect(message.expires_ms)

    # out

    def pump(self, mailbox: Mailbox, *, now_ms: int) -> None:
        """Give messages to those who wait with credit."""
        while (found := mailbox.next_delivery()) is not None:
            consumer, message = found
            if message.expires_ms is not None and lifecycle.is_expired(message, now_ms=now_ms):
                self.change(mailbox, message, lifecycle.expired(self.description), now_ms=now_ms)
            else:
                consumer.deliver(message, now_ms=now_ms)
                self.accessed_ms = now_ms

    def lock(
        self,
        mailbox: Mailbox,
        message: Message,
        session: Session | None,
        *,
        now_ms: int,
    ) -> Lock:
        until_ms = now_ms + self.lock_ms if session is None else session.until_ms
        lock = mailbox.lock(message, until_ms=until_ms, session=session)
        if session is None:
            self.namespace.expect(until_ms)
        return lock

    def remove(self, mailbox: Mailbox, message: Message, done: Done, *arguments: Any) -> None:
        """Receive-and-delete: gone from the disk before it is given out."""
        self._apply(mailbox, message, Remove(), done, arguments, now_ms=0)

    def put_back(self, mailbox: Mailbox, message: Message) -> None:
        """It was deleted to be given out, and could not be: it comes back with its old number."""
        message.body_id = None  # which may be gone by now
        self.place(mailbox, message)
        self.namespace.committer.when_durable(self._put_back, mailbox, message)

    def _put_back(self, error: Exception | None, mailbox: Mailbox, message: Message) -> None:
        if error is None:
            self.arrived(mailbox, message)
        else:
            self.unplace(mailbox, message)

    def settle(
        self,
        mailbox: Mailbox,
        lock: Lock,
        settlement: Settlement,
        done: Done,
        *arguments: Any,
        now_ms: int,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """The lock is valid: `mailbox.valid_lock` has said so."""
        self.accessed_ms = now_ms
        decision = lifecycle.settled(
            settlement,
            lock.message,
            self.description,
            mailbox.kind,
            reason=reason,
            description=description,
        )
        if properties and not isinstance(decision, Refuse):
            decision = self._refusal_of_properties(lock.message, properties) or decision
        if isinstance(decision, Refuse):
            done(decision.error, *arguments)
            return
        self.tally.settle += 1
        if settlement is Settlement.RELEASE:
            self._returned(mailbox, lock.message)
            done(None, *arguments)
        else:
            self._apply(
                mailbox,
                lock.message,
                decision,
                done,
                arguments,
                now_ms=now_ms,
                properties=properties,
            )

    def _refusal_of_properties(
        self, message: Message, properties: Mapping[str, Any]
    ) -> Refuse | None:
        """A receiver may not make a message larger than a sender could have."""
        grown = replace(message, lock=None)
        try:
            forwarding.add_properties(grown, properties)
        except (TypeError, ValueError) as error:
            said = f"the properties to modify cannot be stored: {error}"
            return Refuse(AmqpError("com.microsoft:argument-error", said))
        size = message.size + len(grown.bare) - len(message.bare)
        refused = lifecycle.refusal_of_message(self.description, size=size, session_id="")
        return None if refused is None else Refuse(refused)

    def change(
        self, mailbox: Mailbox, message: Message, decision: Decision, *, now_ms: int
    ) -> None:
        """A change that nobody waits for: a lock or a message has lapsed."""
        self._apply(mailbox, message, decision, _nobody_waits, (), now_ms=now_ms)

    def _apply(
        self,
        mailbox: Mailbox,
        message: Message,
        decision: Decision,
        done: Done,
        arguments: tuple[Any, ...],
        *,
        now_ms: int,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        if not self.description.enable_batched_operations:
            self.namespace.committer.separate()
        store, counters = self.namespace.store, mailbox.counters
        before = (message.state, message.delivery_count, message.bare, message.body_id)
        if properties:
            forwarding.add_properties(message, properties)
        placed: list[tuple[Queue, Mailbox, Message]] = []
        match decision:
            case Remove():
                counters.add(message.state, message.size, -1)
                store.delete(counters, message)
            case DeadLetter(reason, description):
                # First where it goes, then that it is gone: if the first fails, it is still here.
                placed = forwarding.dead_letter(self, message, reason, description, now_ms=now_ms)
                counters.add(message.state, message.size, -1)
                store.delete(counters, message)
            case MakeAvailable(count) | Defer(count):
                counters.add(message.state, message.size, -1)
                message.delivery_count = count
                if isinstance(decision, Defer):
                    message.state = int(State.DEFERRED)
                counters.add(message.state, message.size)
                if properties:
                    store.rewrite(counters, message)
                store.update(counters, message)
            case Refuse():
                raise AssertionError(decision)
        message.busy = True  # not before: what fails above must not lock it away
        self.namespace.committer.when_durable(
            self._decided, mailbox, message, decision, before, placed, done, arguments
        )
        if not self.description.enable_batched_operations:
            self.namespace.committer.separate()

    def _decided(
        self,
        error: Exception | None,
        mailbox: Mailbox,
        message: Message,
        decision: Decision,
        before: tuple[int, int, bytes, int | None],
        placed: list[tuple[Queue, Mailbox, Message]],
        done: Done,
        arguments: tuple[Any, ...],
    ) -> None:
        message.busy = False
        if error is not None:
            self._undo(mailbox, message, decision, before, placed)
            done(forwarding.cannot_store(error), *arguments)
            return
        was_active = before[0] == State.ACTIVE
        if isinstance(decision, MakeAvailable):
            self._returned(mailbox, message)
        else:
            mailbox.forget(message, was_active=was_active)
        for queue, target, copy in placed:
            queue.arrived(target, copy)
        done(None, *arguments)

    def _undo(
        self,
        mailbox: Mailbox,
        message: Message,
        decision: Decision,
        before: tuple[int, int, bytes, int | None],
        placed: list[tuple[Queue, Mailbox, Message]],
    ) -> None:
        for queue, target, copy in placed:
            queue.unplace(target, copy)
        if isinstance(decision, MakeAvailable | Defer):
            mailbox.counters.add(message.state, message.size, -1)
        message.state, message.delivery_count, message.bare, message.body_id = before
        mailbox.counters.add(message.state, message.size)
        if message.lock is None and message.state == State.ACTIVE:
            mailbox.give_back(message)

    def _returned(self, mailbox: Mailbox, message: Message) -> None:
        mailbox.unlock(message)
        if message.state == State.ACTIVE:
            mailbox.give_back(message)
            self.namespace.wake(self, mailbox)
        else:
            mailbox.held.pop(message.sequence, None)

    # time

    def expire_locks(self, *, now_ms: int) -> None:
        """Take back what was held too long."""
        for mailbox in self.mailboxes.values():
            for lock in mailbox.expired_locks(now_ms=now_ms):
                mailbox.unlock(lock.message)
                decision = lifecycle.lock_expired(lock.message, self.description, mailbox.kind)
                self.change(mailbox, lock.message, decision, now_ms=now_ms)
        if self.main.sessions is not None:
            for session in self.main.sessions.expired(now_ms=now_ms):
                self.release_session(session, has_expired=True, now_ms=now_ms)

    @property
    def has_deadlines(self) -> bool:
        """Does time matter to it at all? Asked of every queue at every look at the clock."""
        sessions = self.main.sessions
        return bool(
            self.main.locks
            or self.waiting
            or (sessions is not None and sessions.has_held)
            or self.mailboxes[MailboxKind.DEAD_LETTER].locks
            or self.mailboxes[MailboxKind.TRANSFER_DEAD_LETTER].locks
        )

    @property
    def next_lock_expiry_ms(self) -> int | None:
        times = [t for m in self.mailboxes.values() if (t := m.next_lock_expiry_ms) is not None]
        return min(times, default=None)

    def serve_waiting(self, *, now_ms: int) -> None:
        """Hand available sessions to those who wait for one, first come first served."""
        sessions = self.main.sessions
        while self.waiting and sessions is not None:
            session_id = sessions.next_available()
            if session_id is None:
                return
            seeker, _ = self.waiting.popitem(last=False)
            seeker.session_granted(session_id, now_ms=now_ms)

    def give_up_waiting(self, *, now_ms: int) -> None:
        for seeker in [seeker for seeker, end in self.waiting.items() if end <= now_ms]:
            del self.waiting[seeker]
            seeker.session_timed_out()

    @property
    def next_wait_end_ms(self) -> int | None:
        return min(self.waiting.values(), default=None)

    def release_session(self, session: Session, *, has_expired: bool, now_ms: int) -> None:
        """Closing a session counts no delivery; letting its lock expire counts one each (B-06).

        It is free for the next when all its messages are back in their places, or their order
        would depend on how fast the disk is.
        """
        locks = [lock for lock in self.main.locks.values() if lock.session is session]
        for lock in locks:
            if lock.message.busy:
                continue  # it was settled in time
            self.main.unlock(lock.message)
            if has_expired:
                decision = lifecycle.lock_expired(lock.message, self.description, MailboxKind.MAIN)
                self.change(self.main, lock.message, decision, now_ms=now_ms)
            else:
                self._returned(self.main, lock.message)
        holder = session.holder if has_expired else None
        session.is_ending = True
        if any(lock.message.busy for lock in locks):
            self.namespace.committer.when_durable(self._session_ended, session, holder)
        else:
            self._session_ended(None, session, holder)

    def _session_ended(
        self, error: Exception | None, session: Session, holder: Consumer | None
    ) -> None:
        """`holder`: who is to be told that the session is lost. On an error the messages are back
        as well, in the state they were in."""
        assert self.main.sessions is not None
        for lock in [lock for lock in self.main.locks.values() if lock.session is session]:
            self._returned(self.main, lock.message)  # its settlement failed on the disk
        self.main.sessions.let_go(session)
        if holder is not None:
            holder.session_lost()
        self.namespace.session_freed(self)

    def expire(self, mailbox: Mailbox, sequence: int, *, now_ms: int) -> bool:
        """A sweep found the message past its time; False if it is locked or on its way already."""
        message = mailbox.find(sequence)
        if message is None or message.busy or message.lock is not None:
            return False
        mailbox.held[sequence] = message  # so that nobody takes it while it is changed
        self.change(mailbox, message, lifecycle.expired(self.description), now_ms=now_ms)
        return True

    def activate(self, sequence: int, *, now_ms: int) -> None:
        """A scheduled message's time has come: it is enqueued as if it were sent now."""
        message = self.main.find(sequence)
        if message is not None and not message.busy:
            forwarding.activate(self, message, now_ms=now_ms)

    def set_description(self, description: EntityDescription) -> None:
        self.description = description
        before, self.lock_ms = self.lock_ms, milliseconds(description.lock_duration) or 0
        if self.lock_ms < before:
            for mailbox in self.mailboxes.values():
                mailbox.expect_unordered_locks()


def _nobody_waits(error: AmqpError | None) -> None:
    """The committer has logged a failure; the message is where it was."""
