"""Many that share one sender take turns, in both shells."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pairbus.client import errand
from pairbus.client.aio.sender import Turn
from pairbus.client.errand import TurnTaken
from tests.client.shells.both import AsyncioSide, Others, Side, SyncSide, is_waiting


@pytest.fixture
def turn(side: Side) -> Any:
    return side.turn("orders")


def test_one_at_a_time(turn: Any, others: Others) -> None:
    turn.take(1.0)
    second = others.begin(turn.take, 10.0)
    assert is_waiting(second)

    turn.release()

    second.result(5)
    turn.release()


def test_who_waits_too_long_is_told_that_one_call_is_stuck(
    turn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errand, "OPEN_SECONDS_MIN", 0.05)
    turn.take(1.0)

    with pytest.raises(TurnTaken, match=r"'orders' for 0\.05 seconds") as caught:
        turn.take(0.05)
    assert caught.value.is_stuck


def test_who_waits_too_long_among_many_is_told_that_they_are_many(
    turn: Any, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errand, "OPEN_SECONDS_MIN", 0.05)
    turn.take(1.0)
    unlucky = others.begin(turn.take, 0.3)
    assert is_waiting(unlucky, 0.05)
    # Another was quicker: as if it had been released and taken in between.
    getattr(turn, "target", turn)._taken += 1

    error = unlucky.exception(5)

    assert isinstance(error, TurnTaken)
    assert not error.is_stuck


def test_who_has_less_time_than_opening_a_link_takes_says_nothing_of_the_primary(
    turn: Any,
) -> None:
    turn.take(1.0)

    with pytest.raises(TurnTaken) as caught:
        turn.take(0.05)
    assert not caught.value.is_stuck


def test_who_takes_a_turn_knows_whether_it_had_to_wait(turn: Any, others: Others) -> None:
    assert turn.take(1.0) is False
    second = others.begin(turn.take, 10.0)
    assert is_waiting(second)

    turn.release()

    assert second.result(5) is True


def test_a_turn_that_is_free_can_be_had_at_once(turn: Any, others: Others) -> None:
    assert turn.take_at_once()
    assert not turn.take_at_once()
    waiting = others.begin(turn.take, 10.0)
    assert is_waiting(waiting)

    turn.release()

    waiting.result(5)
    assert not turn.take_at_once()
    turn.release()
    assert turn.take_at_once()


def test_a_turn_is_known_to_who_has_it(side: Side, turn: Any) -> None:
    async def mine_within_a_task() -> list[bool]:
        own = Turn("orders")
        seen = [own.is_mine()]
        await own.take(1.0)
        seen.append(own.is_mine())
        seen.append(await asyncio.create_task(_asked(own)))
        own.release()
        return [*seen, own.is_mine()]

    if side.name == "asyncio":
        assert side.call(mine_within_a_task) == [False, True, False, False]
        return
    seen = [turn.is_mine()]
    turn.take(1.0)
    seen.append(turn.is_mine())
    turn.release()
    assert [*seen, turn.is_mine()] == [False, True, False]


async def _asked(turn: Turn) -> bool:
    return turn.is_mine()


def test_a_turn_of_another_thread_is_not_mine(others: Others) -> None:
    turn = SyncSide().turn("orders")
    others.begin(turn.take, 1.0).result(5)

    assert not turn.is_mine()


# --- asyncio


def test_a_time_limit_holds_also_for_who_comes_just_when_the_turn_is_passed_on(
    asyncio_side: AsyncioSide,
) -> None:
    async def run() -> None:
        turn = Turn("orders")
        await turn.take(1.0)
        second = asyncio.create_task(turn.take(5.0))
        await asyncio.sleep(0)
        turn.release()  # to the second, which has not run yet

        began = time.monotonic()
        with pytest.raises(TurnTaken):
            await turn.take(0.1)
        assert time.monotonic() - began < 2
        await second
        turn.release()

    asyncio_side.call(run)


def test_who_is_cancelled_while_it_waits_leaves_the_turn_to_the_next(
    asyncio_side: AsyncioSide,
) -> None:
    async def run() -> None:
        turn = Turn("orders")
        await turn.take(1.0)
        cancelled = asyncio.create_task(turn.take(5.0))
        patient = asyncio.create_task(turn.take(5.0))
        await asyncio.sleep(0)
        turn.release()
        cancelled.cancel()  # in the very moment in which it would have been its turn

        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(patient, 2)
        turn.release()
        await asyncio.wait_for(turn.take(1.0), 2)
        turn.release()

    asyncio_side.call(run)


def test_nobody_takes_a_turn_at_once_that_is_just_passed_on(asyncio_side: AsyncioSide) -> None:
    async def run() -> None:
        turn = Turn("orders")
        assert turn.take_at_once()
        second = asyncio.create_task(turn.take(5.0))
        await asyncio.sleep(0)
        turn.release()  # to the second, which has not run yet

        assert not turn.take_at_once()
        await second
        assert not turn.take_at_once()
        turn.release()
        assert turn.take_at_once()

    asyncio_side.call(run)
