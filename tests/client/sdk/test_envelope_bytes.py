"""A diverted message compared with the original, byte for byte, as the SDK's own encoder writes
both."""

from __future__ import annotations

import copy

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.route.envelope import ALIASES, SCHEDULED, SESSION_ID, TIME_TO_LIVE, unwrap
from pairbus.client.sdk.messages import diverted
from tests.client.sdk.drawn import SCHEDULE, messages, text_of, times
from tests.client.sdk.wire import (
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

PATH = "orders"


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
    assert envelope.session_id == (text_of(session_id) if session_id is not None else None)
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
    def parts(of):
        return [of.body] if of.body_type is AmqpMessageBodyType.VALUE else list(of.body)

    copied = diverted(message, PATH)

    assert [*map(id, parts(copied))] == [*map(id, parts(message))]
