"""The whole way of messages through an outage, with real brokers in processes of their own: sent by
a paired client to a primary that was killed, brought home by Spark, read by the official SDK.

What is read is compared with the same messages that had no outage on their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

import pairbus
from pairbus.client.route.envelope import ALIASES
from pairbus.fast.address import Address
from pairbus.syphon.discovery import ListedQueues
from pairbus.syphon.job import Job
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.syphon.runner import SparkRunner
from tests.pairing.namespaces import Backstage, NamespaceProcess
from tests.syphon.stage import count

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EACH = 600
BATCH = 150
SESSIONS = ("red", "green", "blue")
QUEUES = ("orders", "invoices", "sessions")
TOPICS = ("events", "audit")
DUE_SECONDS = 20
BODIES: tuple[dict[str, Any], ...] = (
    {"data_body": b"bytes \x00\xff"},
    {"data_body": ["gr\u00fc\u00dfe".encode(), b"", b"x" * 300]},
    {"sequence_body": [[1, "two", None, 3.0], [b"four", {"five": 5}]]},
    {"value_body": {"list": [1, [True, None]], "text": "deep"}},
    {"value_body": 7},
    {"value_body": "text"},
)
PROPERTIES: dict[str, Any] = {
    "none": None,
    "true": True,
    "int": -5,
    "long": {"TYPE": "LONG", "VALUE": 2**40},
    "ulong": {"TYPE": "ULONG", "VALUE": 2**63},
    "float": 1.5,
    "text": "x" * 300,
    "uuid": UUID(int=7),
    "time": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "symbol": {"TYPE": "SYMBOL", "VALUE": "s"},
    # As if a message had been diverted before: it is the application's own.
    "x-ms-path": "mine",
    "x-ms-timetolive": 5,
}


def message(entity: str, number: int, soon: datetime) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """Each number has its own kind of body, and a time to live and a schedule now and then."""
    session = SESSIONS[number % 3] if entity == "sessions" else None
    due = {5: soon - timedelta(days=1), 7: soon}.get(number % 11)
    ttl = timedelta(hours=1 + number % 5) if number % 3 else None
    name = f"{entity}-{number:04d}"
    kind = number % (len(BODIES) + 1)
    if kind == len(BODIES):
        return ServiceBusMessage(
            f"plain {number}",
            message_id=name,
            session_id=session,
            subject="subject",
            time_to_live=ttl,
            scheduled_enqueue_time_utc=due,
            application_properties={"n": number},
        )
    return AmqpAnnotatedMessage(
        **BODIES[kind],
        header=AmqpMessageHeader(
            time_to_live=None if ttl is None else int(ttl.total_seconds() * 1000)
        ),
        properties=AmqpMessageProperties(
            message_id=name,
            correlation_id=f"c-{number}",
            subject=f"subject {number}",
            to="somebody",
            reply_to="me",
            content_type="text/plain",
            group_id=session,
        ),
        application_properties={**PROPERTIES, "n": number},
        annotations={"x-own": "note", **({"x-opt-scheduled-enqueue-time": due} if due else {})},
    )


def seen(received: ServiceBusReceivedMessage) -> dict[str, Any]:
    """All that the SDK shows of a message, but what belongs to its arrival."""
    raw = received.raw_amqp_message
    many = raw.body_type.value in ("data", "sequence")
    fields = dict(raw.properties.items()) if raw.properties else {}
    for name in ("absolute_expiry_time", "creation_time"):
        fields.pop(name, None)
    of_arrival = (b"x-opt-enqueued-time", b"x-opt-sequence-number", b"x-opt-locked-until")
    annotations = {
        name: value
        for name, value in (raw.annotations or {}).items()
        if name not in of_arrival and name != b"x-opt-enqueue-sequence-number"
    }
    return {
        "body": [bytes(one) if isinstance(one, memoryview) else one for one in raw.body]
        if many
        else raw.body,
        "kind": raw.body_type,
        "properties": fields,
        "application": raw.application_properties,
        "annotations": annotations,
        "ttl": received.time_to_live,
        "due": received.scheduled_enqueue_time_utc,
        "session": received.session_id,
    }


def received(client: ServiceBusClient, entity: str, soon: datetime) -> Iterator[dict[str, Any]]:
    """Everything there is, also what is due within seconds."""
    sessions = SESSIONS if entity == "sessions" else (None,)
    for session in sessions:
        options: dict[str, Any] = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}
        if entity in TOPICS:
            receiver = client.get_subscription_receiver(entity, "all", **options)
        else:
            options |= {"session_id": session} if session else {}
            receiver = client.get_queue_receiver(entity, **options)
        left = EACH // len(sessions)
        with receiver:
            while True:
                # When all have come, only what came twice could come.
                late = max(0.0, (soon - datetime.now(UTC)).total_seconds()) + 10
                wait = late if left > 0 else 0.2
                found = receiver.receive_messages(max_message_count=500, max_wait_time=wait)
                if not found:
                    break
                left -= len(found)
                yield from map(seen, found)


def by_name(found: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    listed = list(found)
    named = {one["properties"]["message_id"].decode(): one for one in listed}
    assert len(named) == len(listed), "something came twice"
    return named


def send(client: Any, entity: str, soon: datetime) -> None:
    is_topic = entity in TOPICS
    sender = client.get_topic_sender(entity) if is_topic else client.get_queue_sender(entity)
    with sender:
        for first in range(0, EACH, BATCH):
            numbers = range(first, first + BATCH)
            sender.send_messages([message(entity, number, soon) for number in numbers])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    backstage = Backstage()
    primary = NamespaceProcess("contoso", tmp_path, backstage)
    secondary = NamespaceProcess("west", tmp_path, backstage)
    try:
        primary.start()
        secondary.start()
        for name in QUEUES:
            primary.admin.create_queue(name, requires_session=name == "sessions")
        for name in TOPICS:
            primary.admin.create_topic(name)
            primary.admin.create_subscription(name, "all")
        primary.admin.create_queue("direct")
        yield primary, secondary
    finally:
        primary.stop()
        secondary.stop()
        backstage.close()


@pytest.mark.req("S-01", "S-03", "S-07", "E-04")
def test_messages_sent_in_an_outage_come_home_as_if_there_had_been_none(
    spark: Any, pair: tuple[NamespaceProcess, NamespaceProcess]
) -> None:
    primary, secondary = pair
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=DUE_SECONDS)
    with (
        pairbus.ServiceBusClient.from_connection_string(
            primary.connection_string(), retry_total=0
        ) as sending,
        pairbus.ServiceBusClient.from_connection_string(secondary.connection_string()) as spare,
    ):
        send(sending, "direct", soon)
        sending.pair_namespace(
            pairbus.SendAvailabilityPairedNamespaceOptions(
                secondary.admin,
                spare,
                backlog_queue_count=4,
                failover_interval=timedelta(0),
                ping_primary_interval=timedelta(minutes=30),
                primary_namespace_name="contoso",
            )
        )
        primary.kill()
        for entity in (*QUEUES, *TOPICS):
            send(sending, entity, soon)
    primary.start()
    job = Job(
        SyphonOptions(
            primaries={"contoso": Address.from_connection_string(primary.connection_string())},
            secondary=Address.from_connection_string(secondary.connection_string()),
        ),
        SparkRunner(spark),
        ListedQueues(secondary.admin, "contoso"),
    )

    receipts = job.run(once=True)

    assert job.left == ""
    assert count(receipts, ReceiptOutcome.BROUGHT_HOME) == EACH * len((*QUEUES, *TOPICS))
    with ServiceBusClient.from_connection_string(primary.connection_string()) as client:
        direct = by_name(received(client, "direct", soon))
        assert len(direct) == EACH
        aliases = {name.encode() for name in ALIASES} - {b"x-ms-path", b"x-ms-timetolive"}
        for entity in (*QUEUES, *TOPICS):
            home = by_name(received(client, entity, soon))
            assert sorted(home) == [f"{entity}-{number:04d}" for number in range(EACH)]
            for name, found in home.items():
                expected = direct[name.replace(entity, "direct")]
                assert comparable(found) == comparable(expected), name
                assert aliases.isdisjoint(found["application"] or {})
                is_of_session = entity == "sessions"
                assert found["session"] == (SESSIONS[int(name[-4:]) % 3] if is_of_session else None)


def comparable(one: dict[str, Any]) -> dict[str, Any]:
    """Without what is each entity's own: the name, and the session."""
    own = {"message_id": None, "group_id": None}
    annotations = dict(one["annotations"])
    annotations.pop(b"x-opt-partition-key", None)
    return {**one, "properties": {**one["properties"], **own}, "session": None} | {
        "annotations": annotations
    }
