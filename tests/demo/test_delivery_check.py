"""The demo's account: a lost message shows, a duplicate shows, and nothing else looks like one."""

import pytest

from pairbus.demo.delivery_check import Account, Line, total

PLACES = {"orders": ("orders",), "events": ("events/audit", "events/billing")}


@pytest.fixture
def account():
    return Account(PLACES)


def send(account, entity, *ids):
    for message_id in ids:
        account.begins(entity, message_id)
        account.sent(entity, message_id)


def receive(account, place, message_id, number):
    account.arrived(place, message_id, number)
    account.settled(place, number)


def test_what_was_sent_and_has_arrived_is_whole(account):
    send(account, "orders", "1", "2")
    receive(account, "orders", "1", 10)
    receive(account, "orders", "2", 11)

    line = account.line("orders")

    assert line == Line(sent=2, delivered=2)
    assert line.is_whole
    assert str(line) == "LEDGER sent=2 delivered=2 lost=0 duplicated=0"


def test_what_never_arrives_is_lost_and_named(account):
    send(account, "orders", "1", "2", "3")
    receive(account, "orders", "2", 10)

    assert account.line("orders").lost == 2
    assert not account.line("orders").is_whole
    assert account.missing("orders") == {"orders": ["1", "3"]}


def test_a_topics_message_has_arrived_when_each_subscription_had_it(account):
    send(account, "events", "1")
    receive(account, "events/audit", "1", 10)

    assert account.line("events").lost == 1
    assert account.missing("events") == {"events/billing": ["1"]}

    receive(account, "events/billing", "1", 10)

    assert account.line("events").is_whole
    assert account.missing("events") == {}


def test_an_id_that_was_stored_twice_is_a_duplicate(account):
    send(account, "orders", "1")
    receive(account, "orders", "1", 10)
    receive(account, "orders", "1", 11)

    line = account.line("orders")

    assert (line.delivered, line.duplicated, line.repeated) == (1, 1, 0)
    assert not line.is_whole


def test_a_duplicate_in_one_place_does_not_make_up_for_a_loss_in_another(account):
    send(account, "events", "1")
    receive(account, "events/audit", "1", 10)
    receive(account, "events/audit", "1", 11)

    line = account.line("events")

    assert (line.lost, line.duplicated) == (1, 1)


def test_what_a_crash_has_left_unsettled_is_handed_out_again_and_no_duplicate(account):
    send(account, "orders", "1")
    account.arrived("orders", "1", 10)
    receive(account, "orders", "1", 10)

    line = account.line("orders")

    assert (line.duplicated, line.repeated) == (0, 1)
    assert line.is_whole


def test_what_comes_again_though_it_was_settled_is_a_duplicate(account):
    send(account, "orders", "1")
    receive(account, "orders", "1", 10)
    receive(account, "orders", "1", 10)

    line = account.line("orders")

    assert (line.duplicated, line.repeated) == (1, 0)


def test_what_was_given_out_in_vain_is_late_and_neither_lost_nor_a_duplicate(account):
    send(account, "orders", "1")
    account.arrived("orders", "1", 10, is_late=True)

    line = account.line("orders")

    assert (line.late, line.repeated) == (1, 0)
    assert line.is_whole


def test_what_arrives_before_its_send_returns_is_no_stranger(account):
    account.begins("orders", "1")
    receive(account, "orders", "1", 10)

    assert account.line("orders") == Line()

    account.sent("orders", "1")

    assert account.line("orders") == Line(sent=1, delivered=1)


def test_a_send_that_raised_is_not_sent_and_a_stranger_is_not_delivered(account):
    account.begins("orders", "1")
    account.raised("orders")
    receive(account, "orders", "of somebody else", 10)

    line = account.line("orders")

    assert (line.sent, line.delivered, line.raised, line.strange) == (0, 0, 1, 1)


def test_lines_add_up():
    one = Line(sent=3, delivered=2, duplicated=1, raised=1, repeated=4, late=6, strange=5)

    both = total([one, Line(sent=1, delivered=1)])

    assert both == Line(sent=4, delivered=3, duplicated=1, raised=1, repeated=4, late=6, strange=5)
    assert both.lost == 1
    assert total([]) == Line()
