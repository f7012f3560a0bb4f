"""Keeps a real queue and a plain one in step, and compares them after every step.

The rules, what may happen to them, are in `test_queue_model.py`.
"""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.entities.durations import INFINITE, milliseconds
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.messages.machine import WorldMachine
from tests.broker.messages.plain_queue import PlainQueue
from tests.broker.world import application_properties, encoded

LOCK_MS = 30_000
DELIVERIES_MAX = 2
KINDS = {"main": MailboxKind.MAIN, "dead": MailboxKind.DEAD_LETTER}


class QueueDriver(WorldMachine):
    def __init__(self):
        super().__init__()
        self.locks = []  # (box, lock) of all that was ever lent, the stale ones too
        self.acknowledged = 0

    @initialize(
        ttl=st.sampled_from([INFINITE, INFINITE, timedelta(seconds=60)]),
        dead_letters_expired=st.booleans(),
        looks_for_duplicates=st.booleans(),
        room=st.sampled_from([2, 6]),
        is_large=st.booleans(),
    )
    def open(self, ttl, dead_letters_expired, looks_for_duplicates, room, is_large):
        description = QueueDescription(
            name="q",
            lock_duration=timedelta(milliseconds=LOCK_MS),
            max_delivery_count=DELIVERIES_MAX,
            default_message_time_to_live=ttl,
            dead_lettering_on_message_expiration=dead_letters_expired,
            requires_duplicate_detection=looks_for_duplicates,
            duplicate_detection_history_time_window=timedelta(seconds=60),
        )
        self.open_world(description, room=room, read_count=room // 2)
        self.model = PlainQueue(
            lock_ms=LOCK_MS,
            deliveries_max=DELIVERIES_MAX,
            ttl_ms=milliseconds(ttl),
            dead_letters_expired=dead_letters_expired,
            window_ms=60_000 if looks_for_duplicates else None,
        )
        self.standing = None
        self.is_large = is_large  # the broker does not keep the bytes of what is locked

    # helpers

    def draw_lock(self, data):
        """Mostly one that counts; stale ones are many, and all alike."""
        live = [(box, lock) for box, lock in self.locks if lock.token in self.model.lent]
        return data.draw(st.sampled_from(live * 3 + self.locks[-len(live) - 1 :]))

    def compose(self, specs):
        """Bytes to send, and what the model must know of them."""
        composed = []
        for spec in specs:
            tag = b"tag-%d" % next(self.tags)
            facts = {
                "ttl_ms": None if spec["ttl_s"] is None else spec["ttl_s"] * 1000,
                "due_ms": None if spec["due_s"] is None else self.now_ms + spec["due_s"] * 1000,
                "message_id": spec["message_id"],
            }
            composed.append((encoded(tag, **facts), tag, facts))
        return composed

    def told_of_send(self, composed):
        return [self.model.send(tag, now_ms=self.now_ms, **facts) for _, tag, facts in composed]

    def told_of_settlement(self, lock, settlement):
        if settlement is Settlement.DEAD_LETTER:
            return self.model.dead_letter(lock.token, "why")
        getattr(self.model, settlement.name.lower())(lock.token)
        return True

    def check_delivered(self, box, locks, expected):
        assert [lock.message.sequence for lock in locks] == expected
        for lock, number in zip(locks, expected, strict=True):
            message, known = lock.message, self.model.boxes[box][number]
            assert message.bare.endswith(known.tag)
            assert message.delivery_count == known.count
            if box == "dead":
                assert application_properties(message).get("DeadLetterReason") == known.reason
            if self.is_large:
                message.bare = b""
            self.model.lend(box, number, lock.token, now_ms=self.now_ms)
            self.locks.append((box, lock))

    def serve_standing(self):
        """The standing receiver gets what there is, in order, as far as its credit goes."""
        self.world.namespace.run()
        self.world.flush()
        if self.standing is not None:
            expected = self.model.take("main", self.standing_credit, now_ms=self.now_ms)
            self.standing_credit -= len(expected)
            locks, self.standing.locks = self.standing.locks, []
            self.check_delivered("main", locks, expected)

    def came_back(self):
        """After a restart: locks and receivers are gone, numbers go on."""
        self.model.restart()
        self.standing = None
        last = self.world.queue().main.counters.last_sequence
        assert last >= self.acknowledged
        self.model.last = last

    # what must hold

    @invariant()
    def the_file_says_what_the_model_says(self):
        if self.world is not None:
            for box, kind in KINDS.items():
                expected = {
                    number: (message.state, message.count, message.expires_ms, message.due_ms)
                    for number, message in sorted(self.model.boxes[box].items())
                }
                columns = "state, delivery_count, expires_ms, due_ms"
                assert self.world.rows(kind=kind, columns=columns) == expected
            self.world.check_counters()

    @invariant()
    def locks_and_memory_agree(self):
        if self.world is not None:
            lent = {}
            for box, kind in KINDS.items():
                mailbox = self.world.queue().mailboxes[kind]
                for token, lock in mailbox.locks.items():
                    lent[token] = (box, lock.message.sequence, lock.until_ms)
                    assert mailbox.held[lock.message.sequence] is lock.message
                assert mailbox.held.keys() <= self.model.boxes[box].keys()
                assert not any(message.busy for message in mailbox.held.values())
            assert lent == {
                token: (one.box, one.sequence, one.until_ms)
                for token, one in self.model.lent.items()
            }
