"""The ledger finds lost and duplicated messages, and nothing else looks like one."""

from dataclasses import replace

import pytest

from pairbus.demo.ledger import Ledger, LedgerLine, total

PLACES = {"orders": ("orders",), "events": ("events/audit", "events/billing")}
QUEUE, AUDIT, BILLING = "orders", "events/audit", "events/billing"

# What is sent to an entity; then what arrives: the place, the message, its sequence number, and
# whether it was settled. At last the line of the entity, and what is missing.
CASES = {
    "all arrive once": (
        "orders", "12", [(QUEUE, "1", 10, True), (QUEUE, "2", 11, True)],
        LedgerLine(sent=2, delivered=2), {},
    ),
    "some never arrive": (
        "orders", "123", [(QUEUE, "2", 10, True)],
        LedgerLine(sent=3, delivered=1), {QUEUE: ["1", "3"]},
    ),
    "it arrives in one of two subscriptions": (
        "events", "1", [(AUDIT, "1", 10, True)],
        LedgerLine(sent=1), {BILLING: ["1"]},
    ),
    "it arrives in both subscriptions": (
        "events", "1", [(AUDIT, "1", 10, True), (BILLING, "1", 10, True)],
        LedgerLine(sent=1, delivered=1), {},
    ),
    "a duplicate in one place does not make up for a loss in another": (
        "events", "1", [(AUDIT, "1", 10, True), (AUDIT, "1", 11, True)],
        LedgerLine(sent=1, duplicated=1), {BILLING: ["1"]},
    ),
    "stored twice": (
        "orders", "1", [(QUEUE, "1", 10, True), (QUEUE, "1", 11, True)],
        LedgerLine(sent=1, delivered=1, duplicated=1), {},
    ),
    "delivered again after it was settled": (
        "orders", "1", [(QUEUE, "1", 10, True), (QUEUE, "1", 10, True)],
        LedgerLine(sent=1, delivered=1, duplicated=1), {},
    ),
    "delivered again before it was settled": (
        "orders", "1", [(QUEUE, "1", 10, False), (QUEUE, "1", 10, True)],
        LedgerLine(sent=1, delivered=1, repeated=1), {},
    ),
    "a message of somebody else": (
        "orders", "", [(QUEUE, "theirs", 10, True)],
        LedgerLine(unexpected=1), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("entity", "sent", "arrivals", "line", "missing"), CASES.values(), ids=CASES
)
def test_the_line_of_an_entity(entity, sent, arrivals, line, missing):
    ledger = Ledger(PLACES)
    account = ledger.accounts[entity]
    account.attempt("not acknowledged")
    for message_id in sent:
        account.attempt(message_id)
        account.acknowledge(message_id)
    for place, message_id, number, is_settled in arrivals:
        account.deliver(message_id, place=place, sequence_number=number)
        account.attempt_removal(message_id, place)
        if is_settled:
            account.acknowledge_removal(message_id, place, sequence_number=number)
    ledger.raised[entity], ledger.late[entity] = 2, 3

    assert ledger.line(entity) == replace(line, raised=2, late=3)
    assert ledger.missing() == missing
    assert line.is_ok is (not missing and not line.duplicated)


def test_lines_add_up():
    one = LedgerLine(sent=3, delivered=2, duplicated=1, raised=1, repeated=4, late=6, unexpected=5)

    both = total([one, LedgerLine(sent=1, delivered=1)])

    assert both == LedgerLine(
        sent=4, delivered=3, duplicated=1, raised=1, repeated=4, late=6, unexpected=5
    )
    assert str(both) == "LEDGER sent=4 delivered=3 lost=1 duplicated=1"
    assert total([]) == LedgerLine()
