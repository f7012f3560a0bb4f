"""AMQP values as Python values and back, and texts of values."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.types import (
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Symbol,
    Timestamp,
)
from pairbus.broker.rules.values import (
    decimal_128,
    decimal_of,
    duration,
    moment,
    text,
    to_amqp,
    to_ms,
    to_python,
)

# By the standard's formula: sign, exponent + bias, coefficient.
DECIMALS = {
    "one, in 32 bits": (Decimal32((101 << 23 | 1).to_bytes(4)), Decimal(1)),
    "minus a half, in 64 bits": (Decimal64((1 << 63 | 397 << 53 | 5).to_bytes(8)), Decimal("-0.5")),
    "a third, in 128 bits": (
        Decimal128((6142 << 113 | int("3" * 34)).to_bytes(16)),
        Decimal("0." + "3" * 34),
    ),
    "a coefficient of 24 bits": (
        Decimal32((0b11 << 29 | 101 << 21 | 9_999_999 - (1 << 23)).to_bytes(4)),
        Decimal(9_999_999),
    ),
    "a coefficient that is too large is zero": (
        Decimal32((0b11 << 29 | 101 << 21 | (1 << 21) - 1).to_bytes(4)),
        Decimal(0),
    ),
    "without end": (Decimal64((0b11110 << 58).to_bytes(8)), inf),
    "without end, below": (Decimal64((0b111110 << 58).to_bytes(8)), -inf),
}


@pytest.mark.parametrize(("raw", "expected"), DECIMALS.values(), ids=DECIMALS)
def test_decimals_are_read(raw, expected):
    assert to_python(raw) == expected


def test_a_decimal_that_is_no_number_is_a_nan():
    assert isnan(to_python(Decimal128(b"\x7c" + bytes(15))))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**28), max_value=10**28))
def test_decimals_are_written_as_they_are_read(number):
    if len(number.as_tuple().digits) <= 34:
        assert decimal_of(decimal_128(number)) == number


MOMENTS = {
    "the epoch": (0, datetime(1970, 1, 1, tzinfo=UTC)),
    "before it": (-1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
    "before the calendar": (-(2**63), datetime(1, 1, 1, tzinfo=UTC)),
    "behind it": (2**63 - 1, datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)),
}


@pytest.mark.parametrize(("ms", "expected"), MOMENTS.values(), ids=MOMENTS)
def test_times_are_read(ms, expected):
    assert to_python(Timestamp(ms)) == expected


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_times_are_written_as_they_are_read(ms):
    assert to_ms(to_python(Timestamp(ms))) == ms
    assert to_amqp(to_python(Timestamp(ms))) == ms


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_of_ticks_is_a_duration_and_a_time(ticks):
    span = to_python(Described(Symbol("com.microsoft:timespan"), ticks))
    assert abs(span - timedelta(microseconds=ticks / 10)) < timedelta(seconds=1)
    assert isinstance(
        to_python(Described(Symbol("com.microsoft:datetime-offset"), ticks)), datetime
    )


def test_what_has_no_plain_value_stays():
    for value in (
        [1],
        {"a": 1},
        Described(Symbol("other"), 1),
        Described(Symbol("com.microsoft:timespan"), [1]),
        Described(Symbol("com.microsoft:timespan"), "1"),
    ):
        assert to_python(value) == value
    assert type(to_python(Char("x"))) is str


TEXTS = {
    "a string": ("a", "a"),
    "an integer": (5, "5"),
    "a whole double": (5.0, "5"),
    "a double": (0.1, "0.1"),
    "a large double": (1e300, "1E+300"),
    "a boolean": (True, "True"),
    "a decimal": (Decimal("1.50"), "1.50"),
    "a time": (datetime(2024, 5, 17, 12, tzinfo=UTC), "2024-05-17T12:00:00Z"),
    "a duration": (timedelta(hours=1, seconds=2), "01:00:02"),
    "a long duration": (-timedelta(days=3, microseconds=5), "-3.00:00:00.0000050"),
    "bytes": (b"a", None),
    "a list": ([1], None),
}


@pytest.mark.parametrize(("value", "expected"), TEXTS.values(), ids=TEXTS)
def test_the_text_of(value, expected):
    assert text(value) == expected


@given(st.timedeltas(timedelta(days=-9_999_999), timedelta(days=9_999_999)))
def test_a_duration_is_read_from_its_text(value):
    assert duration(text(value)) == value


NO_DURATIONS = ("", "5", "24:00", "0:60", "0:00:60", "1:2:3:4", "a", "1.1:00:00.12345678", None)


@pytest.mark.parametrize("value", NO_DURATIONS)
def test_other_texts_are_no_durations(value):
    assert duration(value) is None


def test_other_texts_are_no_times():
    for value in ("", "noon", "0001-01-01T00:00:00+23:00", "2" * 100, 5, None):
        assert moment(value) is None
    assert moment("2024-05-17T14:00+02:00") == datetime(2024, 5, 17, 12, tzinfo=UTC)
