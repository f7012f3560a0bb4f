"""A batch whose messages have ids, and are remembered as they were when they were added."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.sdk.messages import Batch, diverted_all, give_ids, id_of, messages_of


def empty(size_bytes: int = 10_000) -> Batch:
    return Batch.of(ServiceBusMessageBatch(size_bytes))


def test_it_is_the_batch_that_the_sdk_made() -> None:
    made = ServiceBusMessageBatch(777)

    batch = Batch.of(made)

    assert batch is made
    assert isinstance(batch, ServiceBusMessageBatch)
    assert batch.max_size_in_bytes == 777
    assert len(batch) == 0


@pytest.mark.req("X-02")
def test_what_has_no_id_gets_one_when_it_is_added() -> None:
    batch = empty()
    bare = AmqpAnnotatedMessage(data_body=b"a", properties=AmqpMessageProperties())

    batch.add_message(bare)
    batch.add_message({"body": b"b"})
    batch.add_message(ServiceBusMessage(b"c", message_id="mine"))

    ids = [id_of(message) for message in messages_of(batch)]
    assert len(batch) == 3
    assert all(ids)
    assert ids[0] == id_of(bare)
    assert ids[2] == "mine"
    assert [id_of(message) for message in diverted_all(batch, "orders")] == ids


def test_the_ids_that_are_encoded_are_those_that_are_remembered() -> None:
    batch = empty()
    batch.add_message({"body": b"b"})

    [remembered] = messages_of(batch)

    assert id_of(remembered).encode() in b"".join(batch._message[5])
    assert give_ids(batch) is batch


def test_a_message_that_is_changed_and_added_again_is_remembered_as_it_was_each_time() -> None:
    batch = empty()
    message = ServiceBusMessage(b"a", application_properties={"number": 1}, subject="first")
    batch.add_message(message)
    message.application_properties["number"] = 2  # type: ignore[index]
    message.subject = "second"
    batch.add_message(message)

    first, second = diverted_all(batch, "orders")

    assert first.application_properties["number"] == 1
    assert second.application_properties["number"] == 2
    assert (first.properties.subject, second.properties.subject) == ("first", "second")


def test_what_does_not_fit_is_not_remembered() -> None:
    batch = empty(300)
    batch.add_message(ServiceBusMessage(b"a" * 20))

    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"b" * 300))

    assert len(batch) == 1
    assert len(messages_of(batch)) == 1


def test_what_is_no_message_is_refused_in_the_words_of_the_sdk() -> None:
    plain = ServiceBusMessageBatch(1000)
    with pytest.raises(TypeError) as expected:
        plain.add_message("text")  # type: ignore[arg-type]

    with pytest.raises(TypeError) as caught:
        empty().add_message("text")  # type: ignore[arg-type]

    assert str(caught.value) == str(expected.value)
