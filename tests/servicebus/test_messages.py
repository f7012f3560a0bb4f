"""Ids, the special cases of the envelope, the ping, and the number that is none."""

from __future__ import annotations

import copy
import json
import pickle
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.broker import Broker, QueueDescription
from pairbus.route.envelope import SCHEDULED, SESSION_ID, TIME_TO_LIVE
from pairbus.servicebus.messages import (
    PING_CONTENT_TYPE,
    UnknownSequenceNumber,
    as_added,
    diverted,
    diverted_all,
    give_ids,
    id_of,
    messages_of,
    ping_message,
)
from tests.interop.shells import Shell
from tests.servicebus.wire import ABSOLUTE_EXPIRY, CREATION, NULL, TTL, encoded, on_the_wire

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000
SCHEDULE = b"x-opt-scheduled-enqueue-time"


def annotated(body: Any = b"x", **sections: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=body, **sections)


def received(**sections: Any) -> ServiceBusReceivedMessage:
    """As a receiver has it: names and texts are bytes, times are numbers."""
    frame = [None] * 12
    payload = decode_payload(memoryview(encoded(annotated(**sections))))
    return ServiceBusReceivedMessage(payload, frame=frame, receiver=None)


def aliases(message: AmqpAnnotatedMessage) -> dict[str, Any]:
    properties = message.application_properties
    names = (SESSION_ID, TIME_TO_LIVE, SCHEDULED)
    return {name: properties[name] for name in names if name in properties}


def long(value: int) -> dict[str, Any]:
    return {"TYPE": "LONG", "VALUE": value}


def timestamp(value: int) -> dict[str, Any]:
    return {"TYPE": "TIMESTAMP", "VALUE": value}


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.req("X-02")
@pytest.mark.parametrize(
    "message",
    [
        annotated(),
        annotated(properties={"subject": "s"}),
        annotated(properties={"message_id": ""}),
        annotated(properties={"message_id": b""}),
        received(),
    ],
    ids=["no properties", "no id", "an empty id", "empty bytes", "received without one"],
)
def test_what_has_no_id_gets_one_and_keeps_it(message):
    assert give_ids(message) is message

    given = id_of(message)
    assert uuid.UUID(given)
    assert id_of(give_ids(message)) == given


@pytest.mark.req("X-02")
@pytest.mark.parametrize("given", ["mine", b"mine", uuid.uuid4(), 0, 7])
def test_an_id_of_the_application_stays(given):
    message = annotated(properties={"message_id": given})

    give_ids(message)

    assert message.properties.message_id == given
    assert type(message.properties.message_id) is type(given)


def test_a_message_of_the_sdk_has_an_id_from_birth_but_may_lose_it():
    message = ServiceBusMessage("x")
    born = message.message_id
    assert give_ids(message).message_id == born

    message.message_id = None
    assert give_ids(message).message_id not in (None, born)


@pytest.mark.req("X-02")
@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_a_dict_becomes_a_message_once(kind):
    message = give_ids(kind({"body": "x", "subject": "s"}))

    assert isinstance(message, ServiceBusMessage)
    assert (str(message), message.subject) == ("x", "s")
    assert give_ids(message).message_id == message.message_id
    assert give_ids({"body": "x", "message_id": "mine"}).message_id == "mine"


@pytest.mark.req("X-02")
@pytest.mark.parametrize("shape", [list, tuple, iter, lambda each: (one for one in each)])
def test_whatever_can_be_iterated_becomes_a_list_with_ids(shape):
    messages = [annotated(), ServiceBusMessage("x"), {"body": "y"}, received()]

    given = give_ids(shape(messages))

    assert isinstance(given, list)
    assert given[:2] == messages[:2]
    assert len({id_of(message) for message in given} - {""}) == 4


@pytest.mark.parametrize(
    "nonsense",
    [
        "text",
        "",
        b"bytes",
        7,
        None,
        {"subject": "no body"},
        {"body": "x", "unknown": object(), "session_id": "s" * 200},
        [1, "two"],
        [],
    ],
)
def test_what_is_no_message_passes_as_it_is(nonsense):
    assert give_ids(nonsense) == nonsense


def test_properties_of_no_use_are_left_to_the_sdk_to_refuse():
    message = annotated()
    message.properties = {"message_id": None}

    assert give_ids(message) is message
    assert message.properties == {"message_id": None}
    with pytest.raises(TypeError):
        ServiceBusMessageBatch().add_message(message)


@pytest.mark.req("X-02")
def test_a_batch_from_elsewhere_is_built_anew_with_ids():
    batch, named = ServiceBusMessageBatch(), annotated(properties={"message_id": "mine"})
    for message in (annotated(b"1"), named, annotated(b"3")):
        batch.add_message(message)

    anew = give_ids(batch)

    messages = [decode_payload(memoryview(each)) for each in anew._message[5]]
    assert [message.data for message in messages] == [[b"1"], [b"x"], [b"3"]]
    sent = [message.properties.message_id.decode() for message in messages]
    assert sent == [id_of(message) for message in messages_of(anew)]
    assert sent[1] == "mine"
    assert len(set(sent)) == 3
    assert anew.max_size_in_bytes == batch.max_size_in_bytes
    assert give_ids(anew) is anew


def test_a_batch_that_ids_would_make_too_large_goes_as_it_is():
    batch = ServiceBusMessageBatch(200)
    batch.add_message(annotated(b"x" * 150))

    assert give_ids(batch) is batch


def test_a_batch_with_ids_is_not_touched():
    batch = ServiceBusMessageBatch()
    batch.add_message(ServiceBusMessage("x"))

    assert give_ids(batch) is batch


def test_an_id_is_told_as_text():
    number = uuid.uuid4()
    told = {"a": "a", b"b": "b", number: str(number), 7: "7", None: ""}

    assert [id_of(annotated(properties={"message_id": each})) for each in told] == list(
        told.values()
    )
    assert id_of(annotated()) == ""


# --- the envelope ---------------------------------------------------------------------------------


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

    twin = diverted(message, "orders")

    assert twin.application_properties == {
        "n": 1,
        "x-ms-path": "orders",
        "x-ms-sessionid": "s",
        "x-ms-timetolive": long(300_000),
        "x-ms-scheduledenqueuetimeutc": timestamp(NOON_MS),
    }
    assert twin.annotations == {b"x-opt-partition-key": "s"}
    assert twin.properties.group_id is None
    assert id_of(twin) == message.message_id
    assert (message.session_id, message.time_to_live) == ("s", timedelta(minutes=5))
    assert message.scheduled_enqueue_time_utc == NOON
    assert message.application_properties == {"n": 1}


@pytest.mark.req("E-02", "E-03")
def test_a_message_with_nothing_gets_a_path_and_no_more():
    message = annotated()

    twin = diverted(message, "Sales/Orders")

    assert twin.application_properties == {"x-ms-path": "Sales/Orders"}
    assert message.application_properties is None
    assert on_the_wire(twin).body == on_the_wire(message).body


@pytest.mark.req("E-03")
@pytest.mark.parametrize("value", [None, 0, "", False, [], {}, b""])
def test_an_empty_value_is_no_body_there_and_here(value):
    message = AmqpAnnotatedMessage(value_body=value)

    assert on_the_wire(diverted(message, "q")).body == on_the_wire(message).body


@pytest.mark.req("E-01")
@pytest.mark.parametrize(
    ("given", "kept"), [("s", "s"), (b"s", "s"), ("", ""), ("ü" * 64, "ü" * 64), (None, None)]
)
def test_a_session_id_of_any_kind_is_kept_as_text(given, kept):
    twin = diverted(annotated(properties={"group_id": given, "message_id": "m"}), "q")

    assert aliases(twin).get(SESSION_ID) == kept
    assert twin.properties.group_id is None


@pytest.mark.req("E-01")
@pytest.mark.parametrize("milliseconds", [0, 1, 127, 128, 2**31, 2**32 - 1])
def test_a_time_to_live_of_any_length_is_a_long(milliseconds):
    twin = diverted(annotated(header={"time_to_live": milliseconds, "durable": True}), "q")

    assert aliases(twin) == {TIME_TO_LIVE: long(milliseconds)}
    wire = on_the_wire(twin)
    assert wire.header[TTL] == NULL
    small, large = b"\x55" + milliseconds.to_bytes(8, "big")[-1:], milliseconds.to_bytes(8, "big")
    assert wire.application_properties[-1][1] == small if milliseconds < 128 else b"\x81" + large


@pytest.mark.parametrize("milliseconds", [-1, 2**32, 922_337_203_685_477, float("nan"), "5000"])
def test_a_time_to_live_that_the_sdk_cannot_send_is_refused_here_as_there(milliseconds):
    message = annotated(header={"time_to_live": milliseconds})
    twin = diverted(message, "q")

    for each in (message, twin):
        with pytest.raises((ValueError, TypeError)):
            ServiceBusMessageBatch().add_message(each)


def test_a_fraction_of_a_millisecond_is_cut_off_as_the_sdk_does():
    assert aliases(diverted(annotated(header={"time_to_live": 1500.7}), "q")) == {
        TIME_TO_LIVE: long(1500)
    }


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
    twin = diverted(ServiceBusMessage("x", time_to_live=timedelta(seconds=9)), "q")

    assert (twin.properties.creation_time, twin.properties.absolute_expiry_time) == (None, None)


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

    twin = diverted(message, "q")

    assert aliases(twin) == {SCHEDULED: timestamp(kept)}
    assert twin.annotations == {"x-opt-other": 1}
    assert message.annotations == {key: given, "x-opt-other": 1}


@pytest.mark.req("E-01")
def test_the_schedule_of_the_call_wins():
    message = ServiceBusMessage("x", scheduled_enqueue_time_utc=NOON)

    twin = diverted(message, "q", NOON + timedelta(hours=1))

    assert aliases(twin) == {SCHEDULED: timestamp(NOON_MS + 3_600_000)}
    assert not twin.annotations


@pytest.mark.parametrize("nonsense", [None, "tomorrow", True, 1.5, {"VALUE": "x"}])
def test_a_schedule_that_is_no_time_stays_where_it_is(nonsense):
    twin = diverted(annotated(annotations={SCHEDULE: nonsense}), "q")

    assert aliases(twin) == {}
    assert twin.annotations == {SCHEDULE: nonsense}


@pytest.mark.parametrize("nonsense", [7, 1.5, ["s"]])
def test_a_session_id_that_is_no_text_stays_where_it_is(nonsense):
    twin = diverted(annotated(properties={"group_id": nonsense}), "q")

    assert aliases(twin) == {}
    assert twin.properties.group_id == nonsense


@pytest.mark.req("E-03")
@pytest.mark.parametrize("name", ["x-ms-path", b"x-ms-sessionid", "x-pairbus-kept:x-ms-path"])
def test_a_property_with_the_name_of_an_alias_is_kept_aside(name):
    twin = diverted(annotated(application_properties={name: "theirs"}), "q")

    prefix = "x-pairbus-kept:" if isinstance(name, str) else b"x-pairbus-kept:"
    assert twin.application_properties == {prefix + name: "theirs", "x-ms-path": "q"}


@pytest.mark.req("E-01", "E-03")
def test_a_received_message_can_be_sent_again_and_diverted():
    message = received(
        properties={"message_id": "m", "group_id": "s", "subject": "ü"},
        header={"time_to_live": 5000},
        application_properties={"text": "ü", "n": 1, "when": NOON},
        annotations={SCHEDULE: NOON, "x-opt-sequence-number": 7},
    )
    assert message.application_properties[b"text"] == "ü".encode()  # as the SDK gives them

    twin = diverted(give_ids(message), "q")

    assert aliases(twin) == {
        SESSION_ID: "s",
        TIME_TO_LIVE: long(5000),
        SCHEDULED: timestamp(NOON_MS),
    }
    assert twin.annotations == {b"x-opt-sequence-number": 7}
    encoded(diverted(received(application_properties={"text": "ü"}), "q"))
    assert message.application_properties[b"text"] == "ü".encode()


@pytest.mark.req("E-03")
def test_bytes_among_the_properties_go_out_as_from_the_original():
    message = annotated(application_properties={b"name": b"text"})

    assert (
        on_the_wire(diverted(message, "q")).application_properties[0]
        == (on_the_wire(message).application_properties[0])
    )


def test_nothing_that_the_application_had_is_changed_by_sending_the_diverted():
    message = ServiceBusMessage("x", application_properties={b"b": b"text"}, session_id="s")
    before = copy.deepcopy(vars(message.raw_amqp_message))

    encoded(diverted(message, "q"))

    assert repr(vars(message.raw_amqp_message)) == repr(before)


def test_header_and_properties_of_an_applications_own_making_are_kept():
    class Header(AmqpMessageHeader):
        pass

    message = annotated()
    message.header, message.properties = Header(priority=3), AmqpMessageProperties(to="there")
    message.header["note"] = "theirs"

    twin = diverted(message, "q")

    assert (twin.header.priority, twin.header["note"], twin.properties.to) == (3, "theirs", "there")


# --- several --------------------------------------------------------------------------------------


def test_one_or_many_or_a_batch_are_diverted_each():
    messages = give_ids([ServiceBusMessage("1"), annotated(b"2"), {"body": "3"}])
    batch = ServiceBusMessageBatch()
    for message in messages:
        batch.add_message(message)

    for several in (messages, batch):
        twins = diverted_all(several, "q", NOON)
        assert [list(twin.body) for twin in twins] == [[b"1"], [b"2"], [b"3"]]
        assert [id_of(twin) for twin in twins] == [id_of(message) for message in messages]
        assert all(aliases(twin) == {SCHEDULED: timestamp(NOON_MS)} for twin in twins)
    [alone] = diverted_all(messages[0], "q")
    assert aliases(alone) == {}


@pytest.mark.parametrize("nonsense", ["text", 7, None, [7], {"subject": "x"}, [{}]])
def test_what_is_no_message_is_refused_in_the_sdks_words(nonsense):
    with pytest.raises(TypeError) as ours:
        diverted_all(give_ids(nonsense), "q")
    with pytest.raises(TypeError) as theirs:
        ServiceBusMessageBatch().add_message(
            nonsense[0] if isinstance(nonsense, list) else nonsense
        )

    assert str(ours.value) == str(theirs.value)


def test_a_dict_with_an_impossible_value_is_refused_in_the_sdks_words():
    with pytest.raises(ValueError, match="session_id cannot be longer"):
        diverted_all(give_ids({"body": "x", "session_id": "s" * 200}), "q")


def test_a_batch_may_keep_what_was_added_as_it_was():
    class Keeping(ServiceBusMessageBatch):
        as_added: list[AmqpAnnotatedMessage]

    batch = Keeping()
    batch.as_added = []
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
        batch.as_added.append(as_added(message))

    twins = diverted_all(give_ids(batch), "q")

    assert [twin.application_properties["n"] for twin in twins] == [0, 1, 2]
    assert [twin.properties.subject for twin in twins] == ["0", "1", "2"]
    assert [aliases(twin)[TIME_TO_LIVE]["VALUE"] for twin in twins] == [1000, 2000, 3000]
    keys = [twin.annotations[b"x-opt-partition-key"] for twin in twins]
    assert keys == ["0", "1", "2"]
    assert as_added(annotated()).properties is None


def test_diverting_does_not_hide_that_a_message_is_too_large():
    batch = ServiceBusMessageBatch(1000)

    with pytest.raises(MessageSizeExceededError):
        batch.add_message(diverted(annotated(b"x" * 990), "q"))


# --- the ping -------------------------------------------------------------------------------------


@pytest.mark.req("G-02")
def test_a_ping_is_an_empty_message_of_its_own_kind_that_lives_a_second():
    ping, other = ping_message(), ping_message()

    assert b"".join(ping.body) == b""
    assert ping.content_type == PING_CONTENT_TYPE == "application/vnd.ms-servicebus-ping"
    assert ping.time_to_live == timedelta(seconds=1)
    assert uuid.UUID(ping.session_id)
    assert ping.session_id != other.session_id
    assert ping.message_id != other.message_id


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    queues = ["plain", QueueDescription(name="sessions", requires_session=True)]
    with Broker(queues=queues, topics=["news", "news/Subscriptions/desk"]) as running:
        yield running


@pytest.mark.req("G-02")
def test_any_entity_takes_a_ping_and_nobody_gets_it(shell: Shell, broker: Broker):
    with shell.client(broker.connection_string, retry_total=0) as client:
        for sender in (
            client.get_queue_sender("plain"),
            client.get_queue_sender("sessions"),
            client.get_topic_sender("news"),
        ):
            sender.send_messages(ping_message())
        for receiver in (
            client.get_queue_receiver("plain"),
            client.get_subscription_receiver("news", "desk"),
        ):
            assert receiver.peek_messages(10) == []


# --- the number that is none ----------------------------------------------------------------------


def test_an_unknown_number_is_a_number_that_says_what_it_is():
    number = UnknownSequenceNumber(
        backlog_queue="contoso/x-servicebus-transfer/3", message_id="m-1"
    )

    assert number == -1
    assert isinstance(number, int)
    for told in (repr(number), str(number), f"{number}", f"{[number]}"):
        assert "'m-1' was diverted to backlog queue 'contoso/x-servicebus-transfer/3'" in told
    assert (number.backlog_queue, number.message_id) == ("contoso/x-servicebus-transfer/3", "m-1")
    assert json.dumps([number]) == "[-1]"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))]
)
def test_an_unknown_number_is_copied_with_its_story(again):
    number = again(UnknownSequenceNumber(backlog_queue="b", message_id="m"))

    assert type(number) is UnknownSequenceNumber
    assert (number, number.backlog_queue, number.message_id) == (-1, "b", "m")
