"""Durations are read and written as the service does."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.entities.durations import (
    INFINITE,
    format_duration,
    milliseconds,
    parse_duration,
)

DURATIONS = {
    "PT1M": timedelta(minutes=1),
    "PT10S": timedelta(seconds=10),
    "P14D": timedelta(days=14),
    "P1DT2H3M4S": timedelta(days=1, hours=2, minutes=3, seconds=4),
    "PT0.5S": timedelta(milliseconds=500),
    "PT0S": timedelta(),
    "P10675199DT2H48M5.4775807S": INFINITE,
    "P10675199DT2H48M5.477581S": INFINITE,
    "P10675198DT23H": timedelta(days=10_675_198, hours=23),
    "P999999999D": INFINITE,
}


@pytest.mark.parametrize(("text", "value"), DURATIONS.items())
def test_durations_are_read_as_the_service_writes_them(text, value):
    assert parse_duration(text) == value


NOT_DURATIONS = (
    *("", "P", "PT", "P1DT", "1M", "PT1", "PT-1S", "P1Y", "P1M", "P1W", "pt1m", "PT1S ", "PT1M1H"),
    *("PT1,5S", "P1D2H", "00:01:00"),
)


@pytest.mark.parametrize("text", NOT_DURATIONS)
def test_an_invalid_duration_is_a_value_error(text):
    with pytest.raises(ValueError, match="PT1M"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["PT99999999999999999999S", "PT999999999999999H"])
def test_a_duration_that_is_too_long_is_a_value_error(text):
    with pytest.raises(ValueError, match=text):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=10_675_198)))
def test_a_written_duration_reads_the_same(value):
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(("text", "value"), list(DURATIONS.items())[:7])
def test_durations_are_written_as_the_service_does(text, value):
    assert format_duration(value) == text


def test_never_has_no_milliseconds():
    assert milliseconds(INFINITE) is None
    assert milliseconds(timedelta(days=10_675_199)) is None
    assert milliseconds(timedelta(seconds=1.5)) == 1500
