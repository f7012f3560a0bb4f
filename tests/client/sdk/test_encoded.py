"""A message that waited in the outbox is sent with the bytes that it would have had."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import assume, given
from hypothesis import strategies as st

from pairbus.client.sdk import private
from pairbus.client.sdk.encoded import decode, encode
from pairbus.client.sdk.messages import diverted
from tests.client.fakes import plain_client
from tests.client.sdk.drawn import messages, text_of

SENDER = plain_client().get_queue_sender("q")


def sent(message: AmqpAnnotatedMessage) -> bytes:
    return private.encoded(SENDER, message)


@pytest.fixture(autouse=True, scope="module")
def _clock():
    """The SDK writes the present time into a message with a time to live."""
    with patch("time.mktime", lambda _: 1_700_000_000.0):
        yield


@pytest.mark.req("X-04")
@given(message=messages())
def test_it_is_sent_with_the_same_bytes_to_the_primary_and_to_the_backlog(message):
    for section in (message.annotations, message.delivery_annotations, message.footer):
        # One key as text and as bytes would go out twice, which AMQP forbids.
        assume(len({text_of(key) for key in section or ()}) == len(section or ()))
    stored = encode(SENDER, message)

    loaded = decode(stored)

    assert sent(loaded) == sent(message) == stored
    assert sent(diverted(decode(stored), "orders")) == sent(diverted(message, "orders"))


def test_a_message_of_the_sdk_keeps_its_parts():
    message = ServiceBusMessage(
        "one", message_id="1", session_id="s", subject="x", partition_key="s"
    )

    loaded = decode(encode(SENDER, message))

    assert b"".join(loaded.body) == b"one"
    assert loaded.properties is not None
    assert (loaded.properties.message_id, loaded.properties.group_id) == ("1", "s")
    assert loaded.annotations == {b"x-opt-partition-key": "s"}


@pytest.mark.parametrize("body", [None, "", b"", "x" * 300_000])
def test_empty_and_large_bodies(body):
    message = ServiceBusMessage(body)

    assert sent(decode(encode(SENDER, message))) == sent(message.raw_amqp_message)


def test_annotations_that_the_sdk_types_itself():
    message = AmqpAnnotatedMessage(
        data_body=b"x", annotations={b"x-opt-enqueued-time": 5, b"x-opt-locked-until": 2**40}
    )

    assert sent(decode(encode(SENDER, message))) == sent(message)


@given(data=st.binary(max_size=50) | messages().map(lambda each: sent(each)[:-1]))
def test_damaged_bytes_are_a_value_error_or_another_message(data):
    with suppress(ValueError):
        decode(data)
