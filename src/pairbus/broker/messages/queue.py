"""A queue: accepts and delivers messages, and acts on the decisions of `lifecycle.py`.

Each change goes to the store first and takes effect when it is durable. Until then the message is
`busy`: nothing else changes it, and if the write fails, everything is restored. Callers pass
`now_ms` (epoch milliseconds) and a callback that gets the error, or None.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import EntityDescription
from pairbus.broker.message import Message, MessageState
from pairbus.broker.messages import forwarding, lifecycle
from pairbus.broker.messages.enqueue import Enqueuer
from pairbus.broker.messages.entity import Done, Entity, Placements, Runtime, cannot_store
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.lifecycle import Change, MailboxKind, Settlement
from pairbus.broker.messages.mailbox import Lock, Mailbox
from pairbus.broker.messages.sessions import Consumer, MessageSession
from pairbus.broker.storage.store import Counters, StoredEntity


def lock_lost(what: str) -> AmqpError:
    return AmqpError(
        "com.microsoft:message-lock-lost",
        f"the lock of {what} is invalid: it has expired, or the message was settled already",
    )


def _nobody_waits(error: AmqpError | None) -> None:
    """For changes after an expiry. If one fails, the committer has logged that."""


class Queue(Entity):
    enqueuer: Enqueuer

    def __init__(
        self,
        runtime: Runtime,
        stored: StoredEntity,
        description: EntityDescription,
        counters: Sequence[Counters],
    ) -> None:
        super().__init__(runtime, stored, description, counters)
        self.waiting: OrderedDict[Consumer, int] = OrderedDict()
        """Links that asked for the next available session, and until when they wait."""
        self.enqueuer = Enqueuer(self)

    # in

    def enqueue(
        self, batch: Sequence[IncomingMessage], done: Done, *arguments: Any, now_ms: int
    ) -> AmqpError | list[int]:
        """Accept all of the batch or nothing: an error, or the sequence numbers given.

        `done` is called when the messages are durable; not if an error is returned.
        """
        self.accessed_ms = now_ms
        self._separate()
        result = self.enqueuer.enqueue(batch, done, arguments, now_ms=now_ms)
        self._separate()
        return result

    def _separate(self) -> None:
        """Called before and after an operation, which may need a transaction of its own."""
        if not self.description.enable_batched_operations:
            self.runtime.committer.separate()

    # out

    def serve(self, mailbox: Mailbox, *, now_ms: int) -> None:
        if self.waiting:
            self.serve_waiting(now_ms=now_ms)
        self.pump(mailbox, now_ms=now_ms)

    def pump(self, mailbox: Mailbox, *, now_ms: int) -> None:
        """Give messages to consumers with credit."""
        while (found := mailbox.next_delivery()) is not None:
            consumer, messages = found
            alive: list[Message] = []
            expired: list[Message] = []
            for one in messages:
                (expired if lifecycle.is_expired(one, now_ms=now_ms) else alive).append(one)
            if alive:
                consumer.deliver(alive, now_ms=now_ms)
                self.accessed_ms = now_ms
            for one in expired:
                self.change(mailbox, one, lifecycle.expired(self.description), now_ms=now_ms)

    def lock(
        self,
        mailbox: Mailbox,
        messages: Sequence[Message],
        session: MessageSession | None,
        *,
        now_ms: int,
    ) -> list[Lock]:
        until_ms = now_ms + self.lock_ms if session is None else session.until_ms
        if session is None:
            self.runtime.expect(until_ms)
        return [mailbox.lock(one, until_ms=until_ms, session=session) for one in messages]

    def complete(
        self,
        mailbox: Mailbox,
        messages: Sequence[Message],
        done: Done,
        *arguments: Any,
        now_ms: int,
    ) -> None:
        """A receiver has processed messages whose locks it holds. `done` is called once, when all
        of them are gone, or with the error that kept them.
        """
        self.accessed_ms = now_ms
        self.tally.settle += len(messages)
        self.remove(mailbox, messages, done, *arguments)

    def remove(
        self, mailbox: Mailbox, messages: Sequence[Message], done: Done, *arguments: Any
    ) -> None:
        """Delete messages from the disk, and then from memory. With receive-and-delete, this comes
        before they are delivered.
        """
        self._separate()
        mailbox.counters.remove(messages)
        self.runtime.store.delete(mailbox.counters, messages)
        for message in messages:
            message.busy = True

        def removed(error: Exception | None) -> None:
            for message in messages:
                message.busy = False
                if error is None:
                    mailbox.forget(message, was_active=message.state == MessageState.ACTIVE)
                else:
                    mailbox.counters.add(message.state, message.size)
                    self._still_here(mailbox, message)
            done(None if error is None else cannot_store(error), *arguments)

        self.runtime.committer.when_durable(removed)
        self._separate()

    def put_back(self, mailbox: Mailbox, message: Message) -> None:
        """The message was deleted for delivery but could not be delivered. It is restored with its
        old number.
        """
        if self.runtime.find(self.name) is not self:
            return  # the queue was deleted meanwhile, and nobody would ever delete this row
        message.body_id = None  # the shared body may be gone by now
        self.place(mailbox, message)
        self.runtime.committer.when_durable(Placements([(self, mailbox, message)]).finish)

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
        """The caller has checked the lock with `mailbox.valid_lock`."""
        self.accessed_ms = now_ms
        decision = lifecycle.settled(
            settlement,
            lock.message,
            self.description,
            mailbox.kind,
            reason=reason,
            description=description,
        )
        if properties and not isinstance(decision, lifecycle.Refuse):
            mailbox.load(lock.message)
            decision = self._refusal_of_properties(lock.message, properties) or decision
        if isinstance(decision, lifecycle.Refuse):
            done(decision.error, *arguments)
            return
        self.tally.settle += 1
        if settlement is Settlement.RELEASE:
            self._returned(mailbox, lock.message)
            done(None, *arguments)
        else:
            self.change(
                mailbox,
                lock.message,
                decision,
                done,
                *arguments,
                now_ms=now_ms,
                properties=properties,
            )

    def _refusal_of_properties(
        self, message: Message, properties: Mapping[str, Any]
    ) -> lifecycle.Refuse | None:
        """A receiver must not make a message larger than a sender could."""
        grown = replace(message, lock=None)
        try:
            forwarding.add_properties(grown, properties)
        except (TypeError, ValueError) as error:
            text = f"the properties to modify cannot be stored: {error}"
            return lifecycle.Refuse(AmqpError("com.microsoft:argument-error", text))
        # `message.size` is what the sender sent: properties of before are only in the bytes.
        size = max(message.size + len(grown.bare) - len(message.bare), len(grown.bare))
        refused = lifecycle.refusal_of_message(self.description, size=size, session_id="")
        return None if refused is None else lifecycle.Refuse(refused)

    def change(
        self,
        mailbox: Mailbox,
        message: Message,
        decision: Change,
        done: Done = _nobody_waits,
        *arguments: Any,
        now_ms: int,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(decision, lifecycle.Remove):
            self.remove(mailbox, [message], done, *arguments)
            return
        self._separate()
        store, counters = self.runtime.store, mailbox.counters
        if properties or isinstance(decision, lifecycle.DeadLetter):
            mailbox.load(message)
        before = (message.state, message.delivery_count, message.bare, message.body_id)
        if properties:
            forwarding.add_properties(message, properties)
        placements = Placements()
        match decision:
            case lifecycle.DeadLetter(reason, description):
                # Dead-letter first, delete second: if the first raises, the message is still here.
                placements = forwarding.dead_letter(
                    self, message, reason, description, now_ms=now_ms
                )
                counters.add(message.state, message.size, -1)
                store.delete(counters, [message])
            case lifecycle.MakeAvailable(count) | lifecycle.Defer(count):
                counters.add(message.state, message.size, -1)
                message.delivery_count = count
                if isinstance(decision, lifecycle.Defer):
                    message.state = int(MessageState.DEFERRED)
                counters.add(message.state, message.size)
                if properties:
                    store.rewrite(counters, message)
                store.update(counters, message)
        message.busy = True  # not before: if a call above raises, the message must stay usable

        def changed(error: Exception | None) -> None:
            message.busy = False
            if error is not None:
                if not isinstance(decision, lifecycle.DeadLetter):
                    counters.add(message.state, message.size, -1)
                message.state, message.delivery_count, message.bare, message.body_id = before
                counters.add(message.state, message.size)
                self._still_here(mailbox, message)
            elif isinstance(decision, lifecycle.MakeAvailable):
                self._returned(mailbox, message)
            else:
                mailbox.forget(message, was_active=before[0] == MessageState.ACTIVE)
                if isinstance(decision, lifecycle.Defer):
                    self._may_expire(message)
            done(placements.finish(error), *arguments)

        self.runtime.committer.when_durable(changed)
        self._separate()

    def _still_here(self, mailbox: Mailbox, message: Message) -> None:
        """The disk has refused a change. A message that nobody has locked is free again."""
        if message.lock is None:
            self._freed(mailbox, message)

    def _returned(self, mailbox: Mailbox, message: Message) -> None:
        mailbox.unlock(message)
        self._freed(mailbox, message)
        self._may_expire(message)
        self.runtime.wake(self, mailbox)

    def _may_expire(self, message: Message) -> None:
        """Ask for a tick when it expires. While it was locked, that had no effect."""
        if message.expires_ms is not None:
            self.runtime.expect(message.expires_ms)

    def _freed(self, mailbox: Mailbox, message: Message) -> None:
        """Nobody holds it or changes it any more."""
        if message.state == MessageState.ACTIVE:
            mailbox.give_back(message)
        else:
            # The disk has it. In memory, it may lack its bytes.
            mailbox.held.pop(message.sequence, None)

    # time

    def expire_locks(self, *, now_ms: int) -> Iterator[None]:
        """Take back messages and sessions whose receivers did not settle or renew in time, one at
        each step.
        """
        for mailbox in self.mailboxes.values():
            for lock in mailbox.expired_locks(now_ms=now_ms):
                self._delivery_failed(mailbox, lock.message, now_ms=now_ms)
                yield
        if self.main.sessions is not None:
            for session in self.main.sessions.expired(now_ms=now_ms):
                self.release_session(session, has_expired=True, now_ms=now_ms)
                yield

    def _delivery_failed(self, mailbox: Mailbox, message: Message, *, now_ms: int) -> None:
        decision = lifecycle.delivery_failed(message, self.description, mailbox.kind)
        self.change(mailbox, message, decision, now_ms=now_ms)
        mailbox.unlock(message)  # not before: if the call above raises, a later tick tries again

    def move_deadlines(self, step_ms: int) -> None:
        """The clock was set: locks and waiting links keep the time that they have left."""
        for mailbox in self.mailboxes.values():
            mailbox.move_locks(step_ms)
        for seeker in self.waiting:
            self.waiting[seeker] += step_ms

    @property
    def has_deadlines(self) -> bool:
        """Whether it has locks or waiting links. Called for every entity on every tick."""
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
        """Grant available sessions to the links that wait for one, first come first served."""
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

    def release_session(self, session: MessageSession, *, has_expired: bool, now_ms: int) -> None:
        """Closing a session counts no delivery; letting its lock expire counts one each (B-06).

        The next receiver gets it when all its messages are back in their places. Otherwise their
        order would depend on how fast the disk is.
        """
        if session.is_ending:
            return  # its lock has expired, and now its link is closed: `_session_ended` follows
        locks = [lock for lock in self.main.locks.values() if lock.session is session]
        for lock in locks:
            if lock.message.busy:
                continue  # it was settled in time
            if has_expired:
                self._delivery_failed(self.main, lock.message, now_ms=now_ms)
            else:
                self._returned(self.main, lock.message)
        holder = session.holder if has_expired else None
        session.is_ending = True
        if any(lock.message.busy for lock in locks):
            self.runtime.committer.when_durable(self._session_ended, session, holder)
        else:
            self._session_ended(None, session, holder)

    def _session_ended(
        self, error: Exception | None, session: MessageSession, holder: Consumer | None
    ) -> None:
        """`holder` is notified that the session is lost, unless its link was closed meanwhile.

        After an error the messages are back as well, in the state they were in.
        """
        assert self.main.sessions is not None
        for lock in [lock for lock in self.main.locks.values() if lock.session is session]:
            self._returned(self.main, lock.message)  # its settlement failed on the disk
        self.main.sessions.release(session)
        if holder is not None and holder.session is session:
            holder.session_lost()
        if self.waiting:
            self.runtime.wake(self, self.main)

    def expire(self, mailbox: Mailbox, sequence: int, *, now_ms: int) -> bool:
        """Handles an expired message that the sweep found. Returns False if it is locked or being
        changed.
        """
        message = mailbox.find(sequence)
        if message is None or message.busy or message.lock is not None:
            return False
        mailbox.held[sequence] = message  # so that nobody receives it while it is changed
        self.change(mailbox, message, lifecycle.expired(self.description), now_ms=now_ms)
        return True

    def activate(self, sequence: int, *, now_ms: int) -> bool:
        """A scheduled message is due. Returns False if it has to wait."""
        message = self.main.find(sequence)
        if message is None or message.busy:
            return False
        forwarding.activate(self, message, now_ms=now_ms)
        return True
