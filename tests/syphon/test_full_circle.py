"""The whole way: paired, the primary killed, thousands diverted, the primary back, brought home.

Brokers are processes of their own, the client and the receivers the official SDK's, the syphon the
command, on Spark. What has taken the detour is compared with twins that did not: the same messages,
sent to a healthy queue before the outage.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
from tests.chaos.process import BrokerProcess
from tests.pairing.test_envelope import BODIES, PROPERTIES

pytestmark = pytest.mark.spark

NAMESPACE = "contoso"
UNIQUE = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1H"}
QUEUES: dict[str, dict[str, Any]] = {
    "twins": {},
    "shapes": {},
    "orders": UNIQUE,
    "invoices": UNIQUE,
    "sessions": {**UNIQUE, "RequiresSession": True},
    "later": {},
}
TOPIC, SUBSCRIPTIONS = "events", ("audit", "billing")
EACH = 1_000
SESSIONS = 4
HOUR = timedelta(hours=1)
# Settling thousands one by one would take most of the test's time.
MODE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
# What a broker writes on a message when it stores it or gives it out.
STAMPS = {
    b"x-opt-enqueued-time",
    b"x-opt-sequence-number",
    b"x-opt-enqueue-sequence-number",
    b"x-opt-message-state",
    b"x-opt-locked-until",
}


class Namespaces(NamedTuple):
    primary: BrokerProcess
    secondary: BrokerProcess


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Namespaces]:
    (tmp_path / "primary").mkdir()
    (tmp_path / "secondary").mkdir()
    primary = BrokerProcess(tmp_path / "primary", QUEUES)
    secondary = BrokerProcess(tmp_path / "secondary", {})
    try:
        primary.start()
        secondary.start()
        yield Namespaces(primary, secondary)
    finally:
        primary.stop()
        secondary.stop()


def ca_file_of(broker: BrokerProcess) -> Path:
    return broker.data / "certificates" / "ca.pem"


def manager_of(broker: BrokerProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(ca_file_of(broker))
    )


def shapes() -> list[AmqpAnnotatedMessage]:
    """Every type of body, and every type of property, with a time to live."""
    return [
        AmqpAnnotatedMessage(
            **copy.deepcopy(body),
            header=AmqpMessageHeader(time_to_live=3_600_000, priority=7),
            properties=AmqpMessageProperties(
                message_id=name,
                correlation_id="correlated",
                subject="a subject",
                content_type="text/plain",
                reply_to="answers",
                to="somebody",
            ),
            application_properties=dict(PROPERTIES),
            annotations={"x-opt-partition-key": "key"},
        )
        for name, body in BODIES.items()
    ]


def plain(prefix: str, **settings: Any) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(
            f"body of {prefix} {number}",
            message_id=f"{prefix}-{number}",
            application_properties={"number": number},
            **settings,
        )
        for number in range(EACH)
    ]


def in_sessions() -> list[ServiceBusMessage]:
    messages = plain("sessions")
    for number, message in enumerate(messages):
        message.session_id = f"session {number % SESSIONS}"
    return messages


def send(client: ServiceBusClient, path: str, messages: list[Any], *, topic: bool = False) -> None:
    sender = client.get_topic_sender(path) if topic else client.get_queue_sender(path)
    with sender:
        for start in range(0, len(messages), 250):
            sender.send_messages(messages[start : start + 250])


def divert_everything(client: ServiceBusClient) -> None:
    send(client, "shapes", shapes())
    send(client, "orders", plain("orders"))
    send(client, "invoices", plain("invoices", time_to_live=HOUR))
    send(client, "sessions", in_sessions())
    send(client, TOPIC, plain(TOPIC), topic=True)
    with client.get_queue_sender("later") as sender:
        sender.schedule_messages([ServiceBusMessage("b", message_id="by call")], TOMORROW)
        scheduled = ServiceBusMessage("p", message_id="by property")
        scheduled.scheduled_enqueue_time_utc = TOMORROW
        sender.send_messages(scheduled)


def bring_home(namespaces: Namespaces, ledger: Path) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pairbus", "syphon", "--once", "--namespace", NAMESPACE),
            *("--ledger", ledger, "--secondary-ca-file", ca_file_of(namespaces.secondary)),
        ],
        env=os.environ
        | {
            "PAIRBUS_PRIMARY": namespaces.primary.connection_string,
            "PAIRBUS_SECONDARY": namespaces.secondary.connection_string,
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr


def received(receiver: Any) -> list[Any]:
    found: list[Any] = []
    with receiver:
        while messages := receiver.receive_messages(max_message_count=500, max_wait_time=2):
            found += messages
    return found


def as_sent(message: Any) -> dict[str, Any]:
    """All that a receiver can see of a message but for the broker's stamps."""
    raw = message.raw_amqp_message
    notes = {name: value for name, value in raw.annotations.items() if name not in STAMPS}
    body = list(raw.body) if raw.body_type.value in ("data", "sequence") else raw.body
    properties = {
        name: value
        for name, value in vars(raw.properties).items()
        # The SDK makes these two of the clock and of the time to live.
        if name not in ("creation_time", "absolute_expiry_time")
    }
    return {
        "body": (raw.body_type, body),
        "properties": properties,
        "application_properties": {
            name: (type(value), value) for name, value in raw.application_properties.items()
        },
        "annotations": notes,
        "header": (raw.header.time_to_live, raw.header.priority),
    }


def numbers(messages: list[Any], prefix: str) -> list[int]:
    """Every message is whole, and none has an alias left."""
    found = []
    for message in messages:
        assert set(message.application_properties) == {b"number"}
        number = message.application_properties[b"number"]
        assert (message.message_id, str(message)) == (
            f"{prefix}-{number}",
            f"body of {prefix} {number}",
        )
        found.append(number)
    return found


@pytest.mark.req("S-01", "S-03", "E-04", "X-02")
def test_thousands_of_every_kind_come_home_as_they_were_sent(namespaces, tmp_path):
    primary, secondary = namespaces
    with manager_of(primary) as manager:
        manager.create_topic(TOPIC)
        for name in SUBSCRIPTIONS:
            manager.create_subscription(TOPIC, name)
    with (
        pairbus.ServiceBusClient.from_connection_string(
            primary.connection_string, retry_total=0
        ) as client,
        pairbus.ServiceBusClient.from_connection_string(secondary.connection_string) as backlog,
        manager_of(secondary) as manager,
    ):
        client.pair_namespace(
            pairbus.SendAvailabilityPairedNamespaceOptions(
                manager,
                backlog,
                backlog_queue_count=3,
                failover_interval=timedelta(0),
                primary_namespace_name=NAMESPACE,
            )
        )
        send(client, "twins", shapes())

        primary.kill()
        divert_everything(client)
        diverted = sum(each.diverted for each in client.pairing.status().entities)

    assert diverted == len(BODIES) + 4 * EACH + 2
    primary.start()
    bring_home(namespaces, tmp_path / "ledger")

    with ServiceBusClient.from_connection_string(primary.connection_string) as client:
        twins = {each.message_id: as_sent(each) for each in received(queue(client, "twins"))}
        home = {each.message_id: as_sent(each) for each in received(queue(client, "shapes"))}
        assert home == twins
        assert len(home) == len(BODIES)
        everything = list(range(EACH))
        assert numbers(received(queue(client, "orders")), "orders") == everything
        invoices = received(queue(client, "invoices"))
        assert numbers(invoices, "invoices") == everything
        assert {each.time_to_live for each in invoices} == {HOUR}
        for place in range(SESSIONS):
            session = queue(client, "sessions", session_id=f"session {place}")
            assert numbers(received(session), "sessions") == everything[place::SESSIONS]
        for name in SUBSCRIPTIONS:
            subscription = client.get_subscription_receiver(TOPIC, name, receive_mode=MODE)
            assert numbers(received(subscription), TOPIC) == everything
        with queue(client, "later") as later:
            waiting = later.peek_messages(max_message_count=10)
        assert {each.message_id for each in waiting} == {"by call", "by property"}
        assert {each.scheduled_enqueue_time_utc for each in waiting} == {TOMORROW}
        assert {each.state for each in waiting} == {ServiceBusMessageState.SCHEDULED}
    with manager_of(secondary) as manager:
        left = [each.total_message_count for each in manager.list_queues_runtime_properties()]
    assert left == [0, 0, 0]


def queue(client: ServiceBusClient, name: str, **settings: Any) -> Any:
    return client.get_queue_receiver(name, receive_mode=MODE, **settings)
