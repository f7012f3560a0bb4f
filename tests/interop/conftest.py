"""Fixtures for the official `azure-servicebus` package, unmodified, against the broker.

Tests use the blocking client. Where the asyncio client works differently, `@both_clients` runs them
with both. One broker serves a module; a test states the queues it needs with
`@pytest.mark.queue(...)`, and no other test uses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pairbus.broker import Broker, QueueDescription
from pairbus.testing import ManualClock
from tests.interop.bus import POLICIES, Bus
from tests.interop.shells import AsyncioShell, Shell, SyncShell


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "queue(suffix=None, **settings): a queue of the test's own, as QueueDescription takes it; "
        "forward_to and forward_dead_lettered_messages_to name another suffix",
    )


def _prefix(item: pytest.Item) -> str:
    """The test's name as a queue name, readable in the broker's log: letters, digits, dashes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", item.name.removeprefix("test_")).strip("-")[:200]


def _descriptions(item: pytest.Item) -> Iterator[QueueDescription]:
    prefix = _prefix(item)
    marks = list(item.iter_markers("queue"))
    if not any(not mark.args for mark in marks):
        yield QueueDescription(name=prefix)
    for mark in marks:
        settings = dict(mark.kwargs)
        for key in ("forward_to", "forward_dead_lettered_messages_to"):
            if key in settings:
                settings[key] = f"{prefix}.{settings[key]}"
        name = f"{prefix}.{mark.args[0]}" if mark.args else prefix
        yield QueueDescription(name=name, **settings)


@pytest.fixture(scope="session")
def asyncio_shell() -> Iterator[AsyncioShell]:
    shell = AsyncioShell()
    yield shell
    shell.close()


@pytest.fixture
def shell(request: pytest.FixtureRequest) -> Shell:
    if getattr(request, "param", "sync") == "asyncio":
        found: AsyncioShell = request.getfixturevalue("asyncio_shell")
        return found
    return SyncShell()


@pytest.fixture
def transport() -> str:
    return "tcp"


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(runs=True)


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Broker]:
    items = [item for item in request.session.items if item.path == request.path]
    queues = [queue for item in items for queue in _descriptions(item)]
    with Broker(queues=queues, policies=POLICIES, clock=clock) as running:
        yield running


class Closing:
    """Closes what tests opened in the background: the SDK needs half a second for each link."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._closed: list[Future[None]] = []

    def soon(self, close: Callable[[], None]) -> None:
        self._closed.append(self._pool.submit(close))

    def wait(self) -> None:
        self._pool.shutdown()
        for future in self._closed:
            future.result()


@pytest.fixture(scope="module")
def closing(broker: Broker) -> Iterator[Closing]:
    closing = Closing()
    yield closing
    closing.wait()


@pytest.fixture
def bus(
    request: pytest.FixtureRequest,
    shell: Shell,
    broker: Broker,
    clock: ManualClock,
    transport: str,
    closing: Closing,
) -> Iterator[Bus]:
    view = Bus(
        shell=shell,
        broker=broker,
        clock=clock,
        queue=_prefix(request.node),
        transport=transport,
    )
    yield view
    closing.soon(view.close)
