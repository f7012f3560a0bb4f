import datetime
import decimal
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.types import Symbol, Timestamp, UInt
from pairbus.client.route.envelope import (
    ALIASES,
    KEPT_PREFIX,
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    EnvelopeError,
    unwrap,
    wrap,
)
from pairbus.errors import PairbusError

NOTHING = {"session_id": None, "time_to_live_ms": None, "scheduled_ms": None}

# Names that are ours, or look like it, more often than chance would have it.
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(ALIASES),
    st.builds("".join, st.tuples(st.just(KEPT_PREFIX), st.sampled_from([*ALIASES, "", "a"]))),
    st.just(KEPT_PREFIX + KEPT_PREFIX + PATH),
)
NAMES = st.one_of(TEXTS, TEXTS.map(str.encode))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.uuids(),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.decimals(allow_nan=False),
)
LONGS = st.integers(0, 2**63 - 1)


@pytest.mark.req("E-01", "E-02")
def test_a_wrapped_message_carries_what_a_backlog_queue_must_not_see():
    wrapped = wrap(
        {"colour": "red"},
        path="orders",
        session_id="s1",
        time_to_live_ms=60_000,
        scheduled_ms=1_800_000_000_000,
    )

    assert wrapped == {
        "colour": "red",
        "x-ms-path": "orders",
        "x-ms-sessionid": "s1",
        "x-ms-timetolive": 60_000,
        "x-ms-scheduledenqueuetimeutc": 1_800_000_000_000,
    }


@pytest.mark.req("E-01")
def test_what_a_message_did_not_have_it_does_not_carry():
    assert wrap(None, path="orders", **NOTHING) == {PATH: "orders"}
    assert wrap({}, path="orders", **NOTHING) == {PATH: "orders"}


@pytest.mark.req("E-01", "E-04")
def test_an_empty_session_id_and_a_zero_are_something():
    values = {"session_id": "", "time_to_live_ms": 0, "scheduled_ms": 0}
    restored = unwrap(wrap(None, path="orders", **values))

    assert {name: getattr(restored, name) for name in values} == values


@pytest.mark.req("E-03")
def test_the_applications_own_come_first_in_their_order_and_are_not_touched():
    body = uuid.uuid4()
    own = {"z": body, "a": decimal.Decimal("1.10"), b"bytes": b"\x00\xff"}
    before = dict(own)

    wrapped = wrap(own, path="orders", **NOTHING)

    assert list(wrapped) == ["z", "a", b"bytes", PATH]
    assert wrapped["z"] is body
    assert own == before


@pytest.mark.req("E-03", "E-04")
@given(
    own=st.dictionaries(NAMES, VALUES, max_size=6),
    path=st.text(
        st.characters(exclude_categories=["C", "Z"], exclude_characters="/$?#"), min_size=1
    ),
    session_id=st.one_of(st.none(), st.text()),
    time_to_live_ms=st.one_of(st.none(), LONGS),
    scheduled_ms=st.one_of(st.none(), LONGS),
)
def test_unwrapping_restores_exactly_what_was_wrapped(own, path, **values):
    values = {"path": path, **values}

    wrapped = wrap(own, **values)
    restored = unwrap(wrapped)

    assert restored.properties == own
    assert [*map(repr, restored.properties.items())] == [*map(repr, own.items())]
    assert {name: getattr(restored, name) for name in values} == values


@pytest.mark.req("E-04")
@given(own=st.dictionaries(NAMES, VALUES, max_size=6), path=st.text(min_size=1))
def test_on_the_wire_no_name_of_the_applications_is_taken_for_one_of_ours(own, path):
    wrapped = wrap(own, path=path, session_id="s", time_to_live_ms=1, scheduled_ms=1)

    names = [name if isinstance(name, str) else name.decode() for name in wrapped]

    assert [name for name in names if name in ALIASES] == [
        PATH,
        SESSION_ID,
        TIME_TO_LIVE,
        SCHEDULED,
    ]


@pytest.mark.req("E-03", "E-04")
def test_a_message_that_waited_in_a_backlog_before_may_wait_in_ours():
    once = wrap({"a": 1}, path="inner", session_id="s", time_to_live_ms=5, scheduled_ms=None)
    twice = wrap(once, path="outer", **NOTHING)

    assert unwrap(twice).path == "outer"
    assert unwrap(twice).properties == once
    assert unwrap(unwrap(twice).properties).properties == {"a": 1}


def test_aliases_as_the_official_sdk_reads_them_are_understood():
    restored = unwrap({b"x-ms-path": "Bücher".encode(), b"x-ms-sessionid": b"s", b"own": b"o"})

    assert (restored.path, restored.session_id) == ("Bücher", "s")
    assert restored.properties == {b"own": b"o"}


def test_amqps_own_number_types_become_plain_numbers():
    restored = unwrap({PATH: Symbol("orders"), TIME_TO_LIVE: UInt(5), SCHEDULED: Timestamp(7)})

    assert (restored.time_to_live_ms, restored.scheduled_ms) == (5, 7)
    assert type(restored.time_to_live_ms) is type(restored.scheduled_ms) is int


def test_an_alias_that_is_null_is_one_that_is_not_there():
    restored = unwrap({PATH: "orders", SESSION_ID: None, TIME_TO_LIVE: None, SCHEDULED: None})

    assert restored == unwrap({PATH: "orders"})


def test_a_name_that_is_none_passes_so_that_the_sdk_can_refuse_it():
    assert unwrap(wrap({5: "five"}, path="orders", **NOTHING)).properties == {5: "five"}


WRONG = {
    "nothing at all": (None, "the property x-ms-path is missing: it should be the path of the"),
    "no path": ({SESSION_ID: "s"}, "the property x-ms-path is missing: it should be the path of"),
    "an empty path": ({PATH: ""}, "the property x-ms-path is empty: it should be the path of the"),
    "a number for a path": ({PATH: 5}, "the property x-ms-path is 5, of type int: it should be a"),
    "a path that is no text": ({PATH: b"\xff"}, r"x-ms-path is b'\\xff', of type bytes: it should"),
    "the requests of a queue": ({PATH: "orders/$management"}, "no queue or topic has such a path"),
    "the dead letters": ({PATH: "orders/$DeadLetterQueue"}, "no queue or topic has such a path"),
    "the requests of all": ({PATH: "$cbs"}, "no queue or topic has such a path"),
    "a subscription": ({PATH: "events/Subscriptions/a"}, "no queue or topic has such a path"),
    "a blank": ({PATH: "my orders"}, "is 'my orders': no queue or topic has such a path"),
    "an empty part": ({PATH: "orders//1"}, "no queue or topic has such a path"),
    "nothing but slashes": ({PATH: "//"}, "no queue or topic has such a path"),
    "a path without end": ({PATH: "o" * 261}, "no queue or topic has such a path"),
    "a number for a session": (
        {PATH: "p", SESSION_ID: 1.5},
        "the property x-ms-sessionid is 1.5, of type float: it should be a string",
    ),
    "text for the time to live": (
        {PATH: "p", TIME_TO_LIVE: "00:01:00"},
        "x-ms-timetolive is '00:01:00', of type str: it should be the time to live in milliseconds",
    ),
    "a truth for the time to live": ({PATH: "p", TIME_TO_LIVE: True}, "is True, of type bool"),
    "a time to live that is over": (
        {PATH: "p", TIME_TO_LIVE: -1},
        "x-ms-timetolive is -1: it should be the time to live in milliseconds, 0 or more",
    ),
    "text for the schedule": (
        {PATH: "p", SCHEDULED: "tomorrow"},
        "x-ms-scheduledenqueuetimeutc is 'tomorrow', of type str: it should be a time in millisec",
    ),
}


@pytest.mark.parametrize(
    "path", ["orders", "/a/b/c/", "O.r-d_e~r", "o" * 260, "subscriptions", "a$b"]
)
def test_a_path_that_an_entity_may_have_is_taken(path):
    assert unwrap({PATH: path}).path == path


@pytest.mark.parametrize(("properties", "said"), WRONG.values(), ids=WRONG)
def test_what_nobody_has_wrapped_is_refused_with_what_should_be_there(properties, said):
    with pytest.raises(EnvelopeError, match=said) as caught:
        unwrap(properties)

    assert isinstance(caught.value, PairbusError)
    assert isinstance(caught.value, ValueError)


def test_a_message_without_a_destination_is_not_wrapped():
    with pytest.raises(AssertionError, match="cannot be brought home"):
        wrap(None, path="", **NOTHING)
