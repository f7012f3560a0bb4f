"""A time limit where the SDK's asyncio client has none."""

from __future__ import annotations

import asyncio
import time

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.aio import background
from pairbus.client.aio.background import bounded


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "GRACE_SECONDS", 0.0)


def test_what_takes_too_long_is_cancelled_and_reported_as_the_sdk_would() -> None:
    async def run() -> None:
        async with bounded(0.05, "opening a link to 'orders'"):
            await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(OperationTimeoutError) as caught:
        asyncio.run(run())

    assert str(caught.value) == "opening a link to 'orders' took longer than 0.05 seconds"
    assert time.monotonic() - began < 50


def test_what_ends_in_time_ends_as_it_does() -> None:
    async def run(error: Exception | None) -> str:
        async with bounded(5.0, "it"):
            if error is not None:
                raise error
        return "done"

    assert asyncio.run(run(None)) == "done"
    for error in (ValueError("a mistake"), TimeoutError("another's")):
        with pytest.raises(type(error)) as caught:
            asyncio.run(run(error))
        assert caught.value is error


def test_a_task_that_is_cancelled_is_cancelled() -> None:
    async def run() -> None:
        async with bounded(5.0, "it"):
            await asyncio.sleep(60)

    async def cancel() -> None:
        task = asyncio.create_task(run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
