"""Fixtures for applications that are tested with pytest: a Service Bus of their own for each test.

pytest loads this by itself once pairbus is installed. It imports nothing of pairbus, or of Azure's
SDK, before a test asks for one of the two fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    import pairbus
    from pairbus.broker import Broker

MARKER = "servicebus"
_PRIMARY_NAME = "primary"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "servicebus_queues", "queues that every test's namespace has, one a line", type="linelist"
    )
    parser.addini(
        "servicebus_topics",
        "topics, and subscriptions as TOPIC/Subscriptions/NAME, one a line",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(queues=(), topics=()): entities of this test's servicebus_namespace, or of the "
        "primary of its servicebus_pair",
    )


class ServiceBusPair:
    """Two namespaces, and a client that is paired with both."""

    def __init__(self, primary: Broker, secondary: Broker) -> None:
        self.primary = primary
        """The namespace under test: `primary.faults.unreachable()` takes it down."""
        self.secondary = secondary
        """The namespace of the backlog."""
        self._open: list[Any] = []

    def options(self, **settings: Any) -> pairbus.SendAvailabilityPairedNamespaceOptions:
        """To pair a client of your own: `client.pair_namespace(pair.options())`.

        Fails over at the first failure and has two backlog queues, unless told otherwise; takes
        what SendAvailabilityPairedNamespaceOptions does.
        """
        from azure.servicebus.management import ServiceBusAdministrationClient

        import pairbus

        secondary = pairbus.ServiceBusClient.from_connection_string(
            self.secondary.connection_string, retry_total=0
        )
        manager = ServiceBusAdministrationClient.from_connection_string(
            self.secondary.connection_string, connection_verify=str(self.secondary.ca_file)
        )
        self._open += [secondary, manager]
        usual: dict[str, Any] = {
            "failover_interval": timedelta(0),
            "ping_primary_interval": timedelta(seconds=1),
            "backlog_queue_count": 2,
            "primary_namespace_name": _PRIMARY_NAME,
        }
        return pairbus.SendAvailabilityPairedNamespaceOptions(
            manager, secondary, **(usual | settings)
        )

    def client(self, **settings: Any) -> pairbus.ServiceBusClient:
        """A paired client of the primary; `settings` are those of `options`. It is closed at the
        end of the test."""
        import pairbus

        client = pairbus.ServiceBusClient.from_connection_string(
            self.primary.connection_string, retry_total=0
        )
        # Before the secondary's: what closes later is closed first.
        options = self.options(**settings)
        self._open.append(client)
        client.pair_namespace(options)
        return client

    def backlog(self) -> list[ServiceBusReceivedMessage]:
        """What was diverted and has not come home, as it lies in the backlog queues."""
        from azure.servicebus import ServiceBusClient

        found: list[ServiceBusReceivedMessage] = []
        with ServiceBusClient.from_connection_string(self.secondary.connection_string) as client:
            # Only where there is something: the SDK takes a second to open and close a link.
            for queue in self._backlog_queues(filled=True):
                with client.get_queue_receiver(queue) as receiver:
                    found += receiver.peek_messages(max_message_count=250, sequence_number=1)
        return found

    def bring_home(self) -> int:
        """What a syphon does, once, in this process and without Spark; how many came home."""
        from pairbus.fast.address import Address
        from pairbus.syphon.discovery import Named
        from pairbus.syphon.job import Job, SyphonOptions
        from pairbus.syphon.receipts import Outcome
        from pairbus.syphon.runner import HereRunner

        options = SyphonOptions(
            primary=Address.from_connection_string(self.primary.connection_string),
            secondary=Address.from_connection_string(self.secondary.connection_string),
        )
        job = Job(options, HereRunner(), Named(self._backlog_queues()))
        receipts = job.run(once=True)
        return sum(each.count for each in receipts if each.outcome is Outcome.BROUGHT_HOME)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _backlog_queues(self, *, filled: bool = False) -> list[str]:
        from azure.servicebus.management import ServiceBusAdministrationClient

        with ServiceBusAdministrationClient.from_connection_string(
            self.secondary.connection_string, connection_verify=str(self.secondary.ca_file)
        ) as manager:
            return [
                queue.name
                for queue in manager.list_queues_runtime_properties()
                if "/x-servicebus-transfer/" in queue.name.lower()
                and (queue.active_message_count or not filled)
            ]


@pytest.fixture
def servicebus_namespace(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A Service Bus of this test's own, in this process, with the queues and topics of the marker
    `servicebus` and of the ini options; `connection_string` is for the official SDK."""
    from pairbus.broker import Broker

    queues, topics = _entities(request)
    with Broker(queues, topics=topics) as broker:
        yield broker


@pytest.fixture
def servicebus_pair(request: pytest.FixtureRequest) -> Iterator[ServiceBusPair]:
    """Two namespaces; the first has the entities. `client()` is a paired client of it."""
    from pairbus.broker import Broker

    queues, topics = _entities(request)
    with Broker(queues, topics=topics) as primary, Broker() as secondary:
        pair = ServiceBusPair(primary, secondary)
        try:
            yield pair
        finally:
            pair.close()


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
        queues += _listed(marker.kwargs.get("queues", ()))
        topics += _listed(marker.kwargs.get("topics", ()))
    return _once(queues), _once(topics)


def _listed(value: Any) -> list[Any]:
    """A single name is a list of one, and not of its letters."""
    return [value] if isinstance(value, str) else list(value)


def _once(entities: list[Any]) -> list[Any]:
    """Without those named twice; a description comes before a plain name."""
    found: dict[str, Any] = {}
    for entity in entities:
        name = entity if isinstance(entity, str) else entity.name
        if name.lower() not in found or not isinstance(entity, str):
            found[name.lower()] = entity
    return list(found.values())
