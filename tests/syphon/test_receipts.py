"""Receipts add up: whoever counts, in whatever order, comes to the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.receipts import (
    COLUMNS,
    Collector,
    Outcome,
    Receipt,
    from_row,
    merged,
    row,
)
from pairbus.syphon.restore import Restored
from pairbus.syphon.waits import (
    BUCKETS_MAX,
    add_waits,
    bucket_start_ms,
    count_waits,
    percentile_ms,
    wait_bucket,
)

T0 = 1_800_000_000_000
QUEUE = "contoso/x-servicebus-transfer/0"


@dataclass
class Received:
    data: bytes
    enqueued_time: datetime | None


def pair(size, enqueued_ms):
    restored = Restored("orders", b"", size, False, enqueued_ms)
    return Received(b"larger, with its envelope", None), restored


def unreadable(size, enqueued_ms):
    time = None if enqueued_ms is None else datetime(1970, 1, 1, tzinfo=UTC)
    return Received(b"x" * size, time and time + timedelta(milliseconds=enqueued_ms)), None


def collector():
    return Collector(run="r1", round=3)


def test_messages_that_were_settled_together_are_one_row():
    counting = collector()
    pairs = [pair(100, T0 - 5_000), pair(50, T0 - 9_000), pair(1, T0 - 7_000)]

    counting.add(QUEUE, "orders", Outcome.BROUGHT_HOME, pairs, now_ms=T0)

    assert counting.receipts() == [
        Receipt(
            run="r1",
            round=3,
            queue=QUEUE,
            path="orders",
            outcome=Outcome.BROUGHT_HOME,
            count=3,
            bytes=151,
            at_ms=T0,
            first_enqueued_ms=T0 - 9_000,
            last_enqueued_ms=T0 - 5_000,
            longest_wait_ms=9_000,
            waits=count_waits([5_000, 9_000, 7_000]),
        )
    ]


def test_chunks_add_up_by_queue_destination_outcome_and_reason():
    counting = collector()
    for chunk in range(3):
        for queue, path in itertools.product(["q/0", "q/1"], ["orders", "events"]):
            now_ms = T0 + chunk
            counting.add(queue, path, Outcome.BROUGHT_HOME, [pair(10, T0 - 1)] * 2, now_ms=now_ms)
            counting.add(
                queue, path, Outcome.DEAD_LETTERED, [pair(10, T0)], now_ms=now_ms, reason="Refused"
            )
            counting.add(
                queue, path, Outcome.DEAD_LETTERED, [pair(10, T0)], now_ms=now_ms, reason="Gone"
            )
    receipts = counting.receipts()
    assert len(receipts) == len({receipt.key for receipt in receipts}) == 12
    moved = [receipt for receipt in receipts if receipt.outcome is Outcome.BROUGHT_HOME]
    assert {(receipt.count, receipt.bytes, receipt.at_ms) for receipt in moved} == {(6, 60, T0 + 2)}
    assert {receipt.longest_wait_ms for receipt in moved} == {3}
    assert {sum(receipt.waits) for receipt in moved} == {6}


@pytest.mark.req("S-05")
def test_a_message_that_could_not_be_restored_is_counted_as_it_was_received():
    counting = collector()
    pairs = [unreadable(70, T0 - 10), unreadable(30, None)]
    counting.add(QUEUE, "", Outcome.DEAD_LETTERED, pairs, now_ms=T0, reason="EnvelopeUnreadable")
    [receipt] = counting.receipts()
    assert (receipt.count, receipt.bytes, receipt.path) == (2, 100, "")
    assert receipt.first_enqueued_ms == receipt.last_enqueued_ms == T0 - 10
    assert (receipt.longest_wait_ms, sum(receipt.waits)) == (10, 1)


def test_messages_without_a_time_have_no_wait_and_clocks_that_differ_give_none():
    counting = collector()
    counting.add(QUEUE, "orders", Outcome.BROUGHT_HOME, [pair(1, None)], now_ms=T0)
    [receipt] = counting.receipts()
    assert (receipt.first_enqueued_ms, receipt.longest_wait_ms, receipt.waits) == (None, 0, ())

    counting.add(QUEUE, "orders", Outcome.BROUGHT_HOME, [pair(1, T0 + 500)], now_ms=T0)
    [receipt] = counting.receipts()
    assert receipt.first_enqueued_ms == receipt.last_enqueued_ms == T0 + 500
    assert (receipt.longest_wait_ms, receipt.waits) == (0, (1,))


@pytest.mark.req("S-03")
def test_what_may_arrive_twice_is_counted_with_what_was_moved():
    counting = collector()
    counting.add(QUEUE, "orders", Outcome.BROUGHT_HOME, [pair(1, T0)] * 5, now_ms=T0)
    counting.doubt(QUEUE, "orders", 3, now_ms=T0 + 1)
    counting.doubt(QUEUE, "orders", 2, now_ms=T0 + 2)
    counting.doubt(QUEUE, "", 1, now_ms=T0 + 2)
    orders, unknown = counting.receipts()
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
    outcome=st.sampled_from(Outcome),
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


# --- rows ---------------------------------------------------------------------------------------


def test_the_columns_are_the_fields_of_a_receipt():
    assert [column.field for column in COLUMNS] == [field.name for field in fields(Receipt)]
    assert {column.type for column in COLUMNS} == {"string", "int", "long", "timestamp", "longs"}


@given(RECEIPTS)
def test_a_row_is_the_receipt(receipt):
    values = row(receipt)
    named = dict(zip((column.name for column in COLUMNS), values, strict=True))
    kinds = {"string": str, "int": int, "long": int, "timestamp": datetime, "longs": list}
    for column, value in zip(COLUMNS, values, strict=True):
        assert (value is None and column.is_nullable) or type(value) is kinds[column.type], column
    assert from_row(named) == receipt


def test_a_time_in_a_row_is_utc_to_the_millisecond():
    at_ms = T0 + 123
    receipt = Receipt(
        run="r", round=1, queue="q", path="p", outcome=Outcome.BROUGHT_HOME, at_ms=at_ms
    )
    named = dict(zip((column.name for column in COLUMNS), row(receipt), strict=True))
    assert named["at"] == datetime(2027, 1, 15, 8, 0, 0, 123000, tzinfo=UTC)
    naive = named | {"at": named["at"].replace(tzinfo=None)}
    assert from_row(naive) == receipt, "Arrow and Spark may give times without a zone"


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
