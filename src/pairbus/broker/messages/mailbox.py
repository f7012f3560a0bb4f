"""One of an entity's three mailboxes (messages, dead letters, transfer dead letters) in memory.

It knows which messages are available, which are locked, and which consumers have credit. Callers
pass the time, and it writes nothing: `queue.py` decides and stores. Times are epoch milliseconds.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pairbus.broker.message import Message
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.sessions import Consumer, MessageSession, Sessions
from pairbus.broker.messages.window import Window
from pairbus.broker.storage.store import Counters, Store

_TOKEN_BYTES: Final = 16
_TOKENS_AT_ONCE: Final = 256


@dataclass(slots=True, eq=False)
class Lock:
    """A receiver's lock on a message."""

    token: bytes
    """It is the delivery tag: a GUID in .NET's order."""
    message: Message
    until_ms: int
    session: MessageSession | None


class LockTokens:
    """Random lock tokens. They are made many at a time, which is cheaper."""

    __slots__ = ("_stock",)

    def __init__(self) -> None:
        self._stock: list[bytes] = []

    def next(self) -> bytes:
        if not self._stock:
            noise = os.urandom(_TOKEN_BYTES * _TOKENS_AT_ONCE)
            self._stock = [noise[n : n + 16] for n in range(0, len(noise), _TOKEN_BYTES)]
        return self._stock.pop()


class Mailbox:
    def __init__(
        self,
        kind: MailboxKind,
        counters: Counters,
        store: Store,
        tokens: LockTokens,
        *,
        has_sessions: bool,
    ) -> None:
        self.kind = kind
        self.counters = counters
        self.held: dict[int, Message] = {}
        """Messages in memory by number: available, locked, or being changed. What is held is not
        read from the disk again, so there is one object for each message, with its lock.
        """
        self.locks: OrderedDict[bytes, Lock] = OrderedDict()  # soonest to expire first
        self._unordered_until_ms = 0
        self.attached = 0  # receivers
        self._store = store
        self._tokens = tokens
        # Consumers with credit; the next to be served comes first.
        self._with_credit: OrderedDict[Consumer, None] = OrderedDict()
        self._window = Window(
            self.held,
            lambda after, upto, count: store.read_active(
                counters.mailbox_id, after=after, upto=upto, count=count
            ),
            last_committed=counters.last_sequence,
        )
        self.sessions: Sessions | None = None
        if has_sessions:
            self.sessions = Sessions(
                store.session_counts(counters.mailbox_id), self._new_session_window
            )

    # messages

    def next_sequence(self) -> int:
        self.counters.last_sequence += 1
        return self.counters.last_sequence

    def arrive(self, message: Message) -> None:
        """An active message is durable now."""
        wanted = self.attached > 0
        if self.sessions is not None and message.session_id is not None:
            session = self.sessions.count(message.session_id, +1)
            if session.window is not None and session.holder is not None:
                session.window.arrive(message, wanted=wanted)
                self.has_credit(session.holder)
            else:
                self.held.pop(message.sequence, None)
            if message.sequence > self._window.last_committed:
                self._window.last_committed = message.sequence
        else:
            self._window.arrive(message, wanted=wanted)

    def give_back(self, message: Message) -> None:
        """The message is available again, in its old place."""
        if self.sessions is not None and message.session_id is not None:
            session = self.sessions.find(message.session_id)
            if session is not None and session.window is not None and session.holder is not None:
                session.window.give_back(message)
                self.has_credit(session.holder)
            else:
                self.held.pop(message.sequence, None)  # the disk has the messages of free sessions
        else:
            self._window.give_back(message)

    def forget(self, message: Message, *, was_active: bool) -> None:
        """The message is no longer available here, and that is durable."""
        self.held.pop(message.sequence, None)
        self.unlock(message)
        if was_active and self.sessions is not None and message.session_id is not None:
            self.sessions.count(message.session_id, -1)

    def take(self, session: MessageSession | None, count: int) -> list[Message]:
        if session is not None and session.is_ending:
            return []  # the receiver has lost the session
        window = self._window if session is None else session.window
        return [] if window is None else window.take(count)

    def find(self, sequence: int) -> Message | None:
        return self.held.get(sequence) or self._store.read_one(self.counters.mailbox_id, sequence)

    def load(self, message: Message) -> None:
        """Read the bytes of a large message that a receiver has, before they are used or moved."""
        if not message.bare:
            stored = self._store.read_one(self.counters.mailbox_id, message.sequence)
            assert stored is not None, f"message {message.sequence} is locked but not stored"
            message.bare = stored.bare

    # locks

    def lock(self, message: Message, *, until_ms: int, session: MessageSession | None) -> Lock:
        token = self._tokens.next()
        lock = Lock(token, message, until_ms, session)
        message.lock = token
        self.held[message.sequence] = message
        self.locks[token] = lock
        return lock

    def valid_lock(self, token: bytes, *, now_ms: int) -> Lock | None:
        """None also for a lock whose message is being settled: a second settlement comes too late,
        although the first one may still fail.
        """
        lock = self.locks.get(token)
        if lock is None or lock.message.busy:
            return None
        until_ms = lock.until_ms if lock.session is None else lock.session.until_ms
        return lock if until_ms > now_ms else None

    def unlock(self, message: Message) -> None:
        if message.lock is not None:
            self.locks.pop(message.lock, None)
            message.lock = None

    def renew(self, lock: Lock, *, until_ms: int) -> None:
        lock.until_ms = until_ms
        self.locks.move_to_end(lock.token)

    def expired_locks(self, *, now_ms: int) -> list[Lock]:
        """Without the messages of sessions: those are held until their session's lock expires."""
        found = []
        is_unordered = now_ms < self._unordered_until_ms
        if not is_unordered:
            self._unordered_until_ms = 0
        for lock in self.locks.values():
            if lock.session is None:
                if lock.until_ms <= now_ms:
                    if not lock.message.busy:
                        found.append(lock)
                elif not is_unordered:
                    break
        return found

    def expect_unordered_locks(self) -> None:
        """Locks are shorter from now on, so existing ones may expire after later ones."""
        self._unordered_until_ms = max((lock.until_ms for lock in self.locks.values()), default=0)

    def move_locks(self, step_ms: int) -> None:
        """The clock was set: every lock keeps the time that it has left."""
        for lock in self.locks.values():
            lock.until_ms += step_ms
        self._unordered_until_ms += step_ms if self._unordered_until_ms else 0
        if self.sessions is not None:
            self.sessions.move_locks(step_ms)

    @property
    def next_lock_expiry_ms(self) -> int | None:
        if self.sessions is not None:
            return self.sessions.next_lock_expiry_ms
        ends = (lock.until_ms for lock in self.locks.values() if not lock.message.busy)
        return min(ends, default=None) if self._unordered_until_ms else next(ends, None)

    # consumers

    def attach(self) -> None:
        self.attached += 1

    def detach(self, consumer: Consumer) -> None:
        self.attached -= 1
        self._with_credit.pop(consumer, None)
        if self.attached == 0:
            self._window.clear()  # there is no receiver, and the disk has the messages

    def has_credit(self, consumer: Consumer) -> None:
        """The consumer has new credit, or room in its buffers again."""
        self._with_credit.setdefault(consumer, None)

    def next_delivery(self) -> tuple[Consumer, list[Message]] | None:
        """The next messages and their consumer. If several consumers have credit, they are served
        in turn, with one message each.
        """
        waiting = self._with_credit
        while waiting:  # each round delivers, or removes one consumer
            consumer = next(iter(waiting))
            room = consumer.room()
            if room < 1:
                del waiting[consumer]
                continue
            messages = self.take(consumer.session, room if len(waiting) == 1 else 1)
            if messages:
                if len(waiting) > 1:
                    waiting.move_to_end(consumer)
                return consumer, messages
            if consumer.session is None:
                return None  # all consumers receive from the same window
            del waiting[consumer]  # its session has no more messages; `arrive` brings it back
        return None

    def _new_session_window(self, session_id: str) -> Window:
        return Window(
            self.held,
            lambda after, upto, count: self._store.read_session(
                self.counters.mailbox_id, session_id, after=after, upto=upto, count=count
            ),
            last_committed=self._window.last_committed,
        )
