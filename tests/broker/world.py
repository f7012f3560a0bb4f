"""A namespace to test: a real data file, a clock moved by hand, a loop whose timers never fire.

`World` has the verbs of the tests (send, receive, settle, pass time, crash). It waits until a
change is durable, unless a test wants to look in between.
"""

import asyncio
import os
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pairbus.amqp.codec.sections import read_application_properties, slice_message
from pairbus.amqp.codec.types import Symbol, Timestamp, UInt
from pairbus.amqp.codec.values import encode, encode_list
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.links import requests
from pairbus.broker.links.operation import Context
from pairbus.broker.links.request_codec import Request
from pairbus.broker.message import MAILBOX_SHIFT, Message, MessageState
from pairbus.broker.messages.incoming import IncomingMessage
from pairbus.broker.messages.lifecycle import PING_CONTENT_TYPE, MailboxKind
from pairbus.broker.namespace import Namespace
from pairbus.testing import ManualClock

_MESSAGE_ID, _CONTENT_TYPE, _GROUP_ID = 0, 6, 10


def scratch_folder():
    """In memory where possible: thousands of commits would wait for the disk."""
    memory = Path("/dev/shm")
    return Path(
        tempfile.mkdtemp(prefix="pairbus-", dir=memory if os.access(memory, os.W_OK) else None)
    )


def encoded(
    body=b"hello",
    *,
    message_id=None,
    session=None,
    content_type=None,
    ttl_ms=None,
    due_ms=None,
    annotations=None,
    properties=None,
):
    """An AMQP message as a sender writes it, with only the sections that are asked for."""
    pieces = []
    if ttl_ms is not None:
        pieces.append(b"\x00\x53\x70" + encode([None, None, UInt(ttl_ms)]))
    notes = {Symbol(name): value for name, value in (annotations or {}).items()}
    if due_ms is not None:
        notes[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(due_ms)
    if notes:
        pieces.append(b"\x00\x53\x72" + encode(notes))
    fields = {_MESSAGE_ID: message_id, _CONTENT_TYPE: content_type, _GROUP_ID: session}
    if any(value is not None for value in fields.values()):
        last = max(index for index, value in fields.items() if value is not None)
        values = [encode(fields.get(index)) for index in range(last + 1)]
        pieces.append(b"\x00\x53\x73" + encode_list(values))
    if properties:
        pieces.append(b"\x00\x53\x74" + encode(properties))
    if body is not None:
        pieces.append(b"\x00\x53\x75" + encode(body))
    return b"".join(pieces)


def ping(**more):
    return encoded(b"", content_type=PING_CONTENT_TYPE, ttl_ms=1000, **more)


def stored_message(sequence=1, **facts):
    """A message as the data file has it: by default active, and of ten bytes."""
    plain = {
        "sequence": sequence, "state": MessageState.ACTIVE, "enqueued_ms": 0, "expires_ms": None,
        "ttl_ms": None, "due_ms": None, "delivery_count": 0, "session_id": None, "durable": None,
        "priority": None, "annotations": b"", "annotation_count": 0, "delivery_annotations": b"",
        "delivery_annotation_count": 0, "enqueued_sequence": sequence, "dead_letter_source": None,
        "partition_id": None, "size": 10, "bare": b"bytes %d" % sequence,
    }  # fmt: skip
    return Message(**(plain | facts))


def queue(name="q", **settings):
    return QueueDescription(name=name, **settings)


def application_properties(message):
    parts = slice_message(message.bare)
    return read_application_properties(parts.bare, parts.application_properties)


class StillLoop(asyncio.SelectorEventLoop):
    """Timers are recorded and never fire: the tests decide when time has passed."""

    def __init__(self):
        super().__init__()
        self.delays = []
        self.timers = []

    def call_later(self, delay, callback, *args, context=None):
        self.delays.append(delay)
        self.timers.append(asyncio.TimerHandle(self.time() + delay, callback, args, self, context))
        return self.timers[-1]


class Receiver:
    """A link that receives messages while it has credit, and keeps the locks."""

    def __init__(self, queue, kind=MailboxKind.MAIN, *, credit=0):
        self.queue = queue
        self.mailbox = queue.mailboxes[kind]
        self.credit = credit
        self.session = None
        self.locks = []
        self.has_lost_session = False

    @property
    def sequences(self):
        return [lock.message.sequence for lock in self.locks]

    def room(self):
        return self.credit

    def deliver(self, messages, *, now_ms):
        self.credit -= len(messages)
        self.locks += self.queue.lock(self.mailbox, messages, self.session, now_ms=now_ms)

    def session_lost(self):
        self.has_lost_session = True
        self.session = None
        self.credit = 0  # its link is closed
        self.mailbox.detach(self)

    def session_granted(self, session_id, *, now_ms):
        until_ms = now_ms + self.queue.lock_ms
        self.session = self.mailbox.sessions.hold(session_id, self, until_ms=until_ms)
        self.mailbox.attach()

    def session_timed_out(self):
        self.has_lost_session = True

    def flow(self, credit):
        """More credit, as a client grants it."""
        self.credit += credit
        self.mailbox.has_credit(self)
        self.queue.pump(self.mailbox, now_ms=self.queue.runtime.now_ms())

    def close(self):
        session, self.session = self.session, None
        self.credit = 0
        self.mailbox.detach(self)
        if session is not None:
            now_ms = self.queue.runtime.now_ms()
            self.queue.release_session(session, has_expired=False, now_ms=now_ms)


class Deleter(Receiver):
    """A link in receive-and-delete mode. If it does not stay, it is gone when its message comes."""

    def __init__(self, *arguments, stays=True, **settings):
        super().__init__(*arguments, **settings)
        self.stays = stays
        self.got = []

    def deliver(self, messages, *, now_ms):
        self.credit -= len(messages)
        for message in messages:
            self.queue.remove(self.mailbox, [message], self._removed, message)

    def _removed(self, error, message):
        assert error is None
        if self.stays:
            self.got.append(message)
        else:
            self.queue.put_back(self.mailbox, message)


class FakeConnection:
    """What a namespace needs of a connection; it records the calls."""

    def __init__(self):
        self.flushes = 0
        self.checked = []
        self.gone = []

    def flush(self):
        self.flushes += 1

    def entity_gone(self, queue):
        self.gone.append(queue)

    def check_tokens(self, *, now_ms):
        self.checked.append(now_ms)

    def rules_compiled(self):
        pass

    def offer_messages(self):
        pass


class World:
    def __init__(self, folder, *queues, clock=None):
        self.folder = folder
        self.queues = queues
        self.clock = clock or ManualClock()
        self.loop = StillLoop()
        self._copies = count(1)
        self._viewer = None
        try:
            self.open()
        except BaseException:
            self.loop.close()
            raise

    # life

    def open(self, *, compile_rules=True):
        options = NamespaceOptions(queues=self.queues, data=self.folder)
        # A plain function: given a manual clock, the namespace would wait at each jump.
        is_manual = isinstance(self.clock, ManualClock)
        clock = (lambda: self.clock()) if is_manual else self.clock
        self.namespace = Namespace(options, loop=self.loop, clock=clock)
        self.namespace.open()
        while compile_rules and self.compile_some_rules():
            pass

    def compile_some_rules(self):
        """One turn of the loop that compiles rules in the background. False if all are compiled."""
        for timer in self.loop.timers:
            if timer._callback == self.namespace._compile_rules:
                self.loop.timers.remove(timer)
                timer._run()
                return True
        return False

    def close(self):
        self._close_viewer()
        self.loop.run_until_complete(self.namespace.close())

    def end(self):
        self.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def restart(self, *, compile_rules=True):
        self.close()
        self.open(compile_rules=compile_rules)

    def crash(self, *, compile_rules=True):
        """As after kill -9: only what the disk has at this moment comes back.

        The write-ahead log belongs to the data file; the lock of the dead process does not.
        """
        aside = self.folder.with_name(f"{self.folder.name.split('~')[0]}~{next(self._copies)}")
        aside.mkdir()
        for path in self.folder.glob("*.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, aside)
        self._close_viewer()
        self._vanish()
        self.folder = aside
        self.open(compile_rules=compile_rules)

    def _vanish(self):
        """Free what the process held, without calling its callbacks."""
        namespace = self.namespace
        namespace.committer.abort()
        namespace.store.rollback()
        namespace.store.discard()
        namespace.store.close()
        self.loop.close()
        self.loop = StillLoop()

    # time

    @property
    def now_ms(self):
        return self.namespace.now_ms()

    def flush(self):
        self.loop.run_until_complete(self.namespace.committer.flushed())

    def commit_unheard(self):
        """The disk has the changes, but the loop does not know yet."""
        store, may_begin, is_done = self.namespace.store, threading.Event(), threading.Event()
        commit = store.commit

        def commit_when_nobody_looks():
            assert may_begin.wait(timeout=60)
            commit()
            is_done.set()

        store.commit = commit_when_nobody_looks
        self.loop.run_until_complete(asyncio.sleep(0))
        may_begin.set()
        assert is_done.wait(timeout=60)
        store.commit = commit

    @contextmanager
    def broken_disk(self):
        """Every commit fails meanwhile."""
        store, commit = self.namespace.store, self.namespace.store.commit

        def refuse():
            raise sqlite3.OperationalError("database or disk is full")

        store.commit = refuse
        try:
            yield
            self.flush()
        finally:
            store.commit = commit

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.tick()

    def tick(self):
        self.namespace.tick()
        self.flush()

    def next_tick_seconds(self):
        """After a tick now: in how many seconds the namespace has its next one."""
        self.tick()
        return self.loop.delays[-1]

    # messages

    def queue(self, name="q"):
        queue = self.namespace.find(name)
        assert queue is not None, name
        return queue

    def submit(self, *messages, to="q"):
        """Send a batch without waiting: the immediate answer, and a list that gets the outcome."""
        outcomes = []
        batch = [IncomingMessage(slice_message(data), len(data)) for data in messages]
        return self.queue(to).enqueue(batch, outcomes.append, now_ms=self.now_ms), outcomes

    def send(self, *messages, to="q"):
        """The sequence numbers, once durable; or the error."""
        result, outcomes = self.submit(*messages, to=to)
        if isinstance(result, AmqpError):
            assert outcomes == []
            return result
        self.flush()
        assert len(outcomes) == 1
        return outcomes[0] or result

    def receive(self, count=1, *, of="q", kind=MailboxKind.MAIN):
        """The locks of a receiver that attached, received up to `count` messages, and detached."""
        receiver = Receiver(self.queue(of), kind, credit=0)
        receiver.mailbox.attach()
        receiver.flow(count)
        self.flush()  # expired messages are removed meanwhile
        receiver.mailbox.detach(receiver)
        return receiver.locks

    def receive_and_delete(self, count=1, *, of="q", stays=True):
        """The messages that a receiver in receive-and-delete mode got."""
        receiver = Deleter(self.queue(of), stays=stays)
        receiver.mailbox.attach()
        receiver.flow(count)
        self.flush()
        receiver.mailbox.detach(receiver)
        return receiver.got

    def accept(self, session_id, *, of="q", credit=0):
        receiver = Receiver(self.queue(of))
        receiver.session_granted(session_id, now_ms=self.now_ms)
        if credit:
            receiver.flow(credit)
        return receiver

    def start_settling(self, lock, settlement, *, of="q", kind=MailboxKind.MAIN, **words):
        queue, outcomes = self.queue(of), []
        mailbox = queue.mailboxes[kind]
        if mailbox.valid_lock(lock.token, now_ms=self.now_ms) is not lock:
            return ["lock lost"]
        queue.settle(mailbox, lock, settlement, outcomes.append, now_ms=self.now_ms, **words)
        return outcomes

    def settle(self, lock, settlement, *, of="q", kind=MailboxKind.MAIN, **words):
        """The outcome: None, an error, or 'lock lost'."""
        outcomes = self.start_settling(lock, settlement, of=of, kind=kind, **words)
        self.flush()
        assert len(outcomes) == 1
        return outcomes[0]

    def ask(self, operation, body, *, of="q", kind=MailboxKind.MAIN, holder=None, wait=True):
        """The reply of `$management` to the connection that has `holder`'s link."""
        queue, answers = self.queue(of), []
        context = Context(
            self.namespace,
            queue,
            queue.mailboxes[kind],
            holder_of=lambda session: session.holder is holder and holder is not None,
            now_ms=self.now_ms,
        )
        name = f"com.microsoft:{operation}"
        request = Request("id", None, {"operation": name}, body)
        requests.OPERATIONS[name].handle(context, request, answers.append)
        if not wait:
            return answers
        self.flush()
        assert len(answers) == 1
        return answers[0]

    # what the file says

    def look(self, query, parameters=()):
        """On a connection of its own, which sees only what is committed."""
        path = self.namespace.store.path
        if self._viewer is None or self._viewer[0] != path:
            self._close_viewer()
            self._viewer = (path, sqlite3.connect(path, isolation_level=None))
        return self._viewer[1].execute(query, parameters).fetchall()

    def _close_viewer(self):
        if self._viewer is not None:
            self._viewer[1].close()
            self._viewer = None

    def rows(self, *, of="q", kind=MailboxKind.MAIN, columns="state, delivery_count"):
        """The rows of a mailbox's messages in the file, by sequence number."""
        mailbox_id = self.queue(of).mailboxes[kind].counters.mailbox_id
        low = mailbox_id << MAILBOX_SHIFT
        found = self.look(
            f"SELECT id - ?, {columns} FROM message WHERE id >= ? AND id < ? ORDER BY id",
            (low, low, low + (1 << MAILBOX_SHIFT)),
        )
        return {row[0]: row[1:] if len(row) > 2 else row[1] for row in found}

    def sequences(self, *, of="q", kind=MailboxKind.MAIN):
        return list(self.rows(of=of, kind=kind))

    def check_counters(self):
        """The counters, in memory and in the file, match the messages in the file."""
        claimed = {
            row[0]: row[1:]
            for row in self.look("SELECT id, active, deferred, scheduled, bytes FROM mailbox")
        }
        held = defaultdict(Counter)  # also for what a deleted entity has left to be cleaned away
        for mailbox_id, state, number, size in self.look(
            f"SELECT id >> {MAILBOX_SHIFT}, state, count(*), sum(size) FROM message GROUP BY 1, 2"
        ):
            held[mailbox_id][state] = number
            held[mailbox_id]["bytes"] += size
        for entity in self.namespace.directory:
            for mailbox in entity.mailboxes.values():
                counters = mailbox.counters
                found = held[counters.mailbox_id]
                truth = (found[0], found[1], found[2], found["bytes"])
                where = (entity.name, mailbox.kind)
                assert (
                    where,
                    (counters.active, counters.deferred, counters.scheduled, counters.bytes),
                ) == (where, truth)
                assert (where, claimed[counters.mailbox_id]) == (where, truth)
