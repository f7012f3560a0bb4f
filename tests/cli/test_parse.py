"""Durations, times and numbers as they are typed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pairbus.cli.parse import parse_duration, parse_numbers, parse_time, parse_timeout
from pairbus.errors import UsageError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("5m", 300),
        ("2H", 7200),
        ("7d", 604800),
        ("PT90S", 90),
        ("p1d", 86400),
        ("0s", 0),
    ],
)
def test_a_duration_has_a_unit_or_is_iso_8601(text: str, seconds: float) -> None:
    assert parse_duration(text, "--ttl") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-5s", "5 weeks", "P", "PT", "s", "1e9d"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--ttl .* is not a duration: use 90s, 5m"):
        parse_duration(text, "--ttl")


def test_a_duration_of_more_than_a_century_is_refused() -> None:
    with pytest.raises(UsageError, match="--ttl '999999999d' is too long: at most 36500d"):
        parse_duration("999999999d", "--ttl")


def test_a_timeout_is_no_longer_than_a_socket_can_wait() -> None:
    assert parse_timeout("1500ms") == 1.5
    assert parse_timeout("100d") == 86400


@pytest.mark.parametrize("text", ["5", "1.5", " 0 "])
def test_a_duration_without_a_unit_is_refused_with_what_would_be_right(text: str) -> None:
    number = text.strip()
    with pytest.raises(UsageError, match=f"--ttl '{number}' has no unit: use {number}s, {number}m"):
        parse_duration(text, "--ttl")


def test_a_time_may_be_a_duration_from_now() -> None:
    assert parse_time("2030-12-31T23:59:59Z", "--at", now=NOW).year == 2030
    assert parse_time("2030-12-31", "--at", now=NOW).tzinfo is UTC
    assert parse_time("10m", "--at", now=NOW) == NOW + timedelta(minutes=10)
    with pytest.raises(UsageError, match="--at 'soon' is not a time"):
        parse_time("soon", "--at", now=NOW)


def test_numbers_are_single_ones_and_ranges() -> None:
    assert parse_numbers("5, 7,10-12", "--n") == (range(5, 6), range(7, 8), range(10, 13))


@pytest.mark.parametrize("text", ["", "a", "5-", "-5", "5,,6", "1-2-3", "9" * 20])
def test_what_is_not_a_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of numbers: use 5,7,10-20"):
        parse_numbers(text, "--n")


def test_a_range_that_contains_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="--n '5,20-10': 20 is more than 10"):
        parse_numbers("5,20-10", "--n")
