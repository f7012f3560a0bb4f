"""Fixtures for the two shells: every test that asks for a `side` or a `stage` runs in both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from tests.client.shells.both import AsyncioSide, Others, Side, SyncSide
from tests.client.shells.stage import Stage


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


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    names = ("primary", "secondary")
    queues = [QueueDescription(name=name) for name in ("orders", "invoices")]
    with Broker(namespaces=[NamespaceOptions(name=name, queues=queues) for name in names]) as made:
        yield made


@pytest.fixture
def stage(side: Side, broker: Broker) -> Iterator[Stage]:
    yield from _staged(side, broker)


@pytest.fixture
def asyncio_stage(asyncio_side: AsyncioSide, broker: Broker) -> Iterator[Stage]:
    yield from _staged(asyncio_side, broker)


@pytest.fixture
def blocking_stage(broker: Broker) -> Iterator[Stage]:
    yield from _staged(SyncSide(), broker)


def _staged(side: Side, broker: Broker) -> Iterator[Stage]:
    stage = Stage(side, broker)
    yield stage
    for name in ("primary", "secondary"):
        broker[name].faults.clear()
    stage.close()
