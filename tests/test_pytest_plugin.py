"""The fixtures that pairbus offers to the tests of other projects."""

import asyncio
import subprocess
import sys

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import QueueDescription
from pairbus.testing import AsyncServiceBusPair, ServiceBusPair


def bodies(broker, queue):
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        return [str(message) for message in receiver.peek_messages(max_message_count=10)]


@pytest.mark.servicebus(queues="orders")
@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_a_namespace_of_its_own(servicebus_namespace, number):
    with (
        ServiceBusClient.from_connection_string(servicebus_namespace.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage(f"test {number}"))

    assert bodies(servicebus_namespace, "orders") == [f"test {number}"]


@pytest.mark.servicebus(
    queues=["orders", QueueDescription(name="orders", requires_session=True)],
    topics=["events/Subscriptions/audit"],
)
@pytest.mark.servicebus(queues=["invoices"])
def test_markers_add_up_and_a_description_wins_over_a_name(servicebus_namespace):
    from azure.servicebus.management import ServiceBusAdministrationClient

    with ServiceBusAdministrationClient.from_connection_string(
        servicebus_namespace.connection_string,
        connection_verify=str(servicebus_namespace.ca_file),
    ) as manager:
        sessions = {queue.name: queue.requires_session for queue in manager.list_queues()}
        subscriptions = [each.name for each in manager.list_subscriptions("events")]

    assert sessions == {"orders": True, "invoices": False}
    assert subscriptions == ["audit"]


@pytest.fixture
def company_proxy(monkeypatch):
    """One that is not for brokers on this machine."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")


@pytest.mark.usefixtures("company_proxy")
@pytest.mark.servicebus(queues=["orders"])
def test_a_pair_goes_through_an_outage_and_its_messages_come_home(servicebus_pair: ServiceBusPair):
    client = servicebus_pair.client()
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        with servicebus_pair.primary.faults.unreachable():
            sender.send_messages(ServiceBusMessage("during"))
            assert [str(message) for message in servicebus_pair.backlog()] == ["during"]

    assert servicebus_pair.bring_home() == 1
    assert servicebus_pair.backlog() == []
    assert bodies(servicebus_pair.primary, "orders") == ["before", "during"]


@pytest.mark.usefixtures("company_proxy")
@pytest.mark.servicebus(queues=["orders"])
def test_an_asyncio_pair_goes_through_an_outage_and_its_messages_come_home(
    servicebus_aio_pair: AsyncServiceBusPair,
):
    async def run():
        pair = servicebus_aio_pair
        async with pair.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            with pair.primary.faults.unreachable():
                await sender.send_messages(ServiceBusMessage("during"))
                assert [str(message) for message in await pair.backlog()] == ["during"]
        assert await pair.bring_home() == 1
        assert await pair.backlog() == []

    asyncio.run(run())
    assert bodies(servicebus_aio_pair.primary, "orders") == ["before", "during"]


def test_an_asyncio_pair_needs_no_fixture():
    async def run():
        async with AsyncServiceBusPair() as pair:
            return pair.primary.connection_string

    assert asyncio.run(run()).startswith("Endpoint=")


def test_the_plugin_imports_nothing_heavy():
    program = """
import sys
import pairbus.pytest_plugin
heavy = ("azure", "pyspark", "pairbus.broker", "pairbus.testing", "pairbus.client")
print([name for name in sys.modules if name.startswith(heavy)])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (ran.stdout, ran.stderr) == ("[]\n", "")


PROJECT = """
import pytest
from azure.servicebus import ServiceBusClient

def test_the_ini_file_names_entities(servicebus_namespace):
    with (
        ServiceBusClient.from_connection_string(servicebus_namespace.connection_string) as client,
        client.get_subscription_receiver("events", "audit") as receiver,
        client.get_queue_receiver("orders") as other,
    ):
        assert receiver.peek_messages() == other.peek_messages() == []

SEEN = set()

@pytest.mark.servicebus(queues=["invoices"])
def test_one_namespace_for_the_session(servicebus_session_namespace):
    SEEN.add(servicebus_session_namespace.connection_string)

@pytest.mark.servicebus(queues=["refunds"])
def test_it_has_the_entities_of_all_its_tests(servicebus_session_namespace):
    text = servicebus_session_namespace.connection_string
    assert SEEN == {text}
    with ServiceBusClient.from_connection_string(text) as client:
        for queue in ("orders", "invoices", "refunds"):
            client.get_queue_receiver(queue).__enter__().close()

@pytest.mark.servicebus("orders")
def test_a_marker_that_is_wrong(servicebus_namespace):
    pass

@pytest.mark.servicebus(queue=["orders"])
def test_another_marker_that_is_wrong(servicebus_pair):
    pass
"""


def test_another_project_finds_the_fixtures_and_gets_clear_errors(tmp_path):
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\nservicebus_queues = orders\n"
        "servicebus_topics = events/Subscriptions/audit\n"
    )
    (tmp_path / "test_project.py").write_text(PROJECT)

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "3 passed, 2 errors" in ran.stdout, ran.stdout
    takes = "@pytest.mark.servicebus takes queues=[...] and topics=[...], not"
    assert f"{takes} 'orders'" in ran.stdout
    assert f"{takes} 'queue'" in ran.stdout
