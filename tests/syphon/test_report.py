"""What a ledger says."""

from datetime import UTC, datetime, timedelta

import pytest

from pairbus.syphon.receipts import Receipt, ReceiptOutcome, count_waits
from pairbus.syphon.report import report_of

TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def ms(time):
    return int(time.timestamp() * 1000)


def receipt(round, at, first=None, last=None, *, run="a", path="orders", **more):
    waits = [ms(at) - ms(first)] * more.get("count", 0) if first else []
    settings = {"queue": "contoso/x-servicebus-transfer/0", "outcome": ReceiptOutcome.BROUGHT_HOME}
    return Receipt(
        **settings
        | {
            "run": run,
            "round": round,
            "path": path,
            "at_ms": ms(at),
            "first_enqueued_ms": None if first is None else ms(first),
            "last_enqueued_ms": None if last is None else ms(last),
            "longest_wait_ms": max(waits, default=0),
            "waits": count_waits(waits),
        }
        | more
    )


LATER = TEN + 20 * HOUR
WAITING = {"path": "late", "count": 7, "outcome": ReceiptOutcome.WAITING, "reason": "down"}
DEAD_LETTERED = {"outcome": ReceiptOutcome.DEAD_LETTERED}
RECEIPTS = [
    # Two runs, three outages of two destinations.
    receipt(1, TEN, TEN - 9 * MINUTE, TEN - 2 * MINUTE, count=90, bytes=9000),
    receipt(1, TEN, TEN - MINUTE, TEN - MINUTE, path="events", count=1, bytes=10),
    receipt(1, TEN, TEN, TEN, path="gone", count=2, reason="None", **DEAD_LETTERED),
    receipt(1, TEN, None, None, path="", count=1, reason="Odd", **DEAD_LETTERED),
    receipt(2, TEN + 5 * MINUTE, TEN, TEN + MINUTE, path="Orders", count=10, bytes=1000),
    receipt(2, TEN + 5 * MINUTE, TEN, TEN, path="events", count=4, outcome=ReceiptOutcome.EXPIRED),
    receipt(2, TEN, path="", duplicates_possible=3),
    receipt(1, LATER, LATER - SECOND, LATER, run="b", count=5, bytes=50),
    receipt(1, LATER, LATER, LATER, run="b", **WAITING),
]


@pytest.fixture
def report():
    return report_of(RECEIPTS)


@pytest.mark.req("X-10")
def test_each_message_counts_once(report):
    assert (report.brought_home, report.bytes, report.dead_lettered, report.expired) == (
        106,
        10060,
        3,
        4,
    )
    assert report.duplicates_possible == 3
    assert report.runs == 2
    assert (report.first, report.last) == (TEN, TEN + 20 * HOUR)


def test_messages_and_bytes_are_counted_by_destination_and_hour(report):
    assert [(h.path, h.hour, h.messages, h.bytes) for h in report.hours] == [
        ("Orders", TEN, 100, 10000),
        ("events", TEN, 1, 10),
        ("Orders", TEN + 20 * HOUR, 5, 50),
    ]


def test_waits_are_shown_by_destination(report):
    waits = {each.path: each for each in report.waits}

    assert waits["Orders"].messages == 105
    assert waits["Orders"].median_seconds == pytest.approx(540, rel=0.13)
    assert waits["Orders"].p99_seconds == pytest.approx(540, rel=0.13)
    assert waits["Orders"].longest_seconds == 540
    assert waits["events"].median_seconds == pytest.approx(60, rel=0.13)


def test_outages_have_a_begin_and_an_end(report):
    of_orders = [(o.begin, o.end, o.messages) for o in report.outages if o.path == "Orders"]

    assert of_orders == [
        (TEN - 9 * MINUTE, TEN + MINUTE, 100),
        (LATER - SECOND, LATER, 5),
    ]
    [late] = [outage for outage in report.outages if outage.path == "late"]
    assert (late.begin, late.messages) == (LATER, 0), "it continues: messages still wait"

    finer = report_of(RECEIPTS, gap=MINUTE)
    assert len([o for o in finer.outages if o.path == "Orders"]) == 3


@pytest.mark.req("S-05")
def test_dead_letters_are_counted_by_reason(report):
    assert [(d.path, d.reason, d.messages) for d in report.dead_letters] == [
        ("gone", "None", 2),
        ("", "Odd", 1),
    ]


@pytest.mark.req("M-02")
def test_a_message_that_comes_home_costs_four_operations(report):
    operations = report.operations

    assert operations.to_primary == operations.out_of_primary == 106
    assert operations.into_backlog == operations.out_of_backlog == 106 + 3 + 4
    assert operations.released == 7
    assert operations.total == 4 * 106 + 2 * (3 + 4) + 7


def test_destinations_of_several_primaries_are_distinct():
    receipts = [
        receipt(0, TEN, TEN, TEN, queue=f"{primary}/x-servicebus-transfer/0", count=2, bytes=20)
        for primary in ("contoso", "Contoso", "fabrikam")
    ]

    report = report_of(receipts)

    assert [(h.path, h.messages) for h in report.hours] == [
        ("Contoso: orders", 4),
        ("fabrikam: orders", 2),
    ]
    assert len(report.outages) == 2


def test_json_has_camel_case_names_and_iso_times(report):
    found = report.as_dict()

    assert found["broughtHome"] == 106
    assert found["operations"]["total"] == 445
    assert found["hours"][0] == {
        "path": "Orders",
        "hour": "2026-03-01T10:00:00.000Z",
        "messages": 100,
        "bytes": 10000,
    }
    assert found["outages"][0]["begin"] == "2026-03-01T09:51:00.000Z"
