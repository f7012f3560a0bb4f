"""Entities as they are typed."""

from __future__ import annotations

import pytest

from pairbus.cli.entity_path import EntityPath, SubQueue, parse_entity_path
from pairbus.errors import UsageError


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
        (("orders", None, SubQueue.TRANSFER_DEAD_LETTER), "orders/$Transfer/$DeadLetterQueue"),
    ],
)
def test_an_entity_has_the_path_of_the_service(
    words: tuple[str, str | None, SubQueue | None], path: str
) -> None:
    assert parse_entity_path(*words).path == path


def test_an_entity_is_described() -> None:
    place = EntityPath(entity="events", subscription="audit")
    assert place.description == "subscription 'audit' of topic 'events'"
    dead = EntityPath(entity="events", subscription="audit", sub_queue=SubQueue.DEAD_LETTER)
    assert dead.description == f"the dead-letter queue of {place.description}"
    assert EntityPath(entity="a/b").hint == "; if you mean a subscription, write two words: a b"
    assert (EntityPath(entity="a").hint, place.hint) == ("", "")


@pytest.mark.parametrize("words", [("",), ("/",), ("events", " ")])
def test_an_entity_needs_a_name(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="which entity"):
        parse_entity_path(*words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [("a b",), ("a?",), ("a//b",), ("a\udcff",), ("a", "b#"), ("a;EntityPath=b",)]
)
def test_an_impossible_name_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="is not a valid name of an entity: use letters, digits"):
        parse_entity_path(*words)  # type: ignore[arg-type]
