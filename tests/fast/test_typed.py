"""AMQP values as a type and a text: there and back, byte for byte."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.types import Float, Int, Symbol, Timestamp, UByte, ULong
from pairbus.amqp.codec.values import decode, encode
from pairbus.fast.typed import from_typed, to_typed
from tests.fast.world import EVERY_VALUE

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.floats(),
    st.floats(width=32).map(Float),
    st.text(),
    st.text().map(Symbol),
    st.binary(),
    st.uuids(),
    st.lists(st.text(), max_size=3),
)


@pytest.mark.parametrize("name", EVERY_VALUE)
def test_every_type_has_its_name_and_its_text(name: str) -> None:
    value, kind, text = EVERY_VALUE[name]
    raw = encode(value)
    assert to_typed(raw, value) == (kind, text)
    assert from_typed(kind, text) == raw


@given(VALUES)
def test_what_was_a_text_is_the_same_value_again(value: Any) -> None:
    raw = encode(value)
    assert from_typed(*to_typed(raw, value)) == raw


def test_a_value_without_a_type_is_a_string_or_null() -> None:
    assert from_typed(None, "a") == encode("a")
    assert from_typed(None, None) == encode(None)


def test_a_time_may_be_written_in_other_zones_and_as_a_number() -> None:
    assert decode(from_typed("timestamp", "2026-01-01T01:00:00+01:00"))[0] == 1_767_225_600_000
    assert decode(from_typed("timestamp", "2026-01-01T00:00:00"))[0] == 1_767_225_600_000
    assert decode(from_typed("timestamp", "12"))[0] == 12


def test_not_a_number_can_be_written() -> None:
    assert math.isnan(decode(from_typed("double", "NaN"))[0])


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("integer", "1", "the type is 'integer'; expected one of null, boolean"),
        ("int", "1x", "the value '1x' is not a valid int; expected a whole number from"),
        ("int", "2147483648", "is not a valid int"),
        ("ubyte", "-1", "a whole number from 0 to 255"),
        ("boolean", "yes", "true or false"),
        ("char", "ab", "one character"),
        ("decimal32", "00", "4 bytes in hexadecimal"),
        ("uuid", "1", "a uuid"),
        ("binary", "?", "base64"),
        ("encoded", "AAAA", "the base64 of one AMQP value"),
        ("encoded", None, "the base64 of one AMQP value"),
        ("timestamp", "tomorrow", "a time such as"),
        ("long", None, "the value is null"),
        ("string", None, "the value is null"),
    ],
)
def test_the_error_says_what_is_expected(kind: str, text: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_typed(kind, text)


def test_a_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(ValueError, match=r"'xxx+'\.\.\. is not a valid int") as caught:
        from_typed("int", "x" * 10_000)
    assert len(str(caught.value)) < 200
