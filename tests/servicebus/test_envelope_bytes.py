"""A diverted message beside the original, as the SDK's own encoder writes both: byte for byte."""

from __future__ import annotations

import copy
import string as letters
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import given
from hypothesis import strategies as st

from pairbus.route.envelope import ALIASES, SCHEDULED, SESSION_ID, TIME_TO_LIVE, unwrap
from pairbus.servicebus.messages import diverted
from tests.servicebus.wire import (
    ABSOLUTE_EXPIRY,
    CREATION,
    GROUP_ID,
    NULL,
    TTL,
    Wire,
    on_the_wire,
    read_properties,
    string,
)

SCHEDULE = "x-opt-scheduled-enqueue-time"
PATH = "orders"

# What the SDK can encode. Text without halves of surrogates, numbers of 32 bits.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
uint32 = st.integers(0, 2**32 - 1)
times = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
milliseconds = st.integers(1, 253_402_243_199_000)
simple = st.one_of(
    st.none(),
    st.booleans(),
    int32,
    st.floats(),
    text,
    st.uuids(),
    times,
    st.binary(max_size=20).map(bytearray),
    st.decimals(-1000, 1000, places=3).map(Decimal),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: {"TYPE": "LONG", "VALUE": n}),
    st.integers(0, 2**64 - 1).map(lambda n: {"TYPE": "ULONG", "VALUE": n}),
    st.floats(width=32).map(lambda x: {"TYPE": "FLOAT", "VALUE": x}),
    text.map(lambda value: {"TYPE": "SYMBOL", "VALUE": value}),
)
# A property's bytes go out as text: the SDK decodes them, and changes the application's dict for
# that.
values = st.one_of(simple, text.map(str.encode))
nested = st.recursive(
    st.one_of(simple, st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
names = text.filter(lambda name: name not in ALIASES and not name.startswith("x-pairbus-kept:"))
either = st.one_of(names, names.map(str.encode))
symbols = st.text(letters.ascii_lowercase, min_size=1, max_size=12).map("x-opt-{}".format)
notes = st.dictionaries(st.one_of(symbols, symbols.map(str.encode)), simple, max_size=3)
ids = st.one_of(text.filter(bool), st.binary(min_size=1, max_size=20), st.uuids(), uint32)
perhaps_text = st.one_of(st.none(), text, text.map(str.encode))

bodies = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(lambda b: {"data_body": b}),
    text.map(lambda b: {"data_body": b}),
    st.lists(st.lists(nested, max_size=3), min_size=1, max_size=3).map(
        lambda b: {"sequence_body": b}
    ),
    # The SDK knows types that are named inside of a value, and not of the value itself.
    nested.filter(lambda b: not (isinstance(b, dict) and "TYPE" in b)).map(
        lambda b: {"value_body": b}
    ),
)
headers = st.builds(
    AmqpMessageHeader,
    delivery_count=st.none() | uint32,
    time_to_live=st.none() | uint32,
    durable=st.none() | st.booleans(),
    first_acquirer=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
)
properties = st.builds(
    AmqpMessageProperties,
    message_id=ids,
    user_id=st.none() | st.binary(max_size=20),
    to=perhaps_text,
    subject=perhaps_text,
    reply_to=perhaps_text,
    correlation_id=st.none() | ids,
    content_type=perhaps_text,
    content_encoding=perhaps_text,
    creation_time=st.none() | milliseconds,
    absolute_expiry_time=st.none() | milliseconds,
    group_id=perhaps_text,
    group_sequence=st.none() | uint32,
    reply_to_group_id=perhaps_text,
)
schedules = st.one_of(
    times,
    times.map(lambda time: time.replace(tzinfo=None)),
    milliseconds.map(lambda n: {"TYPE": "TIMESTAMP", "VALUE": n}),
)


@st.composite
def messages(draw: Any) -> AmqpAnnotatedMessage:
    annotations = draw(st.none() | notes)
    if draw(st.booleans()):
        key = draw(st.sampled_from([SCHEDULE, SCHEDULE.encode()]))
        annotations = {**(annotations or {}), key: draw(schedules)}
    return AmqpAnnotatedMessage(
        **draw(bodies),
        header=draw(st.none() | headers),
        properties=draw(st.none() | properties),
        application_properties=draw(
            # A name goes out as text whether it is bytes or not, so the two must not collide.
            st.none()
            | st.lists(st.tuples(either, values), max_size=5, unique_by=lambda p: _text(p[0])).map(
                dict
            )
        ),
        annotations=annotations,
        delivery_annotations=draw(st.none() | notes),
        footer=draw(st.none() | notes),
    )


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()


def aliases(wire: Wire) -> dict[bytes, bytes]:
    known = {string(alias): alias for alias in ALIASES}
    return {known[name]: value for name, value in wire.application_properties if name in known}


def own(wire: Wire) -> list[tuple[bytes, bytes]]:
    known = {string(alias) for alias in ALIASES}
    return [pair for pair in wire.application_properties if pair[0] not in known]


def without(items: list[bytes], *positions: int) -> list[bytes]:
    """Cleared there; and a list in which nothing is left is not sent at all."""
    kept = [NULL if at in positions else item for at, item in enumerate(items)]
    return kept if any(item != NULL for item in kept) else []


def scheduled(wire: Wire) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in wire.annotations if name[2:] == SCHEDULE.encode()]


@pytest.mark.req("E-01", "E-02", "E-03")
@given(message=messages())
def test_only_session_time_to_live_and_schedule_leave_their_places(message):
    there = on_the_wire(diverted(message, PATH))
    here = on_the_wire(message)

    assert there.body == here.body
    assert there.footer == here.footer
    assert there.delivery_annotations == here.delivery_annotations
    assert there.header == without(here.header, TTL)
    times_of_ttl = (ABSOLUTE_EXPIRY, CREATION) if _lives(message) else ()
    assert there.properties == without(here.properties, GROUP_ID, *times_of_ttl)
    assert there.annotations == [pair for pair in here.annotations if pair not in scheduled(here)]
    assert own(there) == here.application_properties
    # Theirs come first, and ours behind them.
    assert there.application_properties[: len(own(there))] == own(there)


def _lives(message: AmqpAnnotatedMessage) -> bool:
    """The SDK adds two times to a message with a time to live."""
    return bool(message.header and message.header.time_to_live)


@pytest.mark.req("E-01", "E-02")
@given(message=messages())
def test_what_left_its_place_is_in_the_envelope_with_its_type(message):
    there, here = aliases(on_the_wire(diverted(message, PATH))), on_the_wire(message)

    expected = {"x-ms-path": string(PATH)}
    if here.properties and here.properties[GROUP_ID] != NULL:
        expected[SESSION_ID] = here.properties[GROUP_ID]
    if here.header and here.header[TTL] != NULL:
        milliseconds = message.header.time_to_live
        expected[TIME_TO_LIVE] = (
            b"\x55" + bytes([milliseconds])
            if milliseconds <= 127
            else b"\x81" + milliseconds.to_bytes(8, "big")
        )
    for _, value in scheduled(here):
        assert value[:1] == b"\x83"
        expected[SCHEDULED] = value
    assert there == expected


@pytest.mark.req("E-01", "E-02")
@given(message=messages(), schedule=times)
def test_it_can_be_read_back_by_whoever_brings_it_home(message, schedule):
    envelope = unwrap(read_properties(diverted(message, PATH, schedule)))

    session_id = message.properties and message.properties.group_id
    assert envelope.path == PATH
    assert envelope.session_id == (_text(session_id) if session_id is not None else None)
    assert envelope.time_to_live_ms == (message.header and message.header.time_to_live)
    assert envelope.scheduled_ms == int(schedule.timestamp() * 1000 + 1e-4)


@pytest.mark.req("E-03")
@given(message=messages(), schedule=st.none() | times)
def test_the_original_is_left_as_it_was(message, schedule):
    before = copy.deepcopy(vars(message))

    on_the_wire(diverted(message, PATH, schedule))

    assert repr(vars(message)) == repr(before)


@given(message=messages())
def test_the_body_is_shared_and_not_copied(message):
    twin = diverted(message, PATH)

    assert twin._data_body is message._data_body
    assert twin._sequence_body is message._sequence_body
    assert twin._value_body is message._value_body
