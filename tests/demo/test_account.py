"""The verdict must be able to say no: each kind of failure, planted."""

from __future__ import annotations

import pytest

from pairbus.demo.account import Account


@pytest.fixture
def account() -> Account:
    """a is removed, b and c are there, d got no answer."""
    account = Account()
    account.attempt("a")
    account.attempt("b", "c")
    account.attempt("d")
    account.acknowledge("a", "b", "c")
    account.deliver("a", sequence_number=1)
    account.attempt_removal("a")
    account.acknowledge_removal("a")
    return account


def test_nothing_wrong_is_exact_and_what_is_allowed_is_counted(account: Account) -> None:
    account.deliver("b", sequence_number=2)
    account.restart()
    account.deliver("b", sequence_number=2)

    verdict = account.verdict({"b", "c", "d"})

    assert verdict.is_exact, verdict
    assert (verdict.attempts, verdict.acknowledged, verdict.removed) == (4, 3, 1)
    assert (verdict.duplicated, verdict.recovered) == (1, 1)


def test_an_acknowledged_message_that_is_gone_is_lost(account: Account) -> None:
    verdict = account.verdict(set())

    assert verdict.lost == ("b", "c")
    assert not verdict.is_exact


def test_an_acknowledged_message_that_was_only_seen_is_lost(account: Account) -> None:
    account.deliver("b", sequence_number=2)

    assert account.verdict({"c"}).lost == ("b",)


def test_a_message_that_nobody_sent_is_unexpected(account: Account) -> None:
    assert account.verdict({"b", "c", "e"}).unexpected == ("e",)


def test_a_removed_message_must_not_return(account: Account) -> None:
    assert account.verdict({"a", "b", "c"}).returned == ("a",)


def test_a_removed_message_must_not_be_delivered(account: Account) -> None:
    account.restart()
    account.deliver("a", sequence_number=1)

    assert account.verdict({"b", "c"}).returned == ("a",)


def test_a_held_message_must_not_be_delivered_to_another(account: Account) -> None:
    account.deliver("b", sequence_number=2)
    account.deliver("b", sequence_number=2)

    assert account.verdict({"b", "c"}).repeated == ("b",)


def test_a_message_given_back_may_be_delivered_again(account: Account) -> None:
    account.deliver("b", sequence_number=2)
    account.give_back("b")
    account.deliver("b", sequence_number=2)

    assert account.verdict({"b", "c"}).is_exact


def test_one_send_must_not_be_stored_twice(account: Account) -> None:
    account.deliver("b", sequence_number=2)
    account.restart()
    account.deliver("b", sequence_number=3)

    assert account.verdict({"b", "c"}).stored_twice == ("b",)


def test_half_a_batch_is_torn(account: Account) -> None:
    account.attempt("x", "y")

    verdict = account.verdict({"b", "c", "x"})

    assert verdict.torn == (("x", "y"),)
    assert not verdict.is_exact
