"""The verdict must be able to say no: each kind of failure, planted."""

from __future__ import annotations

import pytest

from tests.chaos.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    """a is removed, b and c are there, d got no answer."""
    ledger = Ledger()
    ledger.attempt("a")
    ledger.attempt("b", "c")
    ledger.attempt("d")
    ledger.acknowledge("a", "b", "c")
    ledger.deliver("a", sequence_number=1)
    ledger.attempt_removal("a")
    ledger.acknowledge_removal("a")
    return ledger


def test_nothing_wrong_is_valid_and_what_is_allowed_is_counted(ledger: Ledger) -> None:
    ledger.deliver("b", sequence_number=2)
    ledger.restart()
    ledger.deliver("b", sequence_number=2)

    verdict = ledger.verdict({"b", "c", "d"})

    assert verdict.is_valid, verdict
    assert (verdict.attempts, verdict.acknowledged, verdict.removed) == (4, 3, 1)
    assert (verdict.duplicated, verdict.recovered) == (1, 1)


def test_an_acknowledged_message_that_is_gone_is_lost(ledger: Ledger) -> None:
    verdict = ledger.verdict(set())

    assert verdict.lost == ["b", "c"]
    assert not verdict.is_valid


def test_an_acknowledged_message_that_was_only_seen_is_lost(ledger: Ledger) -> None:
    ledger.deliver("b", sequence_number=2)

    assert ledger.verdict({"c"}).lost == ["b"]


def test_a_message_that_nobody_sent_is_unexpected(ledger: Ledger) -> None:
    assert ledger.verdict({"b", "c", "e"}).unexpected == ["e"]


def test_a_removed_message_must_not_return(ledger: Ledger) -> None:
    assert ledger.verdict({"a", "b", "c"}).returned == ["a"]


def test_a_removed_message_must_not_be_delivered(ledger: Ledger) -> None:
    ledger.restart()
    ledger.deliver("a", sequence_number=1)

    assert ledger.verdict({"b", "c"}).returned == ["a"]


def test_a_held_message_must_not_be_delivered_to_another(ledger: Ledger) -> None:
    ledger.deliver("b", sequence_number=2)
    ledger.deliver("b", sequence_number=2)

    assert ledger.verdict({"b", "c"}).repeated == ["b"]


def test_a_message_given_back_may_be_delivered_again(ledger: Ledger) -> None:
    ledger.deliver("b", sequence_number=2)
    ledger.give_back("b")
    ledger.deliver("b", sequence_number=2)

    assert ledger.verdict({"b", "c"}).is_valid


def test_one_send_must_not_be_stored_twice(ledger: Ledger) -> None:
    ledger.deliver("b", sequence_number=2)
    ledger.restart()
    ledger.deliver("b", sequence_number=3)

    assert ledger.verdict({"b", "c"}).stored_twice == ["b"]


def test_half_a_batch_is_torn(ledger: Ledger) -> None:
    ledger.attempt("x", "y")

    verdict = ledger.verdict({"b", "c", "x"})

    assert verdict.torn == [("x", "y")]
    assert not verdict.is_valid
