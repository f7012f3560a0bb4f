"""Messages as rows and rows as messages, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.stamp import stamp
from pairbus.amqp.codec.types import Array, Symbol, Timestamp, UInt, ULong
from pairbus.fast.columns import COLUMNS, NAMES, reader_of
from pairbus.fast.compose import RowError, message_of
from pairbus.fast.rows import UnreadableMessage, read
from tests.fast.world import EVERY_VALUE, as_row, described, message

NOW_MS = 1_767_225_600_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WRITABLE = [column.name for column in COLUMNS if column.writable]


def delivered(data: bytes, **more: Any) -> bytes:
    """As a broker delivers it."""
    parts = slice_message(data)
    settings: dict[str, Any] = {
        "durable": parts.durable,
        "priority": parts.priority,
        "ttl_ms": parts.ttl_ms,
        "delivery_count": 3,
        "lock_token": None,
        "sequence": 17,
        "enqueued_ms": NOW_MS,
        "locked_until_ms": NOW_MS + 30_000,
        "enqueued_sequence": 5,
        "annotations": parts.annotations,
        "annotation_count": parts.annotation_count,
        "bare": parts.bare,
    }
    return stamp(**(settings | more))


def written(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Arrow's, which has no tuples, as it would be read again."""
    shaped = dict(row)
    for name in ("applicationProperties", "annotations"):
        shaped[name] = [
            (key, {"type": kind, "value": text}) for key, (kind, text) in row[name] or ()
        ]
    due = row["scheduledEnqueueTime"]
    if due is not None:
        shaped["scheduledEnqueueTime"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=due
        )
    return as_row(message_of({name: shaped[name] for name in WRITABLE}, now_ms=NOW_MS))


FULL = message(
    "id-1",
    body=b"hello",
    header=[True, None, UInt(60_000)],
    annotations={
        "x-opt-partition-key": "pk",
        "x-opt-scheduled-enqueue-time": Timestamp(NOW_MS + 5_000),
        "x-own": Symbol("mine"),
    },
    properties={
        1: b"me",
        2: "to-whom",
        3: "subject",
        4: "reply-to",
        5: "correlation",
        6: Symbol("text/plain"),
        7: Symbol("gzip"),
        10: "session",
        12: "reply-session",
    },
    application={"n": 5},
)


def test_every_column_of_a_message() -> None:
    token = UUID(int=9)
    data = delivered(FULL, state=1, dead_letter_source="orders")
    assert as_row(data, lock_token=token) == {
        "body": b"hello",
        "bodyType": "data",
        "messageId": "id-1",
        "correlationId": "correlation",
        "subject": "subject",
        "contentType": "text/plain",
        "contentEncoding": "gzip",
        "to": "to-whom",
        "replyTo": "reply-to",
        "replyToSessionId": "reply-session",
        "sessionId": "session",
        "userId": b"me",
        "partitionKey": "pk",
        "timeToLive": 60_000,
        "scheduledEnqueueTime": (NOW_MS + 5_000) * 1000,
        "applicationProperties": [("n", ("long", "5"))],
        "annotations": [("x-own", ("symbol", "mine"))],
        "enqueuedTime": NOW_MS * 1000,
        "sequenceNumber": 17,
        "enqueuedSequenceNumber": 5,
        "state": "deferred",
        "deliveryCount": 3,
        "deadLetterReason": None,
        "deadLetterErrorDescription": None,
        "deadLetterSource": "orders",
        "lockToken": str(token),
        "lockedUntil": (NOW_MS + 30_000) * 1000,
        "entity": "q",
    }


def test_every_column_that_can_be_written_is_read_again() -> None:
    row = as_row(delivered(FULL))
    again = written(row)
    assert {name: again[name] for name in WRITABLE} == {name: row[name] for name in WRITABLE}


def test_a_message_that_says_nothing() -> None:
    row = as_row(described(0x75, b""))
    assert {name: value for name, value in row.items() if value} == {
        "bodyType": "data",
        "state": "active",
        "entity": "q",
    }
    assert row["body"] == b""
    assert as_row(message_of({}, now_ms=NOW_MS))["body"] == b""


@pytest.mark.parametrize(
    ("sections", "kind"),
    [
        (described(0x75, b"x" * 300), "data"),
        (described(0x75, b"a") + described(0x75, b"b"), "dataSections"),
        (described(0x76, [1, "a"]), "sequence"),
        (described(0x76, [1]) + described(0x76, [Symbol("b")]), "sequence"),
        (described(0x77, {"deep": [ULong(1), None]}), "value"),
        (described(0x77, None), "value"),
    ],
)
def test_every_kind_of_body_comes_back_as_it_was(sections: bytes, kind: str) -> None:
    data = message(sections=sections)
    row = as_row(data)
    assert row["bodyType"] == kind
    assert row["body"] == (b"x" * 300 if kind == "data" else sections)
    assert (
        message_of(row | {"applicationProperties": None, "annotations": None}, now_ms=0)[
            -len(sections) :
        ]
        == sections
    )


def test_a_footer_is_no_body() -> None:
    row = as_row(message(sections=described(0x75, b"a") + described(0x78, {Symbol("f"): 1})))
    assert (row["body"], row["bodyType"]) == (b"a", "data")


def test_a_message_without_a_body_has_none() -> None:
    row = as_row(described(0x73, ["id"]))
    assert (row["body"], row["bodyType"]) == (None, None)


def test_every_type_of_property_comes_back_as_it_was() -> None:
    values = {name: value for name, (value, _, _) in EVERY_VALUE.items()}
    row = as_row(message(application=values))
    assert row["applicationProperties"] == [
        (name, (kind, text)) for name, (_, kind, text) in EVERY_VALUE.items()
    ]
    assert written(row)["applicationProperties"] == row["applicationProperties"]


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        ("plain", "plain"),
        ("AMQP_UUID:looks-like", "AMQP_STRING:AMQP_UUID:looks-like"),
        (UUID(int=3), f"AMQP_UUID:{UUID(int=3)}"),
        (ULong(2**63), "AMQP_ULONG:9223372036854775808"),
        (b"\xab\x01", "AMQP_BINARY:AB01"),
    ],
)
def test_ids_of_every_type_come_back_as_they_were(identifier: Any, text: str) -> None:
    row = as_row(message(identifier, properties={5: identifier}))
    assert (row["messageId"], row["correlationId"]) == (text, text)
    data = message_of({"messageId": text, "correlationId": text}, now_ms=0)
    assert data == message_of({"messageId": text, "correlationId": text}, now_ms=1)
    assert as_row(data)["messageId"] == text


def test_a_life_that_is_too_long_for_the_header_is_kept() -> None:
    ninety_days = 90 * 86_400_000
    data = message_of({"timeToLive": ninety_days}, now_ms=NOW_MS)
    assert slice_message(data).ttl_ms == 2**32 - 1
    assert as_row(data)["timeToLive"] == ninety_days


def test_a_dead_lettered_message_has_its_reason() -> None:
    row = as_row(
        message(application={"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"})
    )
    assert (row["deadLetterReason"], row["deadLetterErrorDescription"]) == ("why", "because")


def test_only_the_columns_that_are_asked_for_are_read() -> None:
    assert reader_of(["subject", "messageId"])(read(FULL, entity="q")) == ["subject", "id-1"]


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x53\x75", FULL[:-3], b"\x00\x53\x73\xc0\x05\x01"])
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableMessage, match="a message of 'orders' cannot be read"):
        reader_of(NAMES)(read(data, entity="orders"))


# -- rows that are written ------------------------------------------------------------------------


def test_a_body_may_be_text_and_properties_may_be_plain() -> None:
    row = as_row(
        message_of({"body": "grüße", "applicationProperties": [("a", "b"), ("c", None)]}, now_ms=0)
    )
    assert row["body"] == "grüße".encode()
    assert row["applicationProperties"] == [("a", ("string", "b")), ("c", ("null", None))]


def test_a_schedule_is_a_moment_in_any_zone() -> None:
    for moment in (
        NOW,
        NOW.replace(tzinfo=None),
        NOW.astimezone(timezone(timedelta(hours=5))),
    ):
        data = message_of({"scheduledEnqueueTime": moment}, now_ms=0)
        assert as_row(data)["scheduledEnqueueTime"] == NOW_MS * 1000


def test_columns_of_the_service_are_not_written() -> None:
    data = message_of(
        {
            "annotations": [("x-opt-sequence-number", {"type": "long", "value": "5"})],
            "sequenceNumber": 9,
            "lockToken": "x",
        },
        now_ms=0,
    )
    assert as_row(data)["sequenceNumber"] is None


def test_a_row_without_an_id_gets_the_same_one_each_time() -> None:
    def name(said: bytes) -> str:
        return said.hex()[:40]

    first = message_of({"body": b"a", "timeToLive": 2**33}, now_ms=1, name=name)
    second = message_of({"body": b"a", "timeToLive": 2**33}, now_ms=2, name=name)
    assert as_row(first)["messageId"] == as_row(second)["messageId"] is not None
    assert as_row(message_of({"messageId": "own"}, now_ms=1, name=name))["messageId"] == "own"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"timeToLive": 0}, "column timeToLive: 0 is not a time to live; expected a number"),
        ({"timeToLive": -5}, "column timeToLive: -5"),
        ({"messageId": "AMQP_UUID:x"}, "column messageId: 'AMQP_UUID:x' starts with AMQP_"),
        ({"correlationId": "AMQP_LONG:1"}, "column correlationId: 'AMQP_LONG:1' starts with"),
        (
            {"scheduledEnqueueTime": datetime(1969, 1, 1, tzinfo=UTC)},
            "column scheduledEnqueueTime: 1969-01-01",
        ),
        (
            {"applicationProperties": [("n", {"type": "int", "value": "x"})]},
            "column applicationProperties: in 'n', the value 'x' is not a valid int",
        ),
        (
            {"annotations": [("n", {"type": "what", "value": "x"})]},
            "column annotations: in 'n', the type is 'what'; expected one of",
        ),
        (
            {"body": b"x", "bodyType": "text"},
            "column bodyType: it is 'text'; expected one of data, ",
        ),
        ({"body": b"x", "bodyType": "value"}, "column body: it does not match bodyType 'value'"),
        ({"body": b"", "bodyType": "sequence"}, "column body: it does not match bodyType"),
        ({"body": described(0x77, 1)[:-1], "bodyType": "value"}, "column body: it does not match"),
        ({"bodyType": "value"}, "column body: it is null, but bodyType is 'value'"),
    ],
)
def test_a_wrong_value_is_reported_with_its_column(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RowError) as caught:
        message_of(row, now_ms=0)
    assert said in str(caught.value)


def test_arrays_of_a_body_are_not_looked_at() -> None:
    sections = described(0x77, Array([1, 2], code=0x81))
    assert as_row(message(sections=sections))["body"] == sections
