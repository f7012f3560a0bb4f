"""Connections to backlog queues, lent to one send at a time, in both shells."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.client.aio import pool as aio_lanes
from pairbus.client.blocking.pool import Lanes
from pairbus.client.pool import IDLE_SECONDS_MAX, LANES_PER_QUEUE_MAX, AllBusy
from tests.client.fakes import Clock, plain_client
from tests.client.shells.both import (
    AsyncioSide,
    Others,
    Scripted,
    Side,
    SyncSide,
    is_waiting,
    until,
)


class Fleet:
    """All senders that were made."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.made: list[Scripted] = []

    def __call__(self, queue: str) -> Scripted:
        sender = self._side.scripted(queue)
        self.made.append(sender)
        return sender

    @property
    def closed(self) -> list[Scripted]:
        return [sender for sender in self.made if sender.is_closed]


@pytest.fixture
def fleet(side: Side) -> Fleet:
    return Fleet(side)


@pytest.fixture
def lanes(side: Side, fleet: Fleet) -> Any:
    return side.lanes(fleet, time.monotonic)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_lanes, "CLOSE_SECONDS_MAX", 0.3)


def borrowed(lanes: Any, count: int, queue: str = "a") -> list[Any]:
    return [lanes.borrow(queue, timeout=1.0) for _ in range(count)]


def test_a_lane_is_made_when_there_is_none_and_kept_when_it_comes_back(
    lanes: Any, fleet: Fleet
) -> None:
    [lane] = borrowed(lanes, 1)
    assert (lane.queue, lane.is_fresh) == ("a", True)
    assert not lane.sender.opened, "who borrows it opens it"

    lane.sender.open()
    lanes.give_back(lane, is_usable=True)

    assert lanes.has_ready("a")
    [again] = borrowed(lanes, 1)
    assert again is lane
    assert len(fleet.made) == 1


def test_no_two_have_the_same_lane(lanes: Any, fleet: Fleet) -> None:
    lent = borrowed(lanes, LANES_PER_QUEUE_MAX)

    assert len({id(lane.sender) for lane in lent}) == LANES_PER_QUEUE_MAX


def test_who_finds_all_lent_waits_and_is_told_if_it_was_in_vain(lanes: Any, others: Others) -> None:
    borrowed(lanes, LANES_PER_QUEUE_MAX)

    with pytest.raises(AllBusy, match=r"'a' were busy for 0\.05 seconds"):
        lanes.borrow("a", timeout=0.05)


@pytest.mark.parametrize("is_usable", [True, False])
def test_who_waits_gets_the_lane_or_the_room_that_comes_free(
    lanes: Any, others: Others, is_usable: bool
) -> None:
    lent = borrowed(lanes, LANES_PER_QUEUE_MAX)
    waiting = others.begin(lanes.borrow, "a", timeout=10.0)
    assert is_waiting(waiting)

    lent[3].sender.open()
    lanes.give_back(lent[3], is_usable=is_usable)

    got = waiting.result(5)
    assert (got is lent[3]) is is_usable
    assert lent[3].sender.is_closed is not is_usable


def test_a_lane_that_comes_free_finds_who_waits_for_its_queue(lanes: Any, others: Others) -> None:
    lent = {queue: borrowed(lanes, LANES_PER_QUEUE_MAX, queue) for queue in "ab"}
    for_a = others.begin(lanes.borrow, "a", timeout=10.0)
    assert is_waiting(for_a)
    for_b = others.begin(lanes.borrow, "b", timeout=10.0)
    assert is_waiting(for_b)

    lanes.give_back(lent["b"][0], is_usable=True)

    assert for_b.result(5) is lent["b"][0]
    assert is_waiting(for_a)
    lanes.give_back(lent["a"][0], is_usable=True)
    assert for_a.result(5) is lent["a"][0]


def test_many_that_wait_all_get_their_turn(lanes: Any, others: Others) -> None:
    def send() -> bool:
        lane = lanes.borrow("a", timeout=10.0)
        assert lane.sender not in busy
        busy.append(lane.sender)
        busy.remove(lane.sender)
        lanes.give_back(lane, is_usable=True)
        return True

    busy: list[Scripted] = []

    assert all(call.result(10) for call in [others.begin(send) for _ in range(100)])


def test_a_fresh_lane_is_new_and_those_like_the_stale_one_are_closed(
    lanes: Any, fleet: Fleet
) -> None:
    stale = borrowed(lanes, 3)
    for lane in stale:
        lanes.give_back(lane, is_usable=True)

    fresh = lanes.borrow("a", timeout=1.0, fresh=True)

    assert fresh.is_fresh
    until(lambda: len(fleet.closed) == 3, "they are closed")
    assert not fresh.sender.is_closed


def test_a_lane_of_no_use_is_closed_and_not_lent_again(lanes: Any) -> None:
    [lane] = borrowed(lanes, 1)

    lanes.give_back(lane, is_usable=False)

    until(lambda: lane.sender.is_closed, "it is closed")
    assert borrowed(lanes, 1) != [lane]


def test_closing_that_fails_harms_nobody(lanes: Any, fleet: Fleet) -> None:
    [lane] = borrowed(lanes, 1)

    def broken() -> None:
        lane.sender.is_closed = True
        raise OSError("gone")

    lane.sender.close = broken
    lanes.give_back(lane, is_usable=False)

    until(lambda: lane.sender.is_closed, "it is closed")


def test_what_is_idle_for_long_is_closed_but_one_of_each_wanted_queue(
    side: Side, fleet: Fleet, clock: Clock
) -> None:
    lanes = side.lanes(fleet, clock)
    for queue in "ab":
        for lane in borrowed(lanes, 2, queue):
            lanes.give_back(lane, is_usable=True)

    lanes.trim(keep=frozenset("a"))
    assert fleet.closed == []
    clock.advance(IDLE_SECONDS_MAX + 1)
    lanes.trim(keep=frozenset("a"))

    until(lambda: len(fleet.closed) == 3, "three are closed")
    assert sorted(sender.entity_name for sender in fleet.closed) == ["a", "b", "b"]


def test_limits_are_those_of_the_link_that_was_used_last(lanes: Any) -> None:
    [lane] = borrowed(lanes, 1)
    lane.sender.open((5_000, 4_000))
    lanes.give_back(lane, is_usable=True)

    assert lanes.limits == (5_000, 4_000)


# --- the end


@pytest.mark.req("C-02")
def test_closing_closes_what_is_idle_and_what_is_lent_when_it_comes_back(
    lanes: Any, fleet: Fleet
) -> None:
    idle, lent = borrowed(lanes, 2)
    lanes.give_back(idle, is_usable=True)

    lanes.close()
    assert idle.sender.is_closed
    lanes.give_back(lent, is_usable=True)

    until(lambda: lent.sender.is_closed, "the lent one is closed")
    assert not lanes.has_ready("a")
    lanes.close()


@pytest.mark.req("C-02")
def test_who_waits_when_it_closes_is_told(lanes: Any, others: Others) -> None:
    borrowed(lanes, LANES_PER_QUEUE_MAX)
    waiting = others.begin(lanes.borrow, "a", timeout=10.0)
    assert is_waiting(waiting)

    lanes.close()

    with pytest.raises(ValueError, match="the paired client has been closed"):
        waiting.result(5)
    with pytest.raises(ValueError, match="the paired client has been closed"):
        lanes.borrow("a", timeout=1.0)


def test_lanes_are_made_by_the_sdk_itself_so_that_a_paired_secondary_does_not_divert_them(
    side: Side,
) -> None:
    client = side.pairing_client()
    lanes = side.lanes_of(client)

    lane = lanes.borrow("q", timeout=1.0)

    assert type(lane.sender).__name__ == "BacklogSender"
    assert not hasattr(lane.sender, "belong_to")
    assert lane.sender.entity_name == "q"
    side.call(client.close)


@pytest.mark.req("F-07")
def test_a_secondary_whose_client_is_closed_gives_no_lanes(side: Side) -> None:
    client = side.pairing_client()
    lanes = side.lanes_of(client)
    side.call(client.close)

    with pytest.raises(ServiceBusConnectionError, match="client of the secondary has been closed"):
        lanes.borrow("q", timeout=1.0)


def test_the_handshake_of_a_blocking_lane_has_an_end() -> None:
    lanes = Lanes(plain_client(), handshake_seconds=7.0, clock=Clock())

    lane = lanes.borrow("q", timeout=1.0)

    assert lane.sender._config.ssl_context.seconds == 7.0


def test_a_lane_is_closed_even_if_there_is_no_thread_to_do_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side = SyncSide()
    fleet = Fleet(side)
    lanes = side.lanes(fleet, Clock())
    lane = lanes.borrow("a", timeout=1.0)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    lanes.give_back(lane, is_usable=False)

    assert lane.sender.is_closed
    lanes.close()


# --- asyncio alone


def test_a_task_that_is_cancelled_while_it_waits_takes_no_lane_with_it(
    asyncio_side: AsyncioSide, clock: Clock
) -> None:
    fleet = Fleet(asyncio_side)
    lanes = asyncio_side.lanes(fleet, clock).target

    async def run() -> None:
        lent = [await lanes.borrow("a", timeout=1.0) for _ in range(LANES_PER_QUEUE_MAX)]
        cancelled = [asyncio.create_task(lanes.borrow("a", timeout=5.0)) for _ in range(3)]
        patient = asyncio.create_task(lanes.borrow("a", timeout=5.0))
        await asyncio.sleep(0)
        # Freed and cancelled in one go: neither may get lost.
        lanes.give_back(lent[0], is_usable=True)
        for task in cancelled:
            task.cancel()

        assert await patient is lent[0]
        for task in cancelled:
            with pytest.raises(asyncio.CancelledError):
                await task
        lanes.give_back(lent[0], is_usable=True)
        assert await lanes.borrow("a", timeout=1.0) is lent[0]

    asyncio_side.call(run)


def test_closing_waits_for_what_is_lent_and_leaves_no_task(
    asyncio_side: AsyncioSide, clock: Clock
) -> None:
    fleet = Fleet(asyncio_side)
    lanes = asyncio_side.lanes(fleet, clock).target

    async def run() -> set[Any]:
        before = asyncio.all_tasks()
        idle = [await lanes.borrow("a", timeout=1.0) for _ in range(4)]
        for lane in idle:
            lanes.give_back(lane, is_usable=True)
        lent = await lanes.borrow("b", timeout=1.0)
        closing = asyncio.create_task(lanes.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        assert not lent.sender.is_closed, "under whoever is at work with it"
        lanes.give_back(lent, is_usable=True)
        await asyncio.wait_for(closing, 2)
        return asyncio.all_tasks() - before

    assert asyncio_side.call(run) == set()
    assert len(fleet.closed) == 5


def test_closing_does_not_wait_for_ever(asyncio_side: AsyncioSide, clock: Clock) -> None:
    lanes = asyncio_side.lanes(Fleet(asyncio_side), clock).target

    async def run() -> None:
        await lanes.borrow("a", timeout=1.0)
        await asyncio.wait_for(lanes.close(), 2)

    asyncio_side.call(run)
