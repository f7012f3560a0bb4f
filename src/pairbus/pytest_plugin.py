"""Fixtures for pytest: each test gets a Service Bus of its own.

pytest loads this module wherever pairbus is installed, so it imports nothing heavy until a test
asks for one of the two fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pairbus.broker import Broker
    from pairbus.testing import ServiceBusPair

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
        f"{MARKER}(queues=(), topics=()): entities of this test's servicebus_namespace, or of the "
        "primary namespace of its servicebus_pair",
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


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> Iterator[ServiceBusPair]:
    """Two namespaces, of which the primary has the entities; `client()` makes a paired client."""
    from pairbus.testing import ServiceBusPair

    queues, topics = _entities(request)
    with ServiceBusPair(queues, topics=topics) as pair:
        yield pair


def _entities(request: pytest.FixtureRequest) -> tuple[list[Any], list[Any]]:
    queues: list[Any] = list(request.config.getini("servicebus_queues"))
    topics: list[Any] = list(request.config.getini("servicebus_topics"))
    for marker in request.node.iter_markers(MARKER):
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
