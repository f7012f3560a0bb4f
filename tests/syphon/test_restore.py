"""A restored message is the one that was sent: compared byte for byte with what the SDK sends."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.utils import amqp_long_value
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import (
    CREATION_TIME,
    EXPIRY_TIME,
    read_application_properties,
    read_property,
    slice_message,
)
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.client.route.envelope import (
    KEPT_PREFIX,
    PATH,
    SESSION_ID,
    TIME_TO_LIVE,
)
from pairbus.client.sdk.batches import give_ids
from pairbus.syphon.restore import restore
from tests.syphon.backlog import (
    ENQUEUED_MS,
    NOW_MS,
    backlogged,
    by_hand,
    creation_ms,
    encoded,
)
from tests.syphon.originals import DELIVERIES, messages

HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000
DUE = datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)


def check_comes_home(message, path="orders", **delivery):
    """As the SDK would send it at the moment the syphon does."""
    original = encoded(give_ids(message))
    now_ms = creation_ms(original) or NOW_MS
    restored = restore(backlogged(message, path, **delivery), now_ms=now_ms)
    assert restored.data == original
    assert restored.size == len(original)
    assert restored.path == path
    return restored


BODIES = {
    "no body": {"value_body": None},
    "an empty one": {"data_body": b""},
    "bytes": {"data_body": bytes(range(256))},
    "many bytes": {"data_body": b"x" * 100_000},
    "several sections": {"data_body": [b"one", b"two", b""]},
    "a sequence": {"sequence_body": [1, "two", True, None, 2.5]},
    "sequences": {"sequence_body": [[1, "two", [3, {"four": 5}]], [b"six"]]},
    "text": {"value_body": "text ☃"},
    "a number": {"value_body": 2**31 - 1},
    "a uuid": {"value_body": uuid.UUID(int=7)},
    "a map": {"value_body": {"key": [1, {"deep": b"er"}], "none": None}},
    "a long list": {"value_body": list(range(300))},
    "a message": {"data_body": encoded(ServiceBusMessage("inside", session_id="s"))},
}
PROPERTIES = {
    "text": "ünïcode ☃",
    "empty": "",
    "long text": "x" * 300,
    "n" * 300: "a long name",
    "int": -5,
    "large": 2**31 - 1,
    "long": amqp_long_value(2**40),
    "true": True,
    "false": False,
    "float": 1.5,
    "decimal": Decimal("1.10"),
    "uuid": uuid.UUID(int=9),
    "when": datetime(2026, 11, 15, 12, 30, 45, 123000, tzinfo=UTC),
    "none": None,
}


@pytest.mark.req("E-03", "E-04")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_kind_of_body_comes_home_to_the_byte(body):
    properties = AmqpMessageProperties(message_id="id", group_id="session")
    check_comes_home(AmqpAnnotatedMessage(**body))
    check_comes_home(
        AmqpAnnotatedMessage(
            **body,
            properties=properties,
            application_properties=dict(PROPERTIES),
            header=AmqpMessageHeader(time_to_live=HOUR_MS),
            footer={"x-foot": "note"},
        )
    )


@pytest.mark.req("E-04")
def test_a_message_with_everything_comes_home_to_the_byte():
    message = ServiceBusMessage(
        b"body",
        message_id="an id",
        correlation_id="correlation",
        content_type="application/json",
        subject="a subject",
        to="somebody",
        reply_to="me",
        reply_to_session_id="my session",
        session_id="a session",
        partition_key="a session",
        time_to_live=timedelta(seconds=90),
        scheduled_enqueue_time_utc=DUE,
        application_properties=dict(PROPERTIES),
    )

    restored = check_comes_home(message, "events/of-ünits")

    assert restored.enqueued_ms == ENQUEUED_MS
    assert not restored.is_expired


@pytest.mark.req("E-04")
def test_every_section_of_an_annotated_message_comes_home_to_the_byte():
    message = AmqpAnnotatedMessage(
        data_body=b"body",
        header=AmqpMessageHeader(priority=7, durable=True, time_to_live=HOUR_MS),
        properties=AmqpMessageProperties(
            message_id=uuid.UUID(int=3),
            user_id=b"user",
            to="to",
            subject="subject",
            reply_to="reply to",
            correlation_id=b"binary",
            content_type="text/plain",
            content_encoding="gzip",
            group_id="g" * 200,
            group_sequence=3,
            reply_to_group_id="reply group",
        ),
        application_properties={"k": "v"},
        annotations={
            "x-opt-scheduled-enqueue-time": DUE,
            "x-custom": "kept",
            "x-number": 5,
            "x-opt-partition-key": "partition",
            "x-opt-via-partition-key": "via",
        },
        delivery_annotations={"x-hop": 1},
        footer={"x-foot": "note"},
    )
    check_comes_home(message)


@pytest.mark.parametrize(
    "delivery",
    [
        {"delivery_count": 3},
        {"delivery_count": 300},
        {"is_locked": False},
        {"partition_id": 11},
        {"queue": QueueDescription(name="short", default_message_time_to_live=HOUR)},
    ],
    ids=["again", "very often", "without a lock", "from a partition", "with the queue's expiry"],
)
@pytest.mark.req("E-04")
def test_nothing_that_the_broker_added_remains(delivery):
    check_comes_home(ServiceBusMessage("x"), **delivery)
    check_comes_home(ServiceBusMessage("x", session_id="s", time_to_live=HOUR), **delivery)
    check_comes_home(ServiceBusMessage("x", partition_key="k", to="t"), **delivery)


@pytest.mark.req("E-04")
def test_an_expiry_of_the_application_stays_and_one_of_the_broker_is_removed():
    """Without a time to live, the SDK sends the expiry as it is."""
    properties = AmqpMessageProperties(message_id="x", absolute_expiry_time=5, creation_time=4)
    message = AmqpAnnotatedMessage(data_body=b"", properties=properties)
    short = QueueDescription(name="short", default_message_time_to_live=HOUR)

    check_comes_home(message)

    parts = slice_message(restore(backlogged(message, queue=short), now_ms=NOW_MS).data)
    assert read_property(parts.bare, parts.properties, EXPIRY_TIME) is None
    assert read_property(parts.bare, parts.properties, CREATION_TIME) == 4


@pytest.mark.req("E-04")
@pytest.mark.parametrize("priority", [None, 0, 4, 255])
@pytest.mark.parametrize("durable", [None, True, False])
@pytest.mark.parametrize("ttl_ms", [None, 0, 1, 255, 256, 2**32 - 1])
def test_every_header_comes_home_to_the_byte(durable, priority, ttl_ms):
    header = AmqpMessageHeader(durable=durable, priority=priority, time_to_live=ttl_ms)
    properties = AmqpMessageProperties(message_id="x")
    check_comes_home(AmqpAnnotatedMessage(data_body=b"", header=header, properties=properties))


@pytest.mark.req("E-04")
def test_application_properties_with_names_of_the_envelope_keep_their_names():
    own = {
        PATH: "mine",
        TIME_TO_LIVE: 5,
        "other": 1,
        KEPT_PREFIX + "a": "b",
        KEPT_PREFIX + KEPT_PREFIX + SESSION_ID: None,
        KEPT_PREFIX + "l" * 250: "long",
        "x-ms-pat": "nearly",
        "x": "y",
        "": "nameless",
    }
    message = ServiceBusMessage("x", application_properties=own, session_id="s", time_to_live=HOUR)
    restored = check_comes_home(message, path="theirs")
    assert restored.path == "theirs"


@pytest.mark.req("E-04")
def test_an_empty_session_id_and_a_time_to_live_of_zero_are_kept():
    properties = AmqpMessageProperties(message_id="x", group_id="")
    header = AmqpMessageHeader(time_to_live=0)
    message = AmqpAnnotatedMessage(data_body=b"", properties=properties, header=header)
    restored = check_comes_home(message)
    assert not restored.is_expired


@pytest.mark.req("E-04")
def test_a_message_without_properties_has_none_afterwards():
    restored = restore(by_hand({PATH: "orders"}), now_ms=NOW_MS)
    assert restored.data == b"\x00\x53\x75\xa0\x01x"
    assert restored.enqueued_ms is None


# --- time to live -------------------------------------------------------------------------------


def times(data):
    parts = slice_message(data)
    expiry, creation = (
        read_property(parts.bare, parts.properties, field) for field in (EXPIRY_TIME, CREATION_TIME)
    )
    return parts.ttl_ms, expiry, creation


@pytest.mark.req("E-04")
def test_the_time_to_live_starts_again_when_the_message_comes_home():
    data = backlogged(ServiceBusMessage("x", time_to_live=HOUR))
    now_ms = ENQUEUED_MS + 10 * HOUR_MS

    restored = restore(data, now_ms=now_ms)

    assert times(restored.data) == (HOUR_MS, now_ms + HOUR_MS, now_ms)
    assert not restored.is_expired


@pytest.mark.req("X-06")
@pytest.mark.parametrize(
    ("waited_ms", "left_ms"), [(-5_000, HOUR_MS), (0, HOUR_MS), (1_000, HOUR_MS - 1_000)]
)
def test_a_time_to_live_that_keeps_running_is_reduced_by_the_wait(waited_ms, left_ms):
    """The clocks of broker and syphon may differ; a negative wait adds nothing."""
    data = backlogged(ServiceBusMessage("x", time_to_live=HOUR))
    now_ms = ENQUEUED_MS + waited_ms

    restored = restore(data, now_ms=now_ms, ttl_keeps_running=True)

    assert times(restored.data) == (left_ms, now_ms + left_ms, now_ms)
    assert not restored.is_expired


@pytest.mark.req("X-06")
@pytest.mark.parametrize(("late_ms", "is_expired"), [(-1, False), (0, True), (10**9, True)])
def test_a_time_to_live_that_keeps_running_ends(late_ms, is_expired):
    data = backlogged(ServiceBusMessage("x", time_to_live=HOUR))
    restored = restore(data, now_ms=ENQUEUED_MS + HOUR_MS + late_ms, ttl_keeps_running=True)
    assert restored.is_expired is is_expired
    assert times(restored.data)[0] == max(-late_ms, 0)


@pytest.mark.req("X-06")
def test_the_time_to_live_of_a_scheduled_message_runs_from_its_due_time():
    due = datetime.fromtimestamp(ENQUEUED_MS / 1000, UTC) + HOUR
    message = ServiceBusMessage("x", time_to_live=HOUR, scheduled_enqueue_time_utc=due)
    data = backlogged(message)

    before, after, late = (
        restore(data, now_ms=ENQUEUED_MS + hours * HOUR_MS // 2, ttl_keeps_running=True)
        for hours in (1, 3, 4)
    )

    assert (times(before.data)[0], before.is_expired) == (HOUR_MS, False)
    assert (times(after.data)[0], after.is_expired) == (HOUR_MS // 2, False)
    assert late.is_expired


@pytest.mark.req("X-06")
def test_a_message_without_a_time_to_live_or_without_an_age_does_not_expire():
    old = restore(backlogged(ServiceBusMessage("x")), now_ms=10**15, ttl_keeps_running=True)
    data = by_hand({PATH: "orders", TIME_TO_LIVE: 5})
    unstamped = restore(data, now_ms=10**15, ttl_keeps_running=True)
    assert (times(old.data)[0], old.is_expired) == (None, False)
    assert (times(unstamped.data)[0], unstamped.is_expired) == (5, False)


def test_a_time_to_live_too_long_for_the_header_is_kept_by_the_expiry():
    ttl_ms = 100 * 24 * HOUR_MS
    restored = restore(by_hand({PATH: "orders", TIME_TO_LIVE: ttl_ms}), now_ms=NOW_MS)
    assert times(restored.data) == (2**32 - 1, NOW_MS + ttl_ms, NOW_MS)
    endless = restore(by_hand({PATH: "orders", TIME_TO_LIVE: 2**62}), now_ms=NOW_MS)
    assert times(endless.data) == (2**32 - 1, 253_402_243_199_000, NOW_MS)


# --- any message --------------------------------------------------------------------------------


PATHS = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/$?#"), min_size=1)


@pytest.mark.req("E-04")
@given(message=messages(), path=PATHS, delivery=DELIVERIES)
def test_any_message_comes_home_to_the_byte(message, path, delivery):
    restored = check_comes_home(message, path, **delivery)
    parts = slice_message(restored.data)
    names = read_application_properties(parts.bare, parts.application_properties)
    assert names.keys() == message.application_properties.keys()
