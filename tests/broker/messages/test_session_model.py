"""A real queue with sessions against a plain model: who holds what, in which order, till when."""

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.message import guid
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.messages.machine import WorldMachine
from tests.broker.world import Receiver, encoded

LOCK_MS = 30_000
DELIVERIES_MAX = 2
NAMES = "abc"
SESSIONS = st.sampled_from(NAMES)
ACTIVE, DEFERRED = 0, 1


@dataclass
class Known:
    session: str
    tag: bytes
    state: int = ACTIVE
    count: int = 0
    token: bytes | None = None


@dataclass
class Held:
    receiver: Receiver
    until_ms: int
    credit: int = 0
    tokens: dict[bytes, int] = field(default_factory=dict)


class SessionMachine(WorldMachine):
    def __init__(self):
        super().__init__()
        description = QueueDescription(
            name="q",
            requires_session=True,
            lock_duration=timedelta(milliseconds=LOCK_MS),
            max_delivery_count=DELIVERIES_MAX,
        )
        self.open_world(description)
        self.steps = count(1)
        self.locks = []
        # the model
        self.messages = {}
        self.dead = set()
        self.held = {}
        self.states = {}
        self.waiting = []  # (seeker, end_ms), first come first
        self.free_since = {}  # session -> step; it has messages, and nobody holds it
        self.last = 0

    # the model's own steps

    def of_session(self, name):
        return [
            number
            for number, message in sorted(self.messages.items())
            if message.session == name and message.state == ACTIVE
        ]

    def refresh(self):
        """Which sessions are free, and since when; then those that wait get them in turn."""
        self.world.namespace.run()
        self.world.flush()
        step = next(self.steps)
        free = {name for name in NAMES if self.of_session(name) and name not in self.held}
        self.free_since = {name: self.free_since.get(name, step) for name in free}
        served = [seeker for seeker, _ in self.waiting if seeker.session is not None]
        assert served == [s for s, _ in self.waiting[: min(len(self.waiting), len(free))]]
        for seeker in served:
            self.granted(seeker)
        self.waiting = self.waiting[len(served) :]

    def granted(self, seeker):
        name = seeker.session.session_id
        assert self.free_since[name] == min(self.free_since.values())
        del self.free_since[name]
        self.held[name] = Held(seeker, self.now_ms + LOCK_MS)

    def serve(self, name):
        """The holder of a session gets its next messages, in their order, for its credit."""
        held = self.held[name]
        free = [n for n in self.of_session(name) if self.messages[n].token is None]
        expected = free[: held.credit]
        held.credit -= len(expected)
        locks, held.receiver.locks = held.receiver.locks, []
        assert [lock.message.sequence for lock in locks] == expected
        for lock in locks:
            message = self.messages[lock.message.sequence]
            assert lock.message.bare.endswith(message.tag)
            assert lock.message.delivery_count == message.count
            self.lend(name, lock)

    def lend(self, name, lock):
        self.messages[lock.message.sequence].token = lock.token
        self.held[name].tokens[lock.token] = lock.message.sequence
        self.locks.append(lock)

    def serve_all(self):
        self.refresh()
        for name in self.held:
            self.serve(name)

    def failed(self, number):
        """One more delivery that came to nothing."""
        message = self.messages[number]
        if message.state == ACTIVE and message.count + 1 >= DELIVERIES_MAX:
            del self.messages[number]
            self.dead.add(number)
        else:
            message.count += 1

    def release(self, name, *, counted):
        for number in self.held.pop(name).tokens.values():
            self.messages[number].token = None
            if counted:
                self.failed(number)

    def expire_locks(self):
        for name in [n for n, held in self.held.items() if held.until_ms <= self.now_ms]:
            receiver = self.held[name].receiver
            self.release(name, counted=True)
            assert receiver.has_lost_session
        for seeker, end_ms in list(self.waiting):
            if end_ms <= self.now_ms:
                assert seeker.has_lost_session
                self.waiting.remove((seeker, end_ms))

    def holder_of(self, token):
        """The session in which the lock still counts."""
        for name, held in self.held.items():
            if token in held.tokens and held.until_ms > self.now_ms:
                return name
        return None

    def settled(self, name, token, settlement):
        number = self.held[name].tokens.pop(token)
        message = self.messages[number]
        message.token = None
        if settlement is Settlement.COMPLETE:
            del self.messages[number]
        elif settlement is Settlement.ABANDON:
            self.failed(number)
        elif settlement is Settlement.DEFER:
            message.state = DEFERRED
        elif settlement is Settlement.DEAD_LETTER:
            del self.messages[number]
            self.dead.add(number)

    def sent(self, names, tags):
        for name, tag in zip(names, tags, strict=True):
            self.last += 1
            self.messages[self.last] = Known(name, tag)

    # rules

    @rule(names=st.lists(SESSIONS, min_size=1, max_size=4))
    def send(self, names):
        tags = [b"tag-%d" % next(self.tags) for _ in names]
        batch = [encoded(tag, session=name) for name, tag in zip(names, tags, strict=True)]
        self.sent(names, tags)

        assert self.world.send(*batch) == list(range(self.last - len(names) + 1, self.last + 1))
        self.serve_all()

    @rule(name=SESSIONS, credit=st.integers(0, 3))
    def accept(self, name, credit):
        assert self.world.queue().main.sessions.is_held(name) == (name in self.held)
        if name not in self.held:
            receiver = self.world.accept(name, credit=credit)
            self.free_since.pop(name, None)
            self.held[name] = Held(receiver, self.now_ms + LOCK_MS, credit)
            self.serve(name)

    @rule(seconds=st.sampled_from([5, 60]))
    def seek(self, seconds):
        seeker = Receiver(self.world.queue())
        end_ms = self.now_ms + seconds * 1000
        self.world.queue().waiting[seeker] = end_ms
        self.waiting.append((seeker, end_ms))
        self.world.queue().serve_waiting(now_ms=self.now_ms)
        self.refresh()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), credit=st.integers(1, 3))
    def flow(self, data, credit):
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.held[name].credit += credit
        self.held[name].receiver.flow(credit)
        self.serve(name)

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), settlement=st.sampled_from(Settlement))
    def settle(self, data, settlement):
        live = [lock for lock in self.locks if lock.message.lock is lock]
        lock = data.draw(st.sampled_from(live * 3 + self.locks[-len(live) - 1 :]))
        name = self.holder_of(lock.token)

        answer = self.world.settle(lock, settlement)

        assert answer == ("lock lost" if name is None else None)
        if name is not None:
            self.settled(name, lock.token, settlement)
        self.serve_all()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), settlement=st.sampled_from(Settlement))
    def settle_and_close_at_once(self, data, settlement):
        """The link ends while the settlement is on its way to the disk."""
        name = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[name]
        if held.tokens and held.until_ms > self.now_ms:
            token = data.draw(st.sampled_from(list(held.tokens)))
            lock = self.world.queue().main.locks[token]
            reported = self.world.start_settling(lock, settlement)
            self.settled(name, token, settlement)
            held.receiver.close()
            self.world.flush()
            assert reported == [None]
        else:
            held.receiver.close()
        self.release(name, counted=False)
        self.serve_all()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), by_holder=st.booleans())
    def renew(self, data, by_holder):
        name = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[name]
        in_time = held.until_ms > self.now_ms

        answer = self.world.ask(
            "renew-session-lock",
            {"session-id": name},
            holder=held.receiver if by_holder else None,
        )

        assert answer.status == (200 if by_holder and in_time else 410)
        if answer.status == 200:
            held.until_ms = self.now_ms + LOCK_MS

    @precondition(lambda self: self.held)
    @rule(data=st.data(), state=st.none() | st.binary(max_size=3))
    def set_state(self, data, state):
        name = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[name]

        body = {"session-id": name, "session-state": state}
        answer = self.world.ask("set-session-state", body, holder=held.receiver)

        assert answer.status == (200 if held.until_ms > self.now_ms else 410)
        if answer.status == 200:
            self.states[name] = state
            found = self.world.ask("get-session-state", body, holder=held.receiver)
            assert found.body == {"session-state": state}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def receive_deferred(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[name]
        if not self.messages or held.until_ms <= self.now_ms:
            return
        number = data.draw(st.sampled_from(sorted(self.messages)))
        known = self.messages[number]
        is_there = (known.session, known.state, known.token) == (name, DEFERRED, None)

        body = {"sequence-numbers": [number], "receiver-settle-mode": 1, "session-id": name}
        answer = self.world.ask("receive-by-sequence-number", body, holder=held.receiver)

        assert answer.status == (200 if is_there else 404)
        if is_there:
            token: UUID = answer.body["messages"][0]["lock-token"]
            self.lend(name, self.world.queue().main.locks[guid(token.bytes)])

    @rule(seconds=st.sampled_from([1, 29, 30, 31]))
    def jump(self, seconds):
        self.world.clock.advance(seconds)

    @rule(seconds=st.sampled_from([1, 5, 29, 30, 61]))
    def wait(self, seconds):
        self.world.pass_time(seconds)
        self.expire_locks()
        self.serve_all()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), early=st.booleans(), ticks=st.booleans())
    def wait_for_the_moment(self, data, early, ticks):
        """To the very second in which a session's lock ends."""
        ahead = {held.until_ms - self.now_ms for held in self.held.values()}
        seconds = data.draw(st.sampled_from(sorted(ahead))) // 1000 - early
        if seconds > 0:
            (self.wait if ticks else self.jump)(seconds)

    @precondition(lambda self: self.held)
    @rule(seconds=st.sampled_from([29, 30]), names=st.lists(SESSIONS, max_size=2))
    def wait_while_the_disk_is_slow(self, seconds, names):
        """Credit and messages come in before the disk has heard of the expired lock."""
        tags = [b"tag-%d" % next(self.tags) for _ in names]
        self.world.clock.advance(seconds)
        for name, tag in zip(names, tags, strict=True):
            self.world.submit(encoded(tag, session=name))
        if names:
            self.world.commit_unheard()
        self.world.namespace.tick()
        for held in self.held.values():
            if held.receiver.session is not None:
                held.receiver.flow(1)
                held.credit += 1
        self.world.flush()
        self.sent(names, tags)
        self.expire_locks()
        self.serve_all()

    @rule(ending=st.sampled_from(["restart", "crash"]))
    def come_back(self, ending):
        getattr(self.world, ending)()
        for name in list(self.held):
            self.release(name, counted=False)
        self.waiting = []
        self.free_since = {}
        # After a restart, the session whose oldest message is the oldest comes first.
        oldest = {name: self.of_session(name)[0] for name in NAMES if self.of_session(name)}
        for name in sorted(oldest, key=oldest.get):
            self.free_since[name] = next(self.steps)

    # what must hold

    @invariant()
    def the_file_says_what_the_model_says(self):
        columns = "session_id, state, delivery_count"
        assert self.world.rows(columns=columns) == {
            number: (message.session, message.state, message.count)
            for number, message in sorted(self.messages.items())
        }
        assert self.world.sequences(kind=MailboxKind.DEAD_LETTER) == sorted(self.dead)
        self.world.check_counters()
        mailbox_id = self.world.queue().main.counters.mailbox_id
        for name in NAMES:
            state = self.world.namespace.store.session_state(mailbox_id, name)
            assert state == self.states.get(name)

    @invariant()
    def memory_agrees(self):
        main = self.world.queue().main
        assert {name for name in NAMES if main.sessions.is_held(name)} == set(self.held)
        with_messages = {name for name in NAMES if self.of_session(name)}
        assert set(main.sessions.with_messages()) == with_messages
        assert (main.sessions.next_available() is None) == (not self.free_since)
        assert set(main.locks) == {t for held in self.held.values() for t in held.tokens}
        assert main.held.keys() <= self.messages.keys()
        assert {main.held[n].session_id for n in main.held} <= set(self.held)
        assert not any(message.busy for message in main.held.values())


TestSessionsAgainstAPlainModel = SessionMachine.TestCase
TestSessionsAgainstAPlainModel.settings = settings(stateful_step_count=40)
