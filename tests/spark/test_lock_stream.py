"""Streams that receive: settled when the batch is safe, not before. Plain objects, real broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from pairbus.broker import QueueDescription
from pairbus.errors import OptionsError
from pairbus.spark import ServiceBusDataSource, lock_stream
from pairbus.spark.lock_stream import LockStreamReader, _parts
from pairbus.spark.schema import full
from pairbus.spark.versions import ReadAllAvailable, ReadMaxRows
from tests.fast.world import delivery_counts, messages
from tests.spark.world import Bus, names, rows_of

Buses = Callable[..., Bus]
Readers = Callable[..., LockStreamReader]


@pytest.fixture
def make_reader() -> Iterator[Readers]:
    made: list[LockStreamReader] = []

    def make(bus: Bus, **options: str) -> LockStreamReader:
        given = {"queue": "q", "receiveMode": "peekLock", "maxWaitSeconds": "4"} | options
        reader = ServiceBusDataSource(bus.options | given).streamReader(full())
        assert isinstance(reader, LockStreamReader)
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


def rows_between(
    reader: LockStreamReader, start: dict[str, int], end: dict[str, int]
) -> list[dict[str, Any]]:
    return rows_of(reader, reader.partitions(start, end))


def advance(reader: LockStreamReader, start: dict[str, int]) -> dict[str, int]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def run(reader: LockStreamReader, start: dict[str, int]) -> tuple[list[list[str]], dict[str, int]]:
    """Read batches until there are no more, as Spark does with availableNow."""
    found = []
    while True:
        end = advance(reader, start)
        if end == start:
            return found, end
        found.append(names(rows_between(reader, start, end)))
        start = end


def test_a_batch_is_settled_when_the_next_is_asked_for(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(5))
    reader = make_reader(bus, maxMessagesPerTrigger="3")
    start = reader.initialOffset()
    middle = advance(reader, start)
    rows = rows_between(reader, start, middle)
    assert names(rows) == ["m-0", "m-1", "m-2"]
    assert all(row["lockToken"] and row["lockedUntil"] for row in rows)
    assert len(bus.peek("q")) == 5
    # A task that Spark repeats reads the same.
    assert rows_between(reader, start, middle) == rows
    end = advance(reader, middle)
    assert names(bus.peek("q")) == ["m-3", "m-4"]
    assert names(rows_between(reader, middle, end)) == ["m-3", "m-4"]
    bus.send("q", messages(1, first=5))
    advance(reader, end)
    assert names(bus.peek("q")) == ["m-5"]


def test_without_a_start_a_batch_is_settled_when_it_was_planned_and_the_next_is_asked_for(
    bus: Bus, make_reader: Readers
) -> None:
    """As Spark 4.0 and 4.1 call it."""
    bus.send("q", messages(5))
    reader = make_reader(bus, maxMessagesPerTrigger="3")
    middle = reader.latestOffset()
    assert reader.latestOffset() == middle, "not planned yet"
    assert len(bus.peek("q")) == 5
    assert names(rows_between(reader, reader.initialOffset(), middle)) == ["m-0", "m-1", "m-2"]
    end = reader.latestOffset()
    assert names(bus.peek("q")) == ["m-3", "m-4"]
    assert names(rows_between(reader, middle, end)) == ["m-3", "m-4"]
    assert reader.latestOffset() == end
    assert bus.peek("q") == []
    reader.stop()
    # A restarted query learns where it was from a plan of nothing.
    bus.send("q", messages(1, first=5))
    again = make_reader(bus)
    assert rows_between(again, end, end) == []
    last = again.latestOffset()
    assert last["received"] == 6
    assert names(rows_between(again, end, last)) == ["m-5"]


def test_sparks_own_commit_settles_too(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(2))
    reader = make_reader(bus)
    end = advance(reader, reader.initialOffset())
    reader.commit(end)
    reader.commit(end)
    assert bus.peek("q") == []


def test_a_stopped_query_settles_nothing(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(2))
    reader = make_reader(bus)
    advance(reader, reader.initialOffset())
    reader.stop()
    assert len(bus.peek("q")) == 2


def test_a_restarted_query_repeats_its_batch_without_rows_and_gets_them_again(
    make_bus: Buses, make_reader: Readers
) -> None:
    bus = make_bus(QueueDescription(name="q", lock_duration=timedelta(seconds=1)))
    bus.send("q", messages(3))
    reader = make_reader(bus, maxLockRenewalSeconds="0")
    start = reader.initialOffset()
    end = advance(reader, start)
    # The driver is killed: nothing is said to the broker. A new process takes over.
    again = make_reader(bus)
    assert rows_between(again, start, end) == []
    again.prepareForTriggerAvailableNow()
    found, _ = run(again, end)
    assert sorted(chain.from_iterable(found)) == ["m-0", "m-1", "m-2"]
    assert bus.peek("q") == []


def test_available_now_waits_for_what_others_have_locked_but_not_for_ever(
    bus: Bus, make_reader: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    bus.send("q", messages(3))
    other = make_reader(bus, maxMessagesPerTrigger="2")
    advance(other, other.initialOffset())
    reader = make_reader(bus, maxLockedWaitSeconds="0.3")
    reader.prepareForTriggerAvailableNow()
    with caplog.at_level(logging.WARNING, "pairbus.spark"):
        found, end = run(reader, reader.initialOffset())
        assert advance(reader, end) == end
    assert found == [["m-2"]]
    assert caplog.text.count("still has messages that other receivers have locked") == 1


def test_available_now_does_not_chase_what_arrives_later(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(2))
    reader = make_reader(bus, maxMessagesPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    at, batches = start, 0
    while True:
        bus.send("q", messages(2, first=100 + batches))
        end = advance(reader, at)
        if end == at:
            break
        at, batches = end, batches + 1
        assert batches < 5
    assert batches <= 2


def test_available_now_ends_on_a_partitioned_entity(make_bus: Buses, make_reader: Readers) -> None:
    bus = make_bus(QueueDescription(name="q", enable_partitioning=True))
    bus.send("q", messages(5))
    reader = make_reader(bus, maxMessagesPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    found, _ = run(reader, reader.initialOffset())
    assert sorted(chain.from_iterable(found)) == [f"m-{number}" for number in range(5)]
    assert bus.peek("q") == []


def test_locks_are_renewed_while_a_batch_takes_its_time(
    make_bus: Buses, make_reader: Readers
) -> None:
    bus = make_bus(QueueDescription(name="q", lock_duration=timedelta(seconds=4)))
    bus.send("q", messages(300))
    reader = make_reader(bus)
    end = advance(reader, reader.initialOffset())
    time.sleep(5)
    bus.send("q", messages(1, first=300))
    advance(reader, end)
    assert names(bus.peek("q")) == ["m-300"]


def test_a_lost_lock_is_logged_and_its_message_comes_again(
    make_bus: Buses, make_reader: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(QueueDescription(name="q", lock_duration=timedelta(seconds=2)))
    bus.send("q", messages(2))
    reader = make_reader(bus, maxLockRenewalSeconds="0", maxWaitSeconds="30")
    first = advance(reader, reader.initialOffset())
    time.sleep(2.3)
    with caplog.at_level(logging.WARNING, "pairbus.spark"):
        second = advance(reader, first)
    assert "2 of 2 messages of 'q' were read but could not be completed" in caplog.text
    assert names(rows_between(reader, first, second)) == ["m-0", "m-1"]


def test_what_lies_in_the_buffer_is_given_back(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(50))
    reader = make_reader(bus, maxMessagesPerTrigger="5")
    advance(reader, reader.initialOffset())
    taken = bus.use("q", lambda got: got[0].complete(got[1]), count=45)
    assert set(delivery_counts(taken)) == {0}


def test_received_and_deleted_is_at_most_once_and_nothing_is_lost_on_the_way(
    bus: Bus, make_reader: Readers
) -> None:
    bus.send("q", messages(20))
    reader = make_reader(bus, receiveMode="receiveAndDelete", maxMessagesPerTrigger="7")
    reader.prepareForTriggerAvailableNow()  # it ends without a wait
    found, _ = run(reader, reader.initialOffset())
    assert list(chain.from_iterable(found)) == [f"m-{number}" for number in range(20)]
    assert max(map(len, found)) <= 7
    assert bus.peek("q") == []


def test_a_batch_requests_no_more_large_messages_than_fit_in_memory(
    bus: Bus, make_reader: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With receiveAndDelete, what was requested is in the driver's memory and not in the queue."""
    monkeypatch.setattr(lock_stream, "READ_AHEAD_BYTES_MAX", 1_000_000)
    for first in range(0, 40, 4):
        bus.send("q", messages(4, first=first, body=bytes(50_000)))
    reader = make_reader(bus, receiveMode="receiveAndDelete", maxBytesPerTrigger="100000")
    advance(reader, reader.initialOffset())
    assert len(bus.peek("q")) >= 10


def test_a_batch_is_bounded_in_bytes(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(40, body=b"x" * 10_000))
    reader = make_reader(bus, maxMessagesPerTrigger="10", maxBytesPerTrigger="1")
    reader.prepareForTriggerAvailableNow()  # it ends without a wait
    found, _ = run(reader, reader.initialOffset())
    assert sum(map(len, found)) == 40
    assert max(map(len, found)) <= 10


def test_a_lost_connection_is_opened_again(bus: Bus, make_reader: Readers) -> None:
    bus.send("q", messages(4))
    reader = make_reader(bus, maxMessagesPerTrigger="2")
    first = advance(reader, reader.initialOffset())
    with bus.broker.faults.unreachable():
        pass  # closes all connections
    second = advance(reader, first)
    assert names(bus.peek("q")) == ["m-2", "m-3"]
    assert names(rows_between(reader, first, second)) == ["m-2", "m-3"]


def test_a_trigger_that_never_completes_a_batch_is_refused(
    make_bus: Buses, make_reader: Readers
) -> None:
    reader = make_reader(make_bus("q"))
    with pytest.raises(OptionsError, match=r"use trigger\(availableNow=True\)"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.getDefaultReadLimit() == ReadMaxRows(10_000)


def test_messages_are_shared_out_among_tasks() -> None:
    small: Any = [(b"x", None)] * 10
    assert [len(part) for part in _parts(small, 3)] == [4, 4, 2]
    assert list(_parts([], 3)) == []
    large: Any = [(b"x" * 5_000_000, None)] * 4
    assert [len(part) for part in _parts(large, 1)] == [1, 1, 1, 1]
