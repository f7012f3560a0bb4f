"""The books of connections to backlog queues: lent once each, few, kept ready, trimmed."""

from __future__ import annotations

import hypothesis.strategies as st
from azure.servicebus.exceptions import OperationTimeoutError
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pairbus.client.pool import (
    IDLE_SECONDS_MAX,
    LANES_PER_QUEUE_MAX,
    AllBusy,
    Lane,
    Shelves,
)
from pairbus.client.sdk import private as internals
from tests.client.fakes import StandIn


def shelves() -> Shelves[StandIn]:
    return Shelves(StandIn)


def taken(shelf: Shelves[StandIn], queue: str = "a") -> Lane[StandIn]:
    lane = shelf.take(queue)
    assert lane is not None
    return lane


def test_a_new_lane_is_fresh_and_of_its_queue() -> None:
    lane = taken(shelves())

    assert lane.is_fresh
    assert (lane.queue, lane.sender.entity_name) == ("a", "a")


def test_a_lane_that_comes_back_is_lent_again_and_is_not_fresh_any_more() -> None:
    shelf = shelves()
    lane = taken(shelf)
    shelf.put_back(lane, is_usable=True, now=1.0)

    again = taken(shelf)

    assert again is lane
    assert not again.is_fresh


def test_a_lane_that_is_of_no_use_any_more_makes_room() -> None:
    shelf = shelves()
    lanes = [taken(shelf) for _ in range(LANES_PER_QUEUE_MAX)]
    assert shelf.take("a") is None

    shelf.put_back(lanes[0], is_usable=False, now=1.0)

    assert taken(shelf) not in lanes


def test_queues_do_not_share_lanes_nor_room() -> None:
    shelf = shelves()
    for _ in range(LANES_PER_QUEUE_MAX):
        taken(shelf, "a")

    assert taken(shelf, "b").queue == "b"


def test_the_lane_that_was_used_last_is_lent_first_so_that_the_others_can_be_trimmed() -> None:
    shelf = shelves()
    first, second = taken(shelf), taken(shelf)
    shelf.put_back(first, is_usable=True, now=1.0)
    shelf.put_back(second, is_usable=True, now=2.0)

    assert taken(shelf) is second


def test_idle_lanes_are_handed_over_to_be_closed_where_one_like_them_failed() -> None:
    shelf = shelves()
    lent, idle = taken(shelf), taken(shelf)
    shelf.put_back(idle, is_usable=True, now=1.0)

    assert shelf.clear("a") == [idle]
    assert taken(shelf) not in (lent, idle)
    assert shelf.clear("never heard of") == []


def test_a_queue_is_ready_while_a_lane_is_open_or_at_work() -> None:
    shelf = shelves()
    assert not shelf.has_ready("a")

    lane = taken(shelf)
    assert shelf.has_ready("a")

    lane.sender.open()
    shelf.put_back(lane, is_usable=True, now=1.0)
    assert shelf.has_ready("a")

    lane.sender.close()  # by the client that it belongs to
    assert not shelf.has_ready("a")


def test_a_lane_that_is_not_open_is_lent_to_nobody_who_would_not_open_it() -> None:
    shelf = shelves()
    lane = taken(shelf)
    shelf.put_back(lane, is_usable=True, now=1.0)
    assert shelf.take_open("a") is None, "it was never opened"

    lane.sender.open()
    lane.sender._shutdown.set()
    assert shelf.take_open("a") is None, "somebody has closed it"

    lane.sender._shutdown.clear()
    assert shelf.take_open("a") is lane
    assert shelf.take_open("a") is None, "it is lent"
    assert taken(shelf) is not lane


def test_limits_are_those_of_the_last_new_lane() -> None:
    shelf = shelves()
    assert shelf.limits == (internals.MESSAGE_BYTES_ASSUMED,) * 2

    lane = taken(shelf)
    lane.sender.open((1_000_000, 500_000))
    shelf.put_back(lane, is_usable=True, now=1.0)
    assert shelf.limits == (1_000_000, 500_000)

    lane = taken(shelf)
    lane.sender.close()
    shelf.put_back(lane, is_usable=False, now=1.0)
    assert shelf.limits == (1_000_000, 500_000)


def test_what_was_idle_for_long_goes_but_one_of_each_wanted_queue_stays() -> None:
    shelf = shelves()
    lanes = {queue: [taken(shelf, queue) for _ in range(3)] for queue in "ab"}
    for queue in "ab":
        for number, lane in enumerate(lanes[queue]):
            shelf.put_back(lane, is_usable=True, now=float(number))

    assert shelf.trim(keep=frozenset("a"), now=IDLE_SECONDS_MAX) == []
    gone = shelf.trim(keep=frozenset("a"), now=IDLE_SECONDS_MAX + 1.5)
    assert gone == [*lanes["a"][:2], *lanes["b"][:2]]
    gone = shelf.trim(keep=frozenset("a"), now=IDLE_SECONDS_MAX * 10)
    assert gone == [lanes["b"][2]]
    assert taken(shelf, "a") is lanes["a"][2]


def test_in_the_end_all_are_handed_over() -> None:
    shelf = shelves()
    lent, idle, elsewhere = taken(shelf), taken(shelf), taken(shelf, "b")
    shelf.put_back(idle, is_usable=True, now=1.0)

    handed = shelf.empty()

    assert handed[0] == [idle]
    assert set(handed[1]) == {lent, elsewhere}
    assert shelf.empty() == ([], [])


def test_that_all_are_busy_is_a_timeout_that_says_what_to_do() -> None:
    error = AllBusy("contoso/x-servicebus-transfer/0", 2.5)

    assert isinstance(error, OperationTimeoutError)
    assert str(error).startswith(
        "all 8 connections to backlog queue 'contoso/x-servicebus-transfer/0' were busy for "
        "2.5 seconds; send less at once"
    )


# --- the same against a plain account

QUEUES = st.sampled_from("ab")


class Books(RuleBasedStateMachine):
    """Every lane is in one place: lent, idle, or handed over to be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.shelves = Shelves(StandIn)
        self.now = 0.0
        self.lent: list[Lane[StandIn]] = []
        self.idle: list[Lane[StandIn]] = []
        self.gone: list[Lane[StandIn]] = []

    def of(self, lanes: list[Lane[StandIn]], queue: str) -> list[Lane[StandIn]]:
        return [lane for lane in lanes if lane.queue == queue]

    @rule(queue=QUEUES)
    def take(self, queue: str) -> None:
        idle, lent = self.of(self.idle, queue), self.of(self.lent, queue)
        lane = self.shelves.take(queue)
        if idle:
            assert lane is idle[-1]
            self.idle.remove(lane)
        elif len(lent) >= LANES_PER_QUEUE_MAX:
            assert lane is None
            return
        assert lane is not None
        assert lane not in [*self.lent, *self.idle, *self.gone], "it is lent, or was closed"
        assert lane.is_fresh is not bool(idle)
        self.lent.append(lane)

    @rule(queue=QUEUES)
    def take_open(self, queue: str) -> None:
        idle = self.of(self.idle, queue)
        lane = self.shelves.take_open(queue)
        if not idle:
            assert lane is None
            return
        assert lane is idle[-1]
        self.idle.remove(lane)
        self.lent.append(lane)

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), is_usable=st.booleans())
    def put_back(self, data: st.DataObject, is_usable: bool) -> None:
        lane = data.draw(st.sampled_from(self.lent))
        self.lent.remove(lane)
        if is_usable:
            lane.sender.open()
        self.shelves.put_back(lane, is_usable=is_usable, now=self.now)
        (self.idle if is_usable else self.gone).append(lane)

    @rule(queue=QUEUES)
    def clear(self, queue: str) -> None:
        expected = self.of(self.idle, queue)
        assert self.shelves.clear(queue) == expected
        self._end(expected)

    @rule(keep=st.frozensets(QUEUES), seconds=st.floats(0, 2 * IDLE_SECONDS_MAX))
    def trim(self, keep: frozenset[str], seconds: float) -> None:
        self.now += seconds
        gone = self.shelves.trim(keep=keep, now=self.now)
        assert all(lane in self.idle for lane in gone)
        assert all(self.now - lane.idle_since > IDLE_SECONDS_MAX for lane in gone)
        self._end(gone)
        for queue in "ab":
            left = self.of(self.idle, queue)
            if queue in keep:
                assert left or not self.of(gone, queue), "the last one went"
                left = left[1:]
            assert all(self.now - lane.idle_since <= IDLE_SECONDS_MAX for lane in left)

    @rule()
    def empty(self) -> None:
        idle, lent = self.shelves.empty()
        assert sorted(map(id, idle)) == sorted(map(id, self.idle))
        assert sorted(map(id, lent)) == sorted(map(id, self.lent))
        self._end([*self.idle, *self.lent])

    @invariant()
    def there_are_never_too_many(self) -> None:
        for queue in "ab":
            assert len(self.of(self.idle + self.lent, queue)) <= LANES_PER_QUEUE_MAX

    @invariant()
    def readiness_is_told_as_it_is(self) -> None:
        for queue in "ab":
            expected = bool(self.of(self.lent, queue) or self.of(self.idle, queue))
            assert self.shelves.has_ready(queue) is expected

    def _end(self, lanes: list[Lane[StandIn]]) -> None:
        for lane in lanes:
            (self.idle if lane in self.idle else self.lent).remove(lane)
            self.gone.append(lane)


TestBooks = Books.TestCase
