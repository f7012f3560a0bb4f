"""Ids are given before the first attempt, only where there are none, and stay."""

from __future__ import annotations

import uuid
from types import MappingProxyType

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._decode import decode_payload

from pairbus.amqp.codec.sections import identifier_text, identifier_value
from pairbus.amqp.codec.types import ULong
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import give_ids, messages_of
from pairbus.client.sdk.messages import id_of
from tests.client.sdk.samples import (
    annotated,
    received,
)


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
def test_a_batch_is_filled_again_with_ids_and_keeps_them():
    batch, named = ServiceBusMessageBatch(), annotated(properties={"message_id": "mine"})
    for message in (annotated(b"1"), named, annotated(b"3")):
        batch.add_message(message)

    assert give_ids(batch) is batch

    messages = [decode_payload(memoryview(each)) for each in encoded(batch)]
    assert [message.data for message in messages] == [[b"1"], [b"x"], [b"3"]]
    sent = [message.properties.message_id.decode() for message in messages]
    assert sent == [id_of(message) for message in messages_of(batch)]
    assert sent[1] == "mine"
    assert len(set(sent)) == 3
    kept = encoded(batch)
    assert encoded(give_ids(batch)) == kept


@pytest.mark.req("X-02")
def test_an_object_that_is_added_twice_is_two_messages():
    batch, message = ServiceBusMessageBatch(), annotated(b"1")
    batch.add_message(message)
    message.application_properties = {"changed": True}
    batch.add_message(message)

    first, second = messages_of(give_ids(batch))

    assert first.application_properties != second.application_properties
    assert id_of(first) != id_of(second)


def test_a_batch_that_ids_would_make_too_large_stays_as_it_is():
    batch = ServiceBusMessageBatch(200)
    batch.add_message(annotated(b"x" * 150))
    as_added = encoded(batch)

    give_ids(batch)

    assert (encoded(batch), len(batch)) == (as_added, 1)


def test_a_batch_with_ids_is_not_touched():
    batch = ServiceBusMessageBatch()
    batch.add_message(ServiceBusMessage("x"))
    [content] = private.encoded_in(batch)

    [kept] = private.encoded_in(give_ids(batch))
    assert kept is content


def encoded(batch: ServiceBusMessageBatch) -> list[bytes]:
    return [bytes(each) for each in private.encoded_in(batch)]


@pytest.mark.parametrize(
    ("given", "on_the_wire"),
    [
        ("a", "a"),
        ("AMQP_UUID:a", "AMQP_UUID:a"),
        (b"b", b"b"),
        (b"\xff\x00", b"\xff\x00"),
        (uuid.UUID(int=7), uuid.UUID(int=7)),
        (7, ULong(7)),
    ],
)
def test_an_id_is_written_as_the_broker_and_the_commands_write_it(given, on_the_wire):
    message = annotated(properties={"message_id": given})

    assert id_of(message) == identifier_text(on_the_wire)
    assert identifier_value(id_of(message)) == on_the_wire


def test_a_message_without_an_id_has_an_empty_one():
    assert id_of(annotated(properties={"message_id": None})) == id_of(annotated()) == ""
