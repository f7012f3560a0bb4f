"""A real queue on a real file against a plain one, through crashes, failures and time.

After each step, the file, the counters, the locks and the memory must say what the plain model
says: see `queue_driver.py`.
"""

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pairbus.amqp.codec.sections import read_annotations, slice_message
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.message import guid
from pairbus.broker.messages.lifecycle import Settlement
from tests.broker.messages.plain_queue import DEFERRED, SCHEDULED
from tests.broker.messages.queue_driver import DELIVERIES_MAX, KINDS, QueueDriver
from tests.broker.world import Receiver, ping

BOXES = st.sampled_from(list(KINDS))
SETTLEMENTS = st.sampled_from(Settlement)
STATUSES = {
    Settlement.COMPLETE: "completed",
    Settlement.ABANDON: "abandoned",
    Settlement.DEFER: "defered",
    Settlement.DEAD_LETTER: "suspended",
}
MESSAGES = st.fixed_dictionaries(
    {
        "ttl_s": st.sampled_from([None, None, None, None, 10, 100]),
        "due_s": st.sampled_from([None, None, None, None, None, -1, 5, 50]),
        "message_id": st.sampled_from([None, None, None, "a", "b"]),
    }
)
SECONDS = st.sampled_from([1, 5, 10, 30, 31, 60, 100])


# An empty queue answers everything alike; steps are better spent on a full one.
where_messages_are = precondition(lambda self: any(self.model.boxes.values()))


class QueueMachine(QueueDriver):
    # in

    @rule(specs=st.lists(MESSAGES, min_size=1, max_size=3), with_ping=st.booleans())
    def send(self, specs, with_ping):
        composed = self.compose(specs)
        expected = self.told_of_send(composed)
        batch = [data for data, _, _ in composed]
        if with_ping:
            batch.append(ping())
            self.model.last += 1

        numbers = self.world.send(*batch)

        assert numbers[: len(expected)] == expected

        self.acknowledged = self.model.last
        self.serve_standing()

    @rule(number=st.integers(2, 8))
    def stock_up(self, number):
        """Plain messages: most of what may go wrong goes wrong with many of them."""
        plain = {"ttl_s": None, "due_s": None, "message_id": None}
        self.send([plain] * number, with_ping=False)

    # out

    @where_messages_are
    @rule(box=BOXES, credit=st.integers(1, 4))
    def receive(self, box, credit):
        locks = self.world.receive(credit, kind=KINDS[box])

        expected = self.model.take(box, credit, now_ms=self.now_ms)
        self.check_delivered(box, locks, expected)

    @where_messages_are
    @rule(
        box=BOXES,
        credit=st.integers(1, 3),
        settlement=SETTLEMENTS,
        times=st.integers(1, DELIVERIES_MAX + 1),
    )
    def receive_and_settle(self, box, credit, settlement, times):
        for _ in range(times):
            locks = self.world.receive(credit, kind=KINDS[box])
            self.check_delivered(box, locks, self.model.take(box, credit, now_ms=self.now_ms))
            for lock in locks:
                self._settle(box, lock, settlement, by_token=False)

    @where_messages_are
    @rule(
        data=st.data(),
        box=BOXES,
        seconds=st.sampled_from([29, 30]),
        settlement=SETTLEMENTS,
        ticks=st.booleans(),
    )
    def hold_long_and_settle(self, data, box, seconds, settlement, ticks):
        """Near the end of the lock, in the order that the receiver likes."""
        locks = self.world.receive(3, kind=KINDS[box])
        self.check_delivered(box, locks, self.model.take(box, 3, now_ms=self.now_ms))
        (self.wait if ticks else self.jump)(seconds)
        for lock in data.draw(st.permutations(locks)):
            self._settle(box, lock, settlement, by_token=False)

    @where_messages_are
    @rule(credit=st.integers(1, 2))
    def receive_and_delete(self, credit):
        got = self.world.receive_and_delete(credit)

        expected = self.model.take("main", credit, now_ms=self.now_ms)
        for number in expected:
            self.model.remove("main", number)
        assert [message.sequence for message in got] == expected

    @rule(credit=st.integers(0, 4))
    def stand_by_or_leave(self, credit):
        if self.standing is not None:
            self.standing.mailbox.detach(self.standing)
            self.standing = None
        else:
            self.standing = Receiver(self.world.queue())
            self.standing.mailbox.attach()
            self.standing.flow(credit)
            self.standing_credit = credit
            self.serve_standing()

    # settling

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), settlement=SETTLEMENTS, by_token=st.booleans())
    def settle(self, data, settlement, by_token):
        box, lock = self.draw_lock(data)
        self._settle(box, lock, settlement, by_token=by_token and settlement in STATUSES)

    def _settle(self, box, lock, settlement, *, by_token):
        is_held = self.model.holds(lock.token, now_ms=self.now_ms)
        ask = self.settle_by_token if by_token else self.settle_on_the_link

        said = ask(box, lock, settlement)

        if not is_held:
            assert said == "lock lost"
        elif self.told_of_settlement(lock, settlement):
            assert said == "done"
        else:
            assert said == "not allowed"
        self.serve_standing()

    def settle_on_the_link(self, box, lock, settlement):
        answer = self.world.settle(lock, settlement, kind=KINDS[box], reason="why")
        if isinstance(answer, AmqpError):
            return {"amqp:not-allowed": "not allowed"}[answer.condition]
        return answer or "done"

    def settle_by_token(self, box, lock, settlement):
        body = {
            "disposition-status": STATUSES[settlement],
            "lock-tokens": [UUID(bytes=guid(lock.token))],
            "deadletter-reason": "why",
        }
        answer = self.world.ask("update-disposition", body, kind=KINDS[box])
        return {200: "done", 400: "not allowed", 410: "lock lost"}[answer.status]

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def renew(self, data):
        box, lock = self.draw_lock(data)
        is_held = self.model.holds(lock.token, now_ms=self.now_ms)

        body = {"lock-tokens": [UUID(bytes=guid(lock.token))]}
        answer = self.world.ask("renew-lock", body, kind=KINDS[box])

        assert answer.status == (200 if is_held else 410)
        if is_held:
            self.model.renew(lock.token, now_ms=self.now_ms)

    # by number

    @where_messages_are
    @rule(
        data=st.data(),
        box=BOXES,
        mode=st.sampled_from([0, 1, 1]),
        then=st.sampled_from(["settle", "wait", "wait_on_a_broken_disk"]),
    )
    def receive_deferred(self, data, box, mode, then):
        messages = self.model.boxes[box]
        deferred = [n for n, message in messages.items() if message.state == DEFERRED]
        anything = data.draw(st.integers(1, self.model.last))
        number = data.draw(st.sampled_from([*deferred * 3, anything]))
        known = messages.get(number)
        is_there = known is not None and known.state == DEFERRED and known.token is None

        body = {"sequence-numbers": [number], "receiver-settle-mode": mode}
        answer = self.world.ask("receive-by-sequence-number", body, kind=KINDS[box])

        assert answer.status == (200 if is_there else 404)
        if is_there:
            [found] = answer.body["messages"]
            assert found["message"].endswith(known.tag)
        if is_there and mode == 0:
            self.model.remove(box, number)
        elif is_there:
            token = guid(found["lock-token"].bytes)
            self.model.lend(box, number, token, now_ms=self.now_ms)
            lock = self.world.queue().mailboxes[KINDS[box]].locks[token]
            if self.is_large:
                lock.message.bare = b""
            self.locks.append((box, lock))
            if then != "settle":
                getattr(self, then)(30)

    @where_messages_are
    @rule(data=st.data())
    def cancel(self, data):
        main = self.model.boxes["main"]
        scheduled = [n for n, message in main.items() if message.state == SCHEDULED]
        anything = data.draw(st.integers(1, self.model.last))
        number = data.draw(st.sampled_from([*scheduled * 3, anything]))

        answer = self.world.ask("cancel-scheduled-message", {"sequence-numbers": [number]})

        assert answer.status == (200 if number in scheduled else 404)
        if number in scheduled:
            self.model.remove("main", number)

    @rule(box=BOXES, first=st.integers(0, 20), most=st.sampled_from([1, 3, 50]))
    def peek(self, box, first, most):
        expected = [
            (number, message.state)
            for number, message in sorted(self.model.boxes[box].items())
            if number >= first and not message.is_expired(self.now_ms)
        ][:most]

        body = {"from-sequence-number": first, "message-count": most}
        answer = self.world.ask("peek-message", body, kind=KINDS[box])

        found = []
        for entry in answer.body.get("messages", ()):
            notes = read_annotations(slice_message(entry["message"]).annotations)
            found.append((notes["x-opt-sequence-number"], notes.get("x-opt-message-state", 0)))
        assert found == expected
        assert answer.status == (200 if expected else 204)

    @where_messages_are
    @rule(most=st.integers(1, 2), age_s=st.sampled_from([0, 5, 40]))
    def batch_delete(self, most, age_s):
        before_ms = self.now_ms - age_s * 1000
        main = self.model.boxes["main"]
        old = [
            number
            for number, message in sorted(main.items())
            if message.state == 0 and message.enqueued_ms < before_ms
        ][:most]
        free = [number for number in old if main[number].token is None]

        body = {"message-count": most, "enqueued-time-utc": before_ms}
        answer = self.world.ask("batch-delete-messages", body)

        assert answer.body["message-count"] == len(free)
        for number in free:
            self.model.remove("main", number)

    # time

    @rule(seconds=SECONDS)
    def jump(self, seconds):
        """Time passes, and nobody has looked at the clock yet."""
        self.world.clock.advance(seconds)

    @rule(seconds=SECONDS)
    def wait(self, seconds):
        self.world.pass_time(seconds)
        self.model.activate(now_ms=self.now_ms)
        self.model.sweep(now_ms=self.now_ms)
        self.model.expire_locks(now_ms=self.now_ms)
        self.serve_standing()
        self.world.tick()
        self.model.sweep(now_ms=self.now_ms)

    @where_messages_are
    @rule(data=st.data(), early=st.booleans(), ticks=st.booleans())
    def wait_for_the_moment(self, data, early, ticks):
        """To the very second in which something expires, is due, expires or may be sent again."""
        known = self.model.boxes["main"].values()
        moments = {message.expires_ms for message in known} | {m.due_ms for m in known}
        moments |= {lent.until_ms for lent in self.model.lent.values()}
        moments |= set(self.model.seen.values())
        ahead = sorted(ms - self.now_ms for ms in moments if ms is not None and ms > self.now_ms)
        if ahead:
            seconds = data.draw(st.sampled_from(ahead)) // 1000 - early
            (self.wait if ticks else self.jump)(seconds)

    # failures

    @where_messages_are
    @rule(ending=st.sampled_from(["restart", "crash"]))
    def come_back(self, ending):
        getattr(self.world, ending)()
        self.came_back()

    @precondition(lambda self: self.locks)
    @rule(
        data=st.data(),
        specs=st.lists(MESSAGES, max_size=2),
        settlement=SETTLEMENTS,
        moment=st.sampled_from("abc"),
    )
    def crash_at_work(self, data, specs, settlement, moment):
        box, lock = self.draw_lock(data)
        is_held = self.model.holds(lock.token, now_ms=self.now_ms)
        composed = self.compose(specs)
        _, reported = self.world.submit(*(data for data, _, _ in composed))
        self.world.start_settling(lock, settlement, kind=KINDS[box], reason="why")
        if self._die(moment):
            self.told_of_send(composed)
            if is_held:
                self.told_of_settlement(lock, settlement)
        assert reported == []
        self.came_back()

    def _die(self, moment):
        """Before the statements, between them and the commit, or just after it: is it kept?"""
        store = self.world.namespace.store
        if moment == "b" and store.has_changes:
            store.apply()
        elif moment == "c":
            store.save()
        self.world.crash()
        return moment == "c"

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), specs=st.lists(MESSAGES, min_size=1, max_size=2), settlement=SETTLEMENTS)
    def work_on_a_broken_disk(self, data, specs, settlement):
        """Everybody gets the error, and nothing has changed."""
        box, lock = self.draw_lock(data)
        is_held = self.model.holds(lock.token, now_ms=self.now_ms)
        in_vain = settlement is Settlement.DEAD_LETTER and box == "dead"
        composed = self.compose(specs)
        with self.world.broken_disk():
            _, sender = self.world.submit(*(data for data, _, _ in composed))
            settler = []
            if is_held and not in_vain and settlement is not Settlement.RELEASE:
                settler = self.world.start_settling(lock, settlement, kind=KINDS[box])

        assert {error.condition for error in sender + settler} == {"amqp:internal-error"}
        self.model.last = self.world.queue().main.counters.last_sequence

    @where_messages_are
    @rule(seconds=SECONDS)
    def wait_on_a_broken_disk(self, seconds):
        """Locks expire without a delivery, and what is due has to wait."""
        with self.world.broken_disk():
            self.world.pass_time(seconds)
        for token, lent in list(self.model.lent.items()):
            if lent.until_ms <= self.now_ms:
                self.model.release(token)
        self.model.last = self.world.queue().main.counters.last_sequence
        self.world.namespace.wake(self.world.queue(), self.world.queue().main)
        self.serve_standing()


TestQueueAgainstAPlainOne = QueueMachine.TestCase
TestQueueAgainstAPlainOne.settings = settings(stateful_step_count=40)
