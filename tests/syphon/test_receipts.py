"""Receipts add up, in any order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.receipts import (
    BUCKETS_MAX,
    Receipt,
    ReceiptOutcome,
    TaskReport,
    add_waits,
    bucket_start_ms,
    count_waits,
    merged,
    percentile_ms,
    wait_bucket,
)
from pairbus.syphon.restore import Restored

T0 = 1_800_000_000_000
QUEUE = "contoso/x-servicebus-transfer/0"


@dataclass
class Received:
    """A message that could not be restored."""

    data: bytes
    enqueued_time: datetime | None


def message(size, enqueued_ms):
    return Restored("orders", b"", size, False, enqueued_ms)


def moment(time_ms):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


class Clock:
    def __init__(self):
        self.now_ms = T0

    def __call__(self):
        return self.now_ms / 1000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def report(clock):
    return TaskReport(run="r1", round=3, clock=clock)


def test_messages_that_were_settled_together_are_one_row(report):
    messages = [message(100, T0 - 5_000), message(50, T0 - 9_000), message(1, T0 - 7_000)]

    report.record(QUEUE, "orders", ReceiptOutcome.BROUGHT_HOME, messages)

    assert report.receipts == (
        Receipt(
            run="r1",
            round=3,
            queue=QUEUE,
            path="orders",
            outcome=ReceiptOutcome.BROUGHT_HOME,
            count=3,
            bytes=151,
            at_ms=T0,
            first_enqueued_ms=T0 - 9_000,
            last_enqueued_ms=T0 - 5_000,
            longest_wait_ms=9_000,
            waits=count_waits([5_000, 9_000, 7_000]),
        ),
    )


def test_batches_add_up_by_queue_destination_outcome_and_reason(report, clock):
    for batch in range(3):
        clock.now_ms = T0 + batch
        for queue, path in itertools.product(["q/0", "q/1"], ["orders", "events"]):
            report.record(queue, path, ReceiptOutcome.BROUGHT_HOME, [message(10, T0 - 1)] * 2)
            report.record(queue, path, ReceiptOutcome.DEAD_LETTERED, [message(10, T0)], "Refused")
            report.record(queue, path, ReceiptOutcome.DEAD_LETTERED, [message(10, T0)], "NotFound")
    receipts = report.receipts
    assert len(receipts) == len({receipt.key for receipt in receipts}) == 12
    home = [receipt for receipt in receipts if receipt.outcome is ReceiptOutcome.BROUGHT_HOME]
    assert {(receipt.count, receipt.bytes, receipt.at_ms) for receipt in home} == {(6, 60, T0 + 2)}
    assert {receipt.longest_wait_ms for receipt in home} == {3}
    assert {sum(receipt.waits) for receipt in home} == {6}


@pytest.mark.req("S-05")
def test_a_message_that_could_not_be_restored_is_counted_as_it_was_received(report):
    report.record_unreadable(QUEUE, Received(b"x" * 70, moment(T0 - 10)), "EnvelopeUnreadable")
    report.record_unreadable(QUEUE, Received(b"x" * 30, None), "EnvelopeUnreadable")
    [receipt] = report.receipts
    assert (receipt.count, receipt.bytes, receipt.path) == (2, 100, "")
    assert receipt.outcome is ReceiptOutcome.DEAD_LETTERED
    assert receipt.first_enqueued_ms == receipt.last_enqueued_ms == T0 - 10
    assert (receipt.longest_wait_ms, sum(receipt.waits)) == (10, 1)


def test_a_message_without_a_time_has_no_wait(report):
    report.record(QUEUE, "orders", ReceiptOutcome.BROUGHT_HOME, [message(1, None)])
    [receipt] = report.receipts
    assert (receipt.first_enqueued_ms, receipt.longest_wait_ms, receipt.waits) == (None, 0, ())


def test_a_message_from_the_future_has_waited_for_no_time(report):
    report.record(QUEUE, "orders", ReceiptOutcome.BROUGHT_HOME, [message(1, T0 + 500)])
    [receipt] = report.receipts
    assert receipt.first_enqueued_ms == receipt.last_enqueued_ms == T0 + 500
    assert (receipt.longest_wait_ms, receipt.waits) == (0, (1,))


@pytest.mark.req("S-03")
def test_possible_duplicates_are_counted_with_what_was_brought_home(report, clock):
    report.record(QUEUE, "orders", ReceiptOutcome.BROUGHT_HOME, [message(1, T0)] * 5)
    clock.now_ms = T0 + 2
    report.record_possible_duplicates(QUEUE, "orders", 3)
    report.record_possible_duplicates(QUEUE, "orders", 2)
    report.record_possible_duplicates(QUEUE, "orders", 0)
    report.record_possible_duplicates(QUEUE, "", 1)
    orders, unknown = report.receipts
    assert (orders.count, orders.duplicates_possible, orders.at_ms) == (5, 5, T0 + 2)
    assert (unknown.count, unknown.duplicates_possible, unknown.at_ms) == (0, 1, T0 + 2)


# --- merging ------------------------------------------------------------------------------------


TIMES = st.one_of(st.none(), st.integers(0, T0))
RECEIPTS = st.builds(
    Receipt,
    run=st.sampled_from(["r1", "r2"]),
    round=st.integers(0, 2),
    queue=st.sampled_from(["q/0", "q/1"]),
    path=st.sampled_from(["orders", ""]),
    outcome=st.sampled_from(ReceiptOutcome),
    reason=st.sampled_from(["", "Gone"]),
    count=st.integers(0, 10**6),
    bytes=st.integers(0, 10**12),
    at_ms=st.integers(0, T0),
    first_enqueued_ms=TIMES,
    last_enqueued_ms=TIMES,
    longest_wait_ms=st.integers(0, 10**9),
    duplicates_possible=st.integers(0, 100),
    waits=st.lists(st.integers(0, 5), max_size=6).map(tuple),
)


@given(st.lists(RECEIPTS, max_size=12), st.randoms(use_true_random=False))
def test_merging_loses_nothing_and_its_order_does_not_matter(receipts, dice):
    once = merged(receipts)
    shuffled = list(receipts)
    dice.shuffle(shuffled)
    half = len(shuffled) // 2
    in_steps = merged([*merged(shuffled[:half]), *merged(shuffled[half:])])

    assert {receipt.key: receipt for receipt in once} == {
        receipt.key: receipt for receipt in in_steps
    }
    assert len({receipt.key for receipt in once}) == len(once)
    for name in ("count", "bytes", "duplicates_possible"):
        assert sum(getattr(one, name) for one in once) == sum(getattr(r, name) for r in receipts)
    assert sum(sum(one.waits) for one in once) == sum(sum(r.waits) for r in receipts)
    for one in once:
        alike = [receipt for receipt in receipts if receipt.key == one.key]
        firsts = [r.first_enqueued_ms for r in alike if r.first_enqueued_ms is not None]
        assert one.first_enqueued_ms == min(firsts, default=None)
        assert one.longest_wait_ms == max(r.longest_wait_ms for r in alike)


@given(st.lists(RECEIPTS, max_size=12))
def test_across_rounds_the_latest_gives_its_number(receipts):
    once = merged(receipts, across_rounds=True)
    keys = [replace(receipt, round=0).key for receipt in once]
    assert len(set(keys)) == len(keys)
    assert sum(one.count for one in once) == sum(receipt.count for receipt in receipts)
    for one, key in zip(once, keys, strict=True):
        rounds = [r.round for r in receipts if replace(r, round=0).key == key]
        assert one.round == max(rounds)


# --- waits --------------------------------------------------------------------------------------


@given(st.integers(-5, 2**40))
def test_every_wait_is_in_the_bucket_that_begins_before_it_and_ends_after_it(wait_ms):
    bucket = wait_bucket(wait_ms)
    assert bucket_start_ms(bucket) <= max(wait_ms, 0) < bucket_start_ms(bucket + 1)
    assert bucket_start_ms(bucket + 1) <= 1 + bucket_start_ms(bucket) * 1.25
    assert bucket < BUCKETS_MAX


def test_buckets_follow_each_other_without_a_gap():
    starts = [bucket_start_ms(bucket) for bucket in range(BUCKETS_MAX)]
    assert starts == sorted(set(starts))
    assert [wait_bucket(start) for start in starts] == list(range(BUCKETS_MAX))
    assert [wait_bucket(start - 1) for start in starts[1:]] == list(range(BUCKETS_MAX - 1))
    assert wait_bucket(2**62) == BUCKETS_MAX - 1


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_off_by_an_eighth_at_most(waits_ms, fraction):
    found = percentile_ms(count_waits(waits_ms), fraction)
    rank = max(int(-(-fraction * len(waits_ms) // 1)), 1)
    exact = sorted(waits_ms)[rank - 1]
    assert abs(found - exact) <= 0.125 * exact + 1


@given(st.lists(st.integers(0, 10**6)), st.lists(st.integers(0, 10**6)))
def test_histograms_add_up(some, others):
    assert add_waits(count_waits(some), count_waits(others)) == count_waits(some + others)


def test_nothing_has_no_percentile():
    assert percentile_ms((), 0.5) is None
    assert percentile_ms((0, 0), 0.5) is None
