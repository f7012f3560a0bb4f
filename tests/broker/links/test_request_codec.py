"""Requests and replies of `$cbs` and `$management` on the wire."""

from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import read_application_properties, slice_message
from pairbus.amqp.codec.types import Array, Int, Symbol, Timestamp, ULong
from pairbus.amqp.codec.values import MalformedMessage, decode, encode
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker import Broker, Limits
from pairbus.broker.links.request_codec import (
    Reply,
    Request,
    cbs_reply,
    malformed,
    management_reply,
    read_request,
    refusal,
    ticks,
)
from pairbus.fast.address import Address
from tests.fast.world import messages

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def request_bytes(properties, application_properties, body):
    return b"".join(
        (
            b"\x00\x53\x73" + encode(properties),
            b"\x00\x53\x74" + encode(application_properties),
            b"\x00\x53\x77" + encode(body),
        )
    )


def test_a_request_is_read_with_everything_that_matters():
    data = request_bytes(
        [ID, None, None, None, "q/$management"],
        {"operation": "com.microsoft:peek-message", "type": "entity-mgmt"},
        {"from-sequence-number": 1, "message-count": Int(5)},
    )

    request = read_request(data)

    assert request.message_id == ID
    assert request.reply_to == "q/$management"
    assert request.operation == "com.microsoft:peek-message"
    assert request.body == {"from-sequence-number": 1, "message-count": 5}


def test_a_request_without_anything_has_no_operation():
    request = read_request(b"")

    assert request == Request(None, None, {}, None)
    assert request.operation == ""


def test_a_reply_to_that_is_no_text_is_none():
    assert read_request(request_bytes([ID, None, None, None, 5], {}, None)).reply_to is None


def test_the_body_is_found_behind_other_sections_and_by_its_long_name():
    footer = b"\x00\x53\x78" + encode({Symbol("a"): 1})
    named = b"\x00" + encode(Symbol("amqp:amqp-value:*")) + encode("token")

    assert read_request(footer + b"\x00\x53\x77" + encode("token")).body == "token"
    assert read_request(named).body == "token"
    assert read_request(b"\x00\x53\x75" + encode(b"data")).body is None


@given(st.binary(max_size=60) | st.binary(max_size=30).map(lambda tail: b"\x00\x53\x77" + tail))
def test_garbage_is_malformed_and_nothing_else(data):
    with suppress(MalformedMessage):
        assert isinstance(read_request(data), Request)


def test_a_malformed_message_is_a_decoding_error():
    error = malformed(MalformedMessage("offset 5: nothing there"))

    assert error.condition == "amqp:decode-error"
    assert "offset 5" in error.description


def read_answer(data):
    parts = slice_message(data)
    properties, _ = decode(parts.bare, 0)
    value, _ = decode(parts.bare, parts.application_properties[1])
    return (
        properties.value,
        read_application_properties(parts.bare, parts.application_properties),
        value.value,
    )


@pytest.mark.parametrize("message_id", [ID, "text", ULong(7), b"\x01"], ids=type)
def test_the_answer_carries_the_requests_id_in_its_type(message_id):
    request = Request(message_id, None, {}, None)

    for data in (cbs_reply(request, Reply(202)), management_reply(request, Reply(200))):
        properties, _, _ = read_answer(data)

        assert properties == [None] * 5 + [message_id]
        assert type(properties[5]) is type(message_id)


def test_the_token_service_writes_its_status_with_hyphens():
    _, status, body = read_answer(cbs_reply(Request(ID, None, {}, None), Reply(202, "Accepted")))

    assert status == {"status-code": 202, "status-description": "Accepted"}
    assert type(status["status-code"]) is Int
    assert body is None


def test_management_writes_its_status_in_camel_case():
    answer = Reply(200, body={"expirations": Array([Timestamp(5)])})

    _, status, body = read_answer(management_reply(Request(ID, None, {}, None), answer))

    assert status == {"statusCode": 200, "statusDescription": "OK"}
    assert type(status["statusCode"]) is Int
    assert body == {"expirations": [5]}


def test_an_error_adds_its_condition_as_a_symbol():
    answer = refusal(AmqpError("com.microsoft:message-lock-lost", "too late"))

    _, status, body = read_answer(management_reply(Request(ID, None, {}, None), answer))

    assert status == {
        "statusCode": 410,
        "statusDescription": "too late",
        "errorCondition": "com.microsoft:message-lock-lost",
    }
    assert type(status["errorCondition"]) is Symbol
    assert body == {}


STATUSES = {
    "amqp:not-found": 404,
    "com.microsoft:message-not-found": 404,
    "com.microsoft:message-lock-lost": 410,
    "com.microsoft:session-lock-lost": 410,
    "amqp:unauthorized-access": 401,
    "amqp:internal-error": 500,
    "amqp:not-implemented": 501,
    "com.microsoft:timeout": 408,
    "com.microsoft:argument-error": 400,
    "something:new": 400,
}


@pytest.mark.parametrize(("condition", "status"), STATUSES.items())
def test_a_condition_has_the_services_number(condition, status):
    assert refusal(AmqpError(condition, "text")).status == status


def test_ticks_count_from_the_year_one():
    moment = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    since = moment - datetime(1, 1, 1, tzinfo=UTC)

    counted = ticks(round(moment.timestamp() * 1000))

    assert counted == (since.days * 86_400 + since.seconds) * 10**7 + since.microseconds * 10


# -- the links of requests --------------------------------------------------------------------


def test_answers_come_also_where_a_connection_may_be_given_no_more_messages():
    with (
        Broker(["a", "b"], limits=Limits(unsettled_max=20)) as broker,
        Address.from_connection_string(broker.connection_string).client(
            timeout_seconds=30
        ) as client,
    ):
        for queue in ("a", "b"):
            client.sender(queue).send(messages(30))
        receiver = client.receiver("a", credit=30)
        taken = receiver.receive(30, max_wait_seconds=30)
        while len(taken) < 20:
            taken += receiver.receive(30, max_wait_seconds=30)

        assert len(client.management("b").peek(1, 5)) == 5  # a token for b, and a request

        receiver.complete(taken)
        assert receiver.receive(30, max_wait_seconds=30)
