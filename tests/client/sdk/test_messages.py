"""The copy of a message in the backlog: the special cases. test_envelope_bytes.py has all cases."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpMessageHeader, AmqpMessageProperties

from pairbus.client.route.envelope import SCHEDULED, SESSION_ID, TIME_TO_LIVE
from pairbus.client.sdk.batches import diverted_all, give_ids
from pairbus.client.sdk.messages import diverted, id_of
from tests.client.sdk.samples import (
    NOON,
    NOON_MS,
    SCHEDULE,
    aliases,
    annotated,
    long,
    received,
    string,
    timestamp,
)
from tests.client.sdk.wire import ABSOLUTE_EXPIRY, CREATION, NULL, TTL, encoded, on_the_wire


@pytest.mark.req("E-01")
def test_a_message_of_the_sdk_with_everything():
    message = ServiceBusMessage(
        "x",
        session_id="s",
        partition_key="s",
        time_to_live=timedelta(minutes=5),
        scheduled_enqueue_time_utc=NOON,
        application_properties={"n": 1},
    )

    copied = diverted(message, "orders")

    assert copied.application_properties == {
        "n": 1,
        "x-ms-path": string("orders"),
        "x-ms-sessionid": "s",
        "x-ms-timetolive": long(300_000),
        "x-ms-scheduledenqueuetimeutc": timestamp(NOON_MS),
    }
    assert copied.annotations == {b"x-opt-partition-key": "s"}
    assert copied.properties.group_id is None
    assert id_of(copied) == message.message_id
    assert (message.session_id, message.time_to_live) == ("s", timedelta(minutes=5))
    assert message.scheduled_enqueue_time_utc == NOON
    assert message.application_properties == {"n": 1}


@pytest.mark.req("E-02", "E-03")
def test_a_message_with_nothing_gets_a_path_and_no_more():
    message = annotated()

    copied = diverted(message, "Sales/Orders")

    assert copied.application_properties == {"x-ms-path": string("Sales/Orders")}
    assert message.application_properties is None
    assert on_the_wire(copied).body == on_the_wire(message).body


@pytest.mark.parametrize("milliseconds", [-256, 2**32, 922_337_203_685_477, float("nan"), "5000"])
def test_a_time_to_live_that_the_sdk_cannot_send_is_refused_here_as_there(milliseconds):
    message = annotated(header={"time_to_live": milliseconds})
    copied = diverted(message, "q")

    for each in (message, copied):
        with pytest.raises((ValueError, TypeError)):
            ServiceBusMessageBatch().add_message(each)


@pytest.mark.parametrize(("given", "kept"), [(1500.7, 1500), (-255, 255), (True, 1)])
def test_an_odd_time_to_live_is_what_the_sdk_makes_of_it(given, kept):
    message = annotated(header={"time_to_live": given})

    assert aliases(diverted(message, "q")) == {TIME_TO_LIVE: long(kept)}
    assert int.from_bytes(on_the_wire(message).header[TTL][1:], "big") == kept


@pytest.mark.req("E-03")
def test_times_that_no_time_to_live_made_are_the_applications_own():
    dates = {"creation_time": 1_000_000, "absolute_expiry_time": NOON_MS, "message_id": "m"}

    for header in (None, {"durable": True}, {"time_to_live": 0}):
        message = annotated(properties=dates, header=header)
        here, there = on_the_wire(message), on_the_wire(diverted(message, "q"))
        assert there.properties == here.properties
        assert NULL not in (there.properties[CREATION], there.properties[ABSOLUTE_EXPIRY])


@pytest.mark.req("E-01")
def test_times_that_a_time_to_live_made_go_with_it():
    copied = diverted(ServiceBusMessage("x", time_to_live=timedelta(seconds=9)), "q")

    assert (copied.properties.creation_time, copied.properties.absolute_expiry_time) == (None, None)


ZONED = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
TIMES = {
    "of UTC": (NOON, NOON_MS),
    "of another zone": (ZONED, NOON_MS),
    "of no zone, which the SDK takes for UTC": (NOON.replace(tzinfo=None), NOON_MS),
    "with microseconds": (NOON.replace(microsecond=987_654), NOON_MS + 987),
    "in milliseconds": (NOON_MS, NOON_MS),
    "with a type": (timestamp(NOON_MS), NOON_MS),
}


@pytest.mark.req("E-01")
@pytest.mark.parametrize("key", [SCHEDULE, SCHEDULE.decode()], ids=["bytes", "text"])
@pytest.mark.parametrize(("given", "kept"), TIMES.values(), ids=TIMES)
def test_a_schedule_in_the_annotations_is_kept_as_a_timestamp(given, kept, key):
    message = annotated(annotations={key: given, "x-opt-other": 1})

    copied = diverted(message, "q")

    assert aliases(copied) == {SCHEDULED: timestamp(kept)}
    assert copied.annotations == {"x-opt-other": 1}
    assert message.annotations == {key: given, "x-opt-other": 1}


@pytest.mark.req("E-01")
def test_the_schedule_of_the_call_wins():
    message = ServiceBusMessage("x", scheduled_enqueue_time_utc=NOON)

    copied = diverted(message, "q", NOON + timedelta(hours=1))

    assert aliases(copied) == {SCHEDULED: timestamp(NOON_MS + 3_600_000)}
    assert not copied.annotations


@pytest.mark.parametrize("nonsense", [None, "tomorrow", True, 1.5, {"VALUE": "x"}])
def test_a_schedule_that_is_no_time_stays_where_it_is(nonsense):
    copied = diverted(annotated(annotations={SCHEDULE: nonsense}), "q")

    assert aliases(copied) == {}
    assert copied.annotations == {SCHEDULE: nonsense}


@pytest.mark.parametrize("nonsense", [7, 1.5, ["s"]])
def test_a_session_id_that_is_no_text_stays_where_it_is(nonsense):
    copied = diverted(annotated(properties={"group_id": nonsense}), "q")

    assert aliases(copied) == {}
    assert copied.properties.group_id == nonsense


@pytest.mark.req("E-03")
@pytest.mark.parametrize("name", ["x-ms-path", b"x-ms-sessionid", "x-pairbus-kept:x-ms-path"])
def test_a_property_with_the_name_of_an_alias_is_kept_aside(name):
    copied = diverted(annotated(application_properties={name: "theirs"}), "q")

    prefix = "x-pairbus-kept:" if isinstance(name, str) else b"x-pairbus-kept:"
    assert copied.application_properties == {prefix + name: "theirs", "x-ms-path": string("q")}


@pytest.mark.req("E-01", "E-03")
def test_a_received_message_can_be_sent_again_and_diverted():
    message = received(
        properties={"message_id": "m", "group_id": "s", "subject": "ü"},
        header={"time_to_live": 5000},
        application_properties={"text": "ü", "n": 1, "when": NOON},
        annotations={SCHEDULE: NOON, "x-opt-sequence-number": 7},
    )
    assert message.application_properties[b"text"] == "ü".encode()  # as the SDK gives them

    copied = diverted(give_ids(message), "q")

    assert aliases(copied) == {
        SESSION_ID: "s",
        TIME_TO_LIVE: long(5000),
        SCHEDULED: timestamp(NOON_MS),
    }
    assert copied.annotations == {b"x-opt-sequence-number": 7}
    encoded(diverted(received(application_properties={"text": "ü"}), "q"))
    assert message.application_properties[b"text"] == "ü".encode()


def test_header_and_properties_of_an_applications_own_making_are_kept():
    class Header(AmqpMessageHeader):
        pass

    message = annotated()
    message.header, message.properties = Header(priority=3), AmqpMessageProperties(to="there")
    message.header["note"] = "theirs"

    copied = diverted(message, "q")

    assert (copied.header.priority, copied.header["note"], copied.properties.to) == (
        3,
        "theirs",
        "there",
    )


# --- several --------------------------------------------------------------------------------------


def test_one_or_many_or_a_batch_are_diverted_each():
    messages = give_ids([ServiceBusMessage("1"), annotated(b"2"), {"body": "3"}])
    batch = ServiceBusMessageBatch()
    for message in messages:
        batch.add_message(message)

    for several in (messages, batch):
        copies = diverted_all(several, "q", NOON)
        assert [list(copied.body) for copied in copies] == [[b"1"], [b"2"], [b"3"]]
        assert [id_of(copied) for copied in copies] == [id_of(message) for message in messages]
        assert all(aliases(copied) == {SCHEDULED: timestamp(NOON_MS)} for copied in copies)
    [alone] = diverted_all(messages[0], "q")
    assert aliases(alone) == {}


def test_a_dict_with_an_impossible_value_is_refused_in_the_sdks_words():
    with pytest.raises(ValueError, match="session_id cannot be longer"):
        diverted_all(give_ids({"body": "x", "session_id": "s" * 200}), "q")


def test_a_message_that_is_changed_after_it_was_added_goes_as_it_was_added():
    batch = ServiceBusMessageBatch()
    message = ServiceBusMessage(
        "x",
        application_properties={"n": 0},
        partition_key="p",
        time_to_live=timedelta(seconds=1),
    )
    for n in range(3):
        message.application_properties["n"] = n
        message.subject, message.partition_key = str(n), str(n)
        message.time_to_live = n + 1
        batch.add_message(message)

    copies = diverted_all(give_ids(batch), "q")

    assert [copied.application_properties["n"] for copied in copies] == [0, 1, 2]
    assert [copied.properties.subject for copied in copies] == ["0", "1", "2"]
    assert [aliases(copied)[TIME_TO_LIVE]["VALUE"] for copied in copies] == [1000, 2000, 3000]
    keys = [copied.annotations[b"x-opt-partition-key"] for copied in copies]
    assert keys == ["0", "1", "2"]
