"""The ledger finds lost and duplicated messages, and nothing else looks like one."""

import pytest

from pairbus.demo.ledger import Ledger, LedgerLine, total

PLACES = {"orders": ("orders",), "events": ("events/audit", "events/billing")}


@pytest.fixture
def ledger():
    return Ledger(PLACES)


def send(ledger, entity, *ids):
    for message_id in ids:
        ledger.accounts[entity].attempt(message_id)
        ledger.accounts[entity].acknowledge(message_id)


def receive(ledger, place, message_id, number, *, is_settled=True):
    account = ledger.accounts[place.partition("/")[0]]
    account.deliver(message_id, place=place, sequence_number=number)
    account.attempt_removal(message_id, place)
    if is_settled:
        account.acknowledge_removal(message_id, place, sequence_number=number)


def test_messages_that_all_arrive_once_are_ok(ledger):
    send(ledger, "orders", "1", "2")
    receive(ledger, "orders", "1", 10)
    receive(ledger, "orders", "2", 11)

    line = ledger.line("orders")

    assert line == LedgerLine(sent=2, delivered=2)
    assert line.is_ok
    assert str(line) == "LEDGER sent=2 delivered=2 lost=0 duplicated=0"


def test_a_message_that_never_arrives_is_lost_and_named(ledger):
    send(ledger, "orders", "1", "2", "3")
    receive(ledger, "orders", "2", 10)

    assert ledger.line("orders").lost == 2
    assert not ledger.line("orders").is_ok
    assert ledger.missing() == {"orders": ["1", "3"]}


def test_a_topics_message_must_arrive_in_each_subscription(ledger):
    send(ledger, "events", "1")
    receive(ledger, "events/audit", "1", 10)

    assert ledger.line("events").lost == 1
    assert ledger.missing() == {"events/billing": ["1"]}

    receive(ledger, "events/billing", "1", 10)

    assert ledger.line("events").is_ok
    assert ledger.missing() == {}


# By what happened to message 1 of a queue: its sequence number, and whether it was settled.
ARRIVALS = {
    "stored twice": ([(10, True), (11, True)], {"duplicated": 1}),
    "delivered again after it was settled": ([(10, True), (10, True)], {"duplicated": 1}),
    "delivered again before it was settled": ([(10, False), (10, True)], {"repeated": 1}),
}


@pytest.mark.parametrize(("arrivals", "counts"), ARRIVALS.values(), ids=ARRIVALS)
def test_what_arrives_twice_is_a_duplicate_unless_its_settlement_was_lost(ledger, arrivals, counts):
    send(ledger, "orders", "1")
    for number, is_settled in arrivals:
        receive(ledger, "orders", "1", number, is_settled=is_settled)

    line = ledger.line("orders")

    assert line == LedgerLine(sent=1, delivered=1, **counts)
    assert line.is_ok is ("duplicated" not in counts)


def test_a_duplicate_in_one_place_does_not_make_up_for_a_loss_in_another(ledger):
    send(ledger, "events", "1")
    receive(ledger, "events/audit", "1", 10)
    receive(ledger, "events/audit", "1", 11)

    line = ledger.line("events")

    assert (line.lost, line.duplicated) == (1, 1)


def test_a_message_may_arrive_before_its_send_returns(ledger):
    ledger.accounts["orders"].attempt("1")
    receive(ledger, "orders", "1", 10)

    assert ledger.line("orders") == LedgerLine()

    ledger.accounts["orders"].acknowledge("1")

    assert ledger.line("orders") == LedgerLine(sent=1, delivered=1)


def test_a_failed_send_does_not_count_and_a_foreign_message_is_unexpected(ledger):
    ledger.accounts["orders"].attempt("1")
    ledger.raised["orders"] += 1
    receive(ledger, "orders", "of somebody else", 10)

    assert ledger.line("orders") == LedgerLine(raised=1, unexpected=1)


def test_lines_add_up():
    one = LedgerLine(sent=3, delivered=2, duplicated=1, raised=1, repeated=4, late=6, unexpected=5)

    both = total([one, LedgerLine(sent=1, delivered=1)])

    assert both == LedgerLine(
        sent=4, delivered=3, duplicated=1, raised=1, repeated=4, late=6, unexpected=5
    )
    assert both.lost == 1
    assert total([]) == LedgerLine()
