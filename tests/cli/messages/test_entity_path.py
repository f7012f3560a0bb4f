"""Entities, durations and numbers as they are typed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pairbus.cli.messages.entity_path import Part, Place, SubQueue, parse_place
from pairbus.cli.parse import age_text, parse_moment, parse_numbers, parse_span
from pairbus.errors import UsageError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("orders",), "orders"),
        (("/a/b/",), "a/b"),
        (("events", "audit"), "events/Subscriptions/audit"),
        (("a/b", "audit"), "a/b/Subscriptions/audit"),
        (("events/subscriptions/audit",), "events/Subscriptions/audit"),
        (("orders/$deadletterqueue",), "orders/$DeadLetterQueue"),
        (("orders/$Transfer/$DeadLetterQueue",), "orders/$Transfer/$DeadLetterQueue"),
        (("e/Subscriptions/a/$DeadLetterQueue",), "e/Subscriptions/a/$DeadLetterQueue"),
        (("orders", None, SubQueue.DEAD_LETTER), "orders/$DeadLetterQueue"),
        (("orders", None, SubQueue.TRANSFER), "orders/$Transfer/$DeadLetterQueue"),
    ],
)
def test_a_place_has_the_path_of_the_service(
    words: tuple[str, str | None, SubQueue | None], path: str
) -> None:
    assert parse_place(*words).path == path


def test_a_place_is_spoken_of() -> None:
    place = Place(entity="events", subscription="audit")
    assert place.spoken == "subscription 'audit' of topic 'events'"
    assert place.within(Part.DEAD_LETTERS).spoken == f"the dead-letter queue of {place.spoken}"
    assert Place(entity="a/b").hint == "; if a subscription is meant, it takes two words: a b"
    assert (Place(entity="a").hint, place.hint) == ("", "")


@pytest.mark.parametrize("words", [("",), ("/",), ("events", " ")])
def test_a_place_without_a_name_is_none(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="which entity"):
        parse_place(*words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [("a b",), ("a?",), ("a//b",), ("a\udcff",), ("a", "b#"), ("a;EntityPath=b",)]
)
def test_what_can_be_no_name_is_told(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="is no entity's name: letters, digits"):
        parse_place(*words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("5m", 300),
        ("2H", 7200),
        ("7d", 604800),
        ("PT90S", 90),
        ("p1d", 86400),
        ("0", 0),
    ],
)
def test_a_duration_is_typed_in_several_ways(text: str, seconds: float) -> None:
    assert parse_span(text, "--ttl") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-5s", "5 weeks", "P", "PT", "s", "1e9d", "999999999d"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(UsageError, match=r"--ttl .* is no duration: 90s, 5m"):
        parse_span(text, "--ttl")


def test_a_moment_is_a_time_or_a_duration_from_now() -> None:
    assert parse_moment("2030-12-31T23:59:59Z", "--at", now=NOW).year == 2030
    assert parse_moment("2030-12-31", "--at", now=NOW).tzinfo is UTC
    assert parse_moment("10m", "--at", now=NOW) == NOW + timedelta(minutes=10)
    with pytest.raises(UsageError, match="--at 'soon' is no time"):
        parse_moment("soon", "--at", now=NOW)


def test_numbers_come_alone_and_in_ranges() -> None:
    assert parse_numbers("5, 7,10-12", "--n") == (range(5, 6), range(7, 8), range(10, 13))


@pytest.mark.parametrize("text", ["", "a", "5-", "-5", "5,,6", "1-2-3", "9" * 20])
def test_what_are_no_numbers_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="is no list of numbers: 5,7,10-20"):
        parse_numbers(text, "--n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-3, "0s"), (59.9, "59s"), (61, "1m 1s"), (7200, "2h"), (273661, "3d 4h")],
)
def test_an_age_is_told_by_its_two_largest_parts(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
