"""The bookkeeping of connections to backlog queues: each lent once, few, kept ready, trimmed."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pairbus.client.pool import (
    CONNECTIONS_PER_QUEUE_MAX,
    IDLE_SECONDS_MAX,
    OPENINGS_AT_ONCE_MAX,
    BacklogConnection,
    PoolState,
)
from pairbus.client.sdk import private
from tests.client.fakes import StandIn


def empty_books() -> PoolState[StandIn]:
    return PoolState(StandIn)


def taken(books: PoolState[StandIn], queue: str = "a") -> BacklogConnection[StandIn]:
    connection = books.take(queue)
    assert connection is not None
    return connection


def all_taken(books: PoolState[StandIn], queue: str = "a") -> list[BacklogConnection[StandIn]]:
    """As many as are allowed, all of them open."""
    pool = []
    for _ in range(CONNECTIONS_PER_QUEUE_MAX):
        pool.append(taken(books, queue))
        pool[-1].is_fresh = False
    return pool


def test_few_connections_are_opened_at_once() -> None:
    books = empty_books()
    opening = [taken(books) for _ in range(OPENINGS_AT_ONCE_MAX)]
    assert books.take("a") is None
    assert taken(books, "b").is_fresh

    opening[0].is_fresh = False

    assert taken(books).is_fresh


def test_a_connection_that_is_of_no_use_any_more_makes_room() -> None:
    books = empty_books()
    pool = all_taken(books)
    assert books.take("a") is None

    books.put_back(pool[0], is_usable=False, now=1.0)

    assert taken(books) not in pool


def test_calls_that_wait_get_connections_in_their_order() -> None:
    books = empty_books()
    pool = all_taken(books)
    assert [books.take("a", call) for call in (1, 2)] == [None, None]
    books.put_back(pool[0], is_usable=True, now=1.0)

    assert books.take("a", 3) is None, "others were first"
    assert books.take("a", 2) is None
    assert books.take("a", 1) is pool[0]
    assert books.stop_waiting("a", 1)

    books.put_back(pool[0], is_usable=True, now=1.0)
    assert books.stop_waiting("a", 2), "it gives up"
    assert books.take("a", 3) is pool[0]
    assert not books.stop_waiting("a", 3)


def test_the_connection_that_was_used_last_is_lent_first_so_that_the_others_can_be_trimmed() -> (
    None
):
    books = empty_books()
    first, second = taken(books), taken(books)
    books.put_back(first, is_usable=True, now=1.0)
    books.put_back(second, is_usable=True, now=2.0)

    assert taken(books) is second


def test_a_queue_is_ready_while_a_connection_is_open_or_at_work() -> None:
    books = empty_books()
    assert not books.has_ready("a")

    connection = taken(books)
    assert books.has_ready("a")

    connection.sender.open()
    books.put_back(connection, is_usable=True, now=1.0)
    assert books.has_ready("a")

    connection.sender.close()  # by the client that it belongs to
    assert not books.has_ready("a")


def test_the_limit_of_a_batch_is_that_of_the_last_new_connection() -> None:
    books = empty_books()
    assert books.batch_bytes_max == private.MESSAGE_BYTES_ASSUMED

    connection = taken(books)
    connection.sender.open((1_000_000, 500_000))
    books.put_back(connection, is_usable=True, now=1.0)
    assert books.batch_bytes_max == 500_000

    connection = taken(books)
    connection.sender.close()
    books.put_back(connection, is_usable=False, now=1.0)
    assert books.batch_bytes_max == 500_000


class Call:
    """Something that a connection may be lent to."""


def test_a_connection_whose_call_is_gone_is_closed() -> None:
    books, call = empty_books(), Call()
    kept, lost = taken(books), books.take("a", call=call)
    books.trim(keep=frozenset(), now=1.0)
    assert books.ended == []

    del call
    books.trim(keep=frozenset("a"), now=1.0)

    assert books.ended == [lost]
    assert books.lent == [kept]


# --- the same against a plain account

QUEUES = st.sampled_from("ab")


class Books(RuleBasedStateMachine):
    """Every connection is in one place: lent, idle, or returned to be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PoolState(StandIn)
        self.now = 0.0
        self.lent: list[BacklogConnection[StandIn]] = []
        self.idle: list[BacklogConnection[StandIn]] = []
        self.gone: list[BacklogConnection[StandIn]] = []

    def closed(self) -> list[BacklogConnection[StandIn]]:
        """What the shell closes now."""
        ended, self.state.ended = self.state.ended, []
        return ended

    def of(
        self, pool: list[BacklogConnection[StandIn]], queue: str
    ) -> list[BacklogConnection[StandIn]]:
        return [connection for connection in pool if connection.queue == queue]

    @rule(queue=QUEUES)
    def take(self, queue: str) -> None:
        idle, lent = self.of(self.idle, queue), self.of(self.lent, queue)
        connection = self.state.take(queue)
        if idle:
            assert connection is idle[-1]
            self.idle.remove(connection)
        elif sum(connection.is_fresh for connection in lent) >= OPENINGS_AT_ONCE_MAX:
            assert connection is None
            return
        assert connection is not None
        assert connection not in [*self.lent, *self.idle, *self.gone], "it is lent, or was closed"
        assert connection.is_fresh is not bool(idle)
        self.lent.append(connection)

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), is_usable=st.booleans())
    def put_back(self, data: st.DataObject, is_usable: bool) -> None:
        connection = data.draw(st.sampled_from(self.lent))
        self.lent.remove(connection)
        if is_usable:
            connection.sender.open()
        self.state.put_back(connection, is_usable=is_usable, now=self.now)
        assert self.closed() == ([] if is_usable else [connection])
        (self.idle if is_usable else self.gone).append(connection)

    @rule(queue=QUEUES)
    def clear(self, queue: str) -> None:
        expected = self.of(self.idle, queue)
        self.state.clear(queue)
        assert self.closed() == expected
        self._end(expected)

    @rule(keep=st.frozensets(QUEUES), seconds=st.floats(0, 2 * IDLE_SECONDS_MAX))
    def trim(self, keep: frozenset[str], seconds: float) -> None:
        self.now += seconds
        self.state.trim(keep=keep, now=self.now)
        gone = self.closed()
        assert all(connection in self.idle for connection in gone)
        assert all(self.now - connection.idle_since > IDLE_SECONDS_MAX for connection in gone)
        self._end(gone)
        for queue in "ab":
            left = self.of(self.idle, queue)
            if queue in keep:
                assert left or not self.of(gone, queue), "the last one went"
                left = left[1:]
            assert all(self.now - connection.idle_since <= IDLE_SECONDS_MAX for connection in left)

    @rule()
    def empty(self) -> None:
        self.state.clear_all()
        assert sorted(map(id, self.closed())) == sorted(map(id, self.idle))
        self._end([*self.idle])

    @invariant()
    def what_is_lent_is_in_the_books(self) -> None:
        assert set(self.state.lent) == set(self.lent)

    @invariant()
    def there_are_never_too_many(self) -> None:
        for queue in "ab":
            assert len(self.of(self.idle + self.lent, queue)) <= CONNECTIONS_PER_QUEUE_MAX

    @invariant()
    def readiness_is_reported_as_it_is(self) -> None:
        for queue in "ab":
            expected = bool(self.of(self.lent, queue) or self.of(self.idle, queue))
            assert self.state.has_ready(queue) is expected

    def _end(self, pool: list[BacklogConnection[StandIn]]) -> None:
        for connection in pool:
            (self.idle if connection in self.idle else self.lent).remove(connection)
            self.gone.append(connection)


TestBooks = Books.TestCase
