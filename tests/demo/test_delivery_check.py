"""The delivery check finds lost and duplicated messages, and nothing else looks like one."""

import pytest

from pairbus.demo.delivery_check import DeliveryCheck, Verdict, total

PLACES = {"orders": ("orders",), "events": ("events/audit", "events/billing")}


@pytest.fixture
def check():
    return DeliveryCheck(PLACES)


def send(check, entity, *ids):
    for message_id in ids:
        check.sending(entity, message_id)
        check.sent(entity, message_id)


def receive(check, place, message_id, number):
    check.arrived(place, message_id, number)
    check.settled(place, number)


def test_messages_that_all_arrive_once_are_ok(check):
    send(check, "orders", "1", "2")
    receive(check, "orders", "1", 10)
    receive(check, "orders", "2", 11)

    verdict = check.verdict("orders")

    assert verdict == Verdict(sent=2, delivered=2)
    assert verdict.is_ok
    assert str(verdict) == "LEDGER sent=2 delivered=2 lost=0 duplicated=0"


def test_a_message_that_never_arrives_is_lost_and_named(check):
    send(check, "orders", "1", "2", "3")
    receive(check, "orders", "2", 10)

    assert check.verdict("orders").lost == 2
    assert not check.verdict("orders").is_ok
    assert check.missing("orders") == {"orders": ["1", "3"]}


def test_a_topics_message_must_arrive_in_each_subscription(check):
    send(check, "events", "1")
    receive(check, "events/audit", "1", 10)

    assert check.verdict("events").lost == 1
    assert check.missing("events") == {"events/billing": ["1"]}

    receive(check, "events/billing", "1", 10)

    assert check.verdict("events").is_ok
    assert check.missing("events") == {}


def test_an_id_that_was_stored_twice_is_a_duplicate(check):
    send(check, "orders", "1")
    receive(check, "orders", "1", 10)
    receive(check, "orders", "1", 11)

    verdict = check.verdict("orders")

    assert (verdict.delivered, verdict.duplicated, verdict.repeated) == (1, 1, 0)
    assert not verdict.is_ok


def test_a_duplicate_in_one_place_does_not_make_up_for_a_loss_in_another(check):
    send(check, "events", "1")
    receive(check, "events/audit", "1", 10)
    receive(check, "events/audit", "1", 11)

    verdict = check.verdict("events")

    assert (verdict.lost, verdict.duplicated) == (1, 1)


def test_an_unsettled_message_that_is_delivered_again_is_no_duplicate(check):
    send(check, "orders", "1")
    check.arrived("orders", "1", 10)
    receive(check, "orders", "1", 10)

    verdict = check.verdict("orders")

    assert (verdict.duplicated, verdict.repeated) == (0, 1)
    assert verdict.is_ok


def test_a_settled_message_that_is_delivered_again_is_a_duplicate(check):
    send(check, "orders", "1")
    receive(check, "orders", "1", 10)
    receive(check, "orders", "1", 10)

    verdict = check.verdict("orders")

    assert (verdict.duplicated, verdict.repeated) == (1, 0)


def test_a_message_that_needs_a_second_delivery_is_late_and_ok(check):
    send(check, "orders", "1")
    check.arrived("orders", "1", 10, is_late=True)

    verdict = check.verdict("orders")

    assert (verdict.late, verdict.repeated) == (1, 0)
    assert verdict.is_ok


def test_a_message_may_arrive_before_its_send_returns(check):
    check.sending("orders", "1")
    receive(check, "orders", "1", 10)

    assert check.verdict("orders") == Verdict()

    check.sent("orders", "1")

    assert check.verdict("orders") == Verdict(sent=1, delivered=1)


def test_a_failed_send_does_not_count_and_a_foreign_message_is_unexpected(check):
    check.sending("orders", "1")
    check.raised("orders")
    receive(check, "orders", "of somebody else", 10)

    verdict = check.verdict("orders")

    assert (verdict.sent, verdict.delivered, verdict.raised, verdict.unexpected) == (0, 0, 1, 1)


def test_verdicts_add_up():
    one = Verdict(sent=3, delivered=2, duplicated=1, raised=1, repeated=4, late=6, unexpected=5)

    both = total([one, Verdict(sent=1, delivered=1)])

    assert both == Verdict(
        sent=4, delivered=3, duplicated=1, raised=1, repeated=4, late=6, unexpected=5
    )
    assert both.lost == 1
    assert total([]) == Verdict()
