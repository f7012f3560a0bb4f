"""The lock of a sender that threads or tasks share, in both shells."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pairbus.client.aio.sender import SenderLock
from pairbus.client.send import SenderBusy
from tests.client.shells.both import AsyncioSide, Others, Side, is_waiting


@pytest.fixture
def lock(side: Side) -> Any:
    return side.lock("orders")


def test_one_call_at_a_time_and_each_learns_whether_it_had_to_wait(
    lock: Any, others: Others
) -> None:
    assert lock.acquire(1.0) is False
    assert not lock.try_acquire()
    second = others.begin(lock.acquire, 10.0)
    assert is_waiting(second)

    lock.release()

    assert second.result(30) is True
    assert not lock.try_acquire()
    lock.release()
    assert lock.try_acquire()


@pytest.mark.parametrize(("stuck_seconds", "is_stuck"), [(0.05, True), (5.0, False)])
def test_a_call_that_holds_it_for_longer_than_opening_takes_is_stuck(
    lock: Any, stuck_seconds: float, is_stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.send.OPEN_SECONDS_MIN", stuck_seconds)
    lock.acquire(1.0)

    with pytest.raises(SenderBusy, match=r"after 0\.05 s .* 'orders'") as caught:
        lock.acquire(0.05)
    assert caught.value.is_stuck is is_stuck


def test_waiting_too_long_behind_several_calls_is_not_a_stuck_call(
    lock: Any, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.send.OPEN_SECONDS_MIN", 0.05)
    lock.acquire(1.0)
    earlier = others.begin(lock.acquire, 10.0)
    assert is_waiting(earlier)
    unlucky = others.begin(lock.acquire, 1.0)
    assert is_waiting(unlucky, 0.05)
    lock.release()

    error = unlucky.exception(30)

    assert earlier.result(30) is True
    assert isinstance(error, SenderBusy)
    assert not error.is_stuck


def test_only_the_holder_releases_the_lock(lock: Any) -> None:
    one, other = object(), object()
    lock.acquire(1.0, one)

    lock.release(other)
    assert not lock.try_acquire()
    lock.release(one)
    assert lock.try_acquire(other)
    lock.release(one)
    assert not lock.try_acquire()


# --- asyncio


def test_a_time_limit_holds_also_while_the_lock_is_being_passed_on(
    asyncio_side: AsyncioSide,
) -> None:
    async def run() -> None:
        lock = SenderLock("orders")
        await lock.acquire(1.0)
        second = asyncio.create_task(lock.acquire(60.0))
        await asyncio.sleep(0)
        lock.release()  # to the second, which has not run yet

        began = time.monotonic()
        with pytest.raises(SenderBusy):
            await lock.acquire(0.1)
        assert time.monotonic() - began < 20
        await second
        lock.release()

    asyncio_side.call(run)


def test_a_cancelled_waiter_leaves_the_lock_to_the_next(
    asyncio_side: AsyncioSide,
) -> None:
    async def run() -> None:
        lock = SenderLock("orders")
        await lock.acquire(1.0)
        cancelled = asyncio.create_task(lock.acquire(60.0))
        patient = asyncio.create_task(lock.acquire(60.0))
        await asyncio.sleep(0)
        lock.release()
        cancelled.cancel()  # in the very moment in which it would have been its lock

        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(patient, 30)
        lock.release()
        await asyncio.wait_for(lock.acquire(20.0), 30)
        lock.release()

    asyncio_side.call(run)


def test_a_lock_that_is_being_passed_on_is_not_free(asyncio_side: AsyncioSide) -> None:
    async def run() -> None:
        lock = SenderLock("orders")
        assert await lock.try_acquire()
        second = asyncio.create_task(lock.acquire(60.0))
        await asyncio.sleep(0)
        lock.release()  # to the second, which has not run yet

        assert not await lock.try_acquire()
        await second
        assert not await lock.try_acquire()
        lock.release()
        assert await lock.try_acquire()

    asyncio_side.call(run)
