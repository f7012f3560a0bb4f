"""Fixtures for pytest: a Service Bus for each test, or one for the session.

pytest loads this module wherever pairbus is installed, so it imports nothing heavy until a test
asks for one of the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pairbus.broker import Broker
    from pairbus.testing import AsyncServiceBusPair, ServiceBusPair

MARKER = "servicebus"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "servicebus_queues", "queues of every test's namespace, one per line", type="linelist"
    )
    parser.addini(
        "servicebus_topics",
        "topics, and subscriptions as TOPIC/Subscriptions/NAME, one per line",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(queues=(), topics=()): entities of this test's servicebus_namespace or "
        "servicebus_session_namespace, or of the primary namespace of its pair",
    )


@pytest.fixture
def servicebus_namespace(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A namespace in this process, for this test only.

    It has the queues and topics of the marker `servicebus` and of the ini options. Give its
    `connection_string` to the official SDK.
    """
    from pairbus.broker import Broker

    queues, topics = _entities(request)
    with Broker(queues, topics=topics) as broker:
        yield broker


@pytest.fixture(scope="session")
def servicebus_session_namespace(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One namespace for all tests that ask for it, with the entities of all of them.

    The next test finds what a test leaves in a queue.
    """
    from pairbus.broker import Broker

    queues, topics = _entities(request)
    with Broker(queues, topics=topics) as broker:
        yield broker


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> Iterator[ServiceBusPair]:
    """Two namespaces, of which the primary has the entities; `client()` makes a paired client."""
    from pairbus.testing import ServiceBusPair

    queues, topics = _entities(request)
    with ServiceBusPair(queues, topics=topics) as pair:
        yield pair


@pytest.fixture
def servicebus_aio_pair(request: pytest.FixtureRequest) -> Iterator[AsyncServiceBusPair]:
    """`servicebus_pair` for asyncio: `async with servicebus_aio_pair.client() as client`."""
    from pairbus.testing import AsyncServiceBusPair

    queues, topics = _entities(request)
    pair = AsyncServiceBusPair(queues, topics=topics).start()
    yield pair
    pair.close()


def _entities(request: pytest.FixtureRequest) -> tuple[list[Any], list[Any]]:
    """For a fixture of the whole session, those of all tests that use it."""
    queues: list[Any] = list(request.config.getini("servicebus_queues"))
    topics: list[Any] = list(request.config.getini("servicebus_topics"))
    items = [request.node]
    if request.scope == "session":
        items = [
            item
            for item in request.session.items
            if request.fixturename in getattr(item, "fixturenames", ())
        ]
    for marker in [marker for item in items for marker in item.iter_markers(MARKER)]:
        unknown = sorted(set(marker.kwargs) - {"queues", "topics"})
        if marker.args or unknown:
            raise pytest.UsageError(
                f"@pytest.mark.{MARKER} takes queues=[...] and topics=[...], "
                f"not {', '.join(map(repr, (*marker.args, *unknown)))}"
            )
        queues += _as_list(marker.kwargs.get("queues", ()))
        topics += _as_list(marker.kwargs.get("topics", ()))
    return _without_duplicates(queues), _without_duplicates(topics)


def _as_list(value: Any) -> list[Any]:
    """A single name is one entity, not a list of letters."""
    return [value] if isinstance(value, str) else list(value)


def _without_duplicates(entities: list[Any]) -> list[Any]:
    """Of two entities with one name, a description wins over a plain name."""
    found: dict[str, Any] = {}
    for entity in entities:
        name = entity if isinstance(entity, str) else entity.name
        if name.lower() not in found or not isinstance(entity, str):
            found[name.lower()] = entity
    return list(found.values())
