"""Connections to backlog queues, lent to one send at a time, in both shells."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.client import pool as pool_state
from pairbus.client.aio import pool as aio_pool
from pairbus.client.blocking import pool as blocking_pool
from pairbus.client.pool import CONNECTIONS_PER_QUEUE_MAX, IDLE_SECONDS_MAX, PoolExhausted
from pairbus.client.sdk import private
from tests.client.fakes import SECONDARY, Clock, StandIn
from tests.client.lines import ctrl_c, run_and_interrupt
from tests.client.shells.both import (
    AsyncioSide,
    Others,
    Side,
    SyncSide,
    is_waiting,
)
from tests.waiting import wait_until


class Fleet:
    """All senders that were made."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.made: list[StandIn] = []

    def __call__(self, queue: str) -> StandIn:
        sender = self._side.stand_in(queue)
        self.made.append(sender)
        return sender

    @property
    def closed(self) -> list[StandIn]:
        return [sender for sender in self.made if sender.is_closed]


@pytest.fixture
def fleet(side: Side) -> Fleet:
    return Fleet(side)


@pytest.fixture
def pool(side: Side, fleet: Fleet) -> Any:
    return side.pool(fleet, time.monotonic)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_pool, "CLOSE_SECONDS_MAX", 0.3)
    # The tests borrow all connections, and open none.
    monkeypatch.setattr(pool_state, "OPENINGS_AT_ONCE_MAX", CONNECTIONS_PER_QUEUE_MAX)


def borrowed(pool: Any, count: int, queue: str = "a") -> list[Any]:
    return [pool.borrow(queue, 1.0) for _ in range(count)]


def test_a_connection_is_made_when_there_is_none_and_kept_when_it_comes_back(
    pool: Any, fleet: Fleet
) -> None:
    [connection] = borrowed(pool, 1)
    assert (connection.queue, connection.is_fresh) == ("a", True)
    assert not private.is_running(connection.sender), "the borrower opens it"

    connection.sender.open()
    pool.give_back(connection, is_usable=True)

    assert pool.has_ready("a")
    [again] = borrowed(pool, 1)
    assert again is connection
    assert len(fleet.made) == 1


def test_a_call_that_waits_too_long_for_a_connection_gets_an_error(
    pool: Any, others: Others
) -> None:
    borrowed(pool, CONNECTIONS_PER_QUEUE_MAX)

    with pytest.raises(PoolExhausted, match=r"'a' were in use, or being opened, for 0\.05 s"):
        pool.borrow("a", 0.05)


@pytest.mark.parametrize("is_usable", [True, False])
def test_a_waiting_call_gets_the_connection_or_the_room_that_comes_free(
    pool: Any, others: Others, is_usable: bool
) -> None:
    lent = borrowed(pool, CONNECTIONS_PER_QUEUE_MAX)
    waiting = others.begin(pool.borrow, "a", 10.0)
    assert is_waiting(waiting)

    lent[3].sender.open()
    pool.give_back(lent[3], is_usable=is_usable)

    got = waiting.result(30)
    assert (got is lent[3]) is is_usable
    assert lent[3].sender.is_closed is not is_usable


def test_a_free_connection_goes_to_a_call_that_waits_for_its_queue(
    pool: Any, others: Others
) -> None:
    lent = {queue: borrowed(pool, CONNECTIONS_PER_QUEUE_MAX, queue) for queue in "ab"}
    for_a = others.begin(pool.borrow, "a", 10.0)
    assert is_waiting(for_a)
    for_b = others.begin(pool.borrow, "b", 10.0)
    assert is_waiting(for_b)

    pool.give_back(lent["b"][0], is_usable=True)

    assert for_b.result(30) is lent["b"][0]
    assert is_waiting(for_a)
    pool.give_back(lent["a"][0], is_usable=True)
    assert for_a.result(30) is lent["a"][0]


def test_the_call_that_has_waited_longest_gets_the_next_connection(
    pool: Any, others: Others
) -> None:
    lent = borrowed(pool, CONNECTIONS_PER_QUEUE_MAX)
    waiting = []
    for _ in range(4):
        waiting.append(others.begin(pool.borrow, "a", 10.0))
        assert is_waiting(waiting[-1])

    for call, connection in zip(waiting, lent, strict=False):
        pool.give_back(connection, is_usable=True)
        assert call.result(30) is connection


def test_many_that_wait_all_get_one(pool: Any, others: Others) -> None:
    def send() -> bool:
        connection = pool.borrow("a", 10.0)
        assert connection.sender not in busy
        busy.append(connection.sender)
        busy.remove(connection.sender)
        pool.give_back(connection, is_usable=True)
        return True

    busy: list[StandIn] = []

    assert all(call.result(30) for call in [others.begin(send) for _ in range(100)])


def test_a_fresh_connection_is_new_and_those_like_the_stale_one_are_closed(
    pool: Any, fleet: Fleet
) -> None:
    stale = borrowed(pool, 3)
    for connection in stale:
        pool.give_back(connection, is_usable=True)

    fresh = pool.borrow("a", 1.0, is_fresh=True)

    assert fresh.is_fresh
    wait_until(lambda: len(fleet.closed) == 3, "they are closed")
    assert not fresh.sender.is_closed


def test_those_like_the_stale_one_are_closed_even_if_there_is_no_room_for_a_fresh_one(
    pool: Any, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_state, "OPENINGS_AT_ONCE_MAX", 2)
    [idle] = borrowed(pool, 1)
    pool.give_back(idle, is_usable=True)
    borrowed(pool, 3)  # the idle one, and two that are being opened
    pool.give_back(idle, is_usable=True)

    with pytest.raises(PoolExhausted):
        pool.borrow("a", 0.05, is_fresh=True)

    wait_until(lambda: idle.sender.is_closed, "it is closed")
    assert fleet.closed == [idle.sender]


def test_closing_that_fails_harms_nobody(pool: Any, fleet: Fleet) -> None:
    [connection] = borrowed(pool, 1)

    def broken() -> None:
        connection.sender.is_closed = True
        raise OSError("gone")

    connection.sender.close = broken
    pool.give_back(connection, is_usable=False)

    wait_until(lambda: connection.sender.is_closed, "it is closed")


def test_what_is_idle_for_long_is_closed_but_one_of_each_wanted_queue(
    side: Side, fleet: Fleet, clock: Clock
) -> None:
    pool = side.pool(fleet, clock)
    for queue in "ab":
        for connection in borrowed(pool, 2, queue):
            pool.give_back(connection, is_usable=True)

    pool.trim(keep=frozenset("a"))
    assert fleet.closed == []
    clock.advance(IDLE_SECONDS_MAX + 1)
    pool.trim(keep=frozenset("a"))

    wait_until(lambda: len(fleet.closed) == 3, "three are closed")
    assert sorted(sender.entity_name for sender in fleet.closed) == ["a", "b", "b"]


# --- the end


@pytest.mark.req("C-02")
def test_closing_closes_what_is_idle_and_what_is_lent_when_it_comes_back(
    pool: Any, fleet: Fleet
) -> None:
    idle, lent = borrowed(pool, 2)
    pool.give_back(idle, is_usable=True)

    pool.close()
    assert idle.sender.is_closed
    pool.give_back(lent, is_usable=True)

    wait_until(lambda: lent.sender.is_closed, "the lent one is closed")
    assert not pool.has_ready("a")
    pool.close()


@pytest.mark.req("C-02")
def test_a_call_that_waits_when_the_pool_closes_gets_an_error(pool: Any, others: Others) -> None:
    borrowed(pool, CONNECTIONS_PER_QUEUE_MAX)
    waiting = others.begin(pool.borrow, "a", 10.0)
    assert is_waiting(waiting)

    pool.close()

    with pytest.raises(ValueError, match="the paired client has been closed"):
        waiting.result(30)
    with pytest.raises(ValueError, match="the paired client has been closed"):
        pool.borrow("a", 1.0)


@pytest.mark.req("F-07")
def test_a_secondary_whose_client_is_closed_gives_no_connections(side: Side, fleet: Fleet) -> None:
    client = side.client(SECONDARY)
    pool = side.pool(fleet, time.monotonic, client)
    client.close()

    with pytest.raises(ServiceBusConnectionError, match="secondary's client has been closed"):
        pool.borrow("q", 1.0)


def test_a_connection_is_closed_even_if_there_is_no_thread_to_do_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side = SyncSide()
    fleet = Fleet(side)
    pool = side.pool(fleet, Clock())
    connection = pool.borrow("a", 1.0)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.give_back(connection, is_usable=False)

    assert connection.sender.is_closed
    pool.close()


def test_an_interrupt_at_any_line_does_not_leave_a_call_that_the_others_wait_for() -> None:
    side = SyncSide()
    for line in itertools.count(1):
        pool = side.pool(Fleet(side), Clock())
        with suppress(KeyboardInterrupt):
            borrow = partial(pool.borrow, "a", 1.0)
            if not run_and_interrupt(borrow, pool_state, ctrl_c, before_line=line):
                break
        assert pool.borrow("a", 0.05)
        pool.close()

    assert line > 5


class Call:
    """A call that borrows a connection, and is gone after an interrupt."""


@pytest.mark.req("C-02")
@pytest.mark.parametrize("module", [pool_state, blocking_pool])
def test_an_interrupt_at_any_line_leaves_no_connection(module: ModuleType) -> None:
    def borrow_and_give_back(call: Call) -> None:
        connection = pool.borrow("a", 1.0, call=call)
        pool.give_back(connection, is_usable=False)

    side = SyncSide()
    for line in itertools.count(1):
        pool = side.pool(Fleet(side), Clock())
        with suppress(KeyboardInterrupt):
            work = partial(borrow_and_give_back, Call())
            if not run_and_interrupt(work, module, ctrl_c, before_line=line):
                break
        del work
        pool.trim(keep=frozenset())
        assert not pool.has_ready("a")
        pool.close()

    assert line > 5


@pytest.mark.req("C-02")
@pytest.mark.parametrize("module", [pool_state, blocking_pool])
def test_closing_that_is_interrupted_at_any_line_can_be_repeated(module: ModuleType) -> None:
    side = SyncSide()
    for line in itertools.count(1):
        fleet = Fleet(side)
        pool = side.pool(fleet, Clock())
        for connection in borrowed(pool, 3):
            pool.give_back(connection, is_usable=True)
        with suppress(KeyboardInterrupt):
            if not run_and_interrupt(pool.close, module, ctrl_c, before_line=line):
                break
        pool.close()
        assert len(fleet.closed) == 3, f"before line {line}"

    assert line > 5


def test_an_interrupt_while_a_connection_is_closed_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking_pool, "CLOSE_SECONDS_MAX", 60.0)
    side = SyncSide()
    for line in itertools.count(1):
        pool = side.pool(Fleet(side), Clock())
        connection = pool.borrow("a", 1.0)
        with suppress(KeyboardInterrupt):
            give_back = partial(pool.give_back, connection, is_usable=False)
            if not run_and_interrupt(give_back, blocking_pool, ctrl_c, before_line=line):
                break
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < 50, f"before line {line}"

    assert line > 5


# --- asyncio alone


def test_a_task_that_is_cancelled_while_it_waits_takes_no_connection_with_it(
    asyncio_side: AsyncioSide, clock: Clock
) -> None:
    fleet = Fleet(asyncio_side)
    pool = asyncio_side.pool(fleet, clock).target

    async def run() -> None:
        lent = [await pool.borrow("a", 1.0) for _ in range(CONNECTIONS_PER_QUEUE_MAX)]
        cancelled = [asyncio.create_task(pool.borrow("a", 5.0)) for _ in range(3)]
        patient = asyncio.create_task(pool.borrow("a", 5.0))
        await asyncio.sleep(0)
        # Freed and cancelled in one go: neither may get lost.
        pool.give_back(lent[0], is_usable=True)
        for task in cancelled:
            task.cancel()

        assert await patient is lent[0]
        for task in cancelled:
            with pytest.raises(asyncio.CancelledError):
                await task
        pool.give_back(lent[0], is_usable=True)
        assert await pool.borrow("a", 1.0) is lent[0]

    asyncio_side.call(run)


def test_closing_waits_for_what_is_lent_and_leaves_no_task(
    asyncio_side: AsyncioSide, clock: Clock
) -> None:
    fleet = Fleet(asyncio_side)
    pool = asyncio_side.pool(fleet, clock).target

    async def run() -> set[Any]:
        before = asyncio.all_tasks()
        idle = [await pool.borrow("a", 1.0) for _ in range(4)]
        for connection in idle:
            pool.give_back(connection, is_usable=True)
        lent = await pool.borrow("b", 1.0)
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        assert not lent.sender.is_closed, "under whoever is at work with it"
        pool.give_back(lent, is_usable=True)
        await asyncio.wait_for(closing, 30)
        return asyncio.all_tasks() - before

    assert asyncio_side.call(run) == set()
    assert len(fleet.closed) == 5


def test_closing_does_not_wait_for_ever(asyncio_side: AsyncioSide, clock: Clock) -> None:
    pool = asyncio_side.pool(Fleet(asyncio_side), clock).target

    async def run() -> None:
        await pool.borrow("a", 1.0)
        await asyncio.wait_for(pool.close(), 30)

    asyncio_side.call(run)
