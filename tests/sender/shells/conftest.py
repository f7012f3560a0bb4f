"""Fixtures for the two shells: every test that asks for a `side` runs in both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sender.shells.both import AsyncioSide, Others, Side, SyncSide


@pytest.fixture(scope="session")
def asyncio_side() -> Iterator[AsyncioSide]:
    side = AsyncioSide()
    yield side
    side.close()


@pytest.fixture(params=["sync", "asyncio"])
def side(request: pytest.FixtureRequest, asyncio_side: AsyncioSide) -> Side:
    return asyncio_side if request.param == "asyncio" else SyncSide()


@pytest.fixture
def others() -> Iterator[Others]:
    others = Others()
    yield others
    others.close()
