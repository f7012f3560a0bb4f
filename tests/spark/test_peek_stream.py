"""Reading with peek: batches and streams as plain objects, with a real broker."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from pyspark.sql.types import LongType, StringType, StructField, StructType

import pairbus.spark.options
from pairbus.amqp.client.blocking import Connection
from pairbus.amqp.codec.types import Described, Symbol, Timestamp, ULong
from pairbus.amqp.codec.values import encode
from pairbus.broker import Broker, QueueDescription
from pairbus.errors import OptionsError
from pairbus.fast.connection_cache import ConnectionCache
from pairbus.fast.peek import PartitionedEntity, Peeker, SequenceRange, split
from pairbus.fast.rows import MessageView, read, sequence_number
from pairbus.spark import ServiceBusDataSource
from pairbus.spark.options import read_options
from pairbus.spark.schema import full
from pairbus.spark.versions import ReadAllAvailable, ReadMaxRows
from tests.fast.world import message, messages
from tests.spark.world import Bus, names, rows_of

Buses = Callable[..., Bus]
FAR = Timestamp(4_000_000_000_000)


def source(bus: Bus, **options: str) -> ServiceBusDataSource:
    return ServiceBusDataSource(bus.options | {"queue": "q"} | options)


def read_all(bus: Bus, **options: str) -> list[dict[str, Any]]:
    reader = source(bus, **options).reader(full())
    return rows_of(reader, reader.partitions())


def step(reader: Any, start: dict[str, int], limit: Any = None) -> tuple[list[str], dict[str, int]]:
    """Run a micro-batch: the ids that it reads, and its end offset."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    if end == start:
        return [], end
    return names(rows_of(reader, reader.partitions(start, end))), end


# -- a batch --------------------------------------------------------------------------------------


def test_a_batch_reads_all_and_leaves_all(bus: Bus) -> None:
    bus.send("q", messages(600))
    expected = [f"m-{number}" for number in range(600)]
    assert names(read_all(bus)) == expected
    assert names(read_all(bus, partitions="4")) == expected
    assert len(bus.peek("q")) == 600
    assert {row["deliveryCount"] for row in bus.peek("q")} == {0}


def test_a_part_of_a_queue(bus: Bus) -> None:
    bus.send("q", messages(10))

    def numbers(**options: str) -> list[int]:
        return [row["sequenceNumber"] for row in read_all(bus, **options)]

    assert numbers(fromSequenceNumber="4") == [4, 5, 6, 7, 8, 9, 10]
    assert numbers(fromSequenceNumber="4", toSequenceNumber="6") == [4, 5, 6]
    assert numbers(toSequenceNumber="2") == [1, 2]
    assert numbers(maxMessages="3") == [1, 2, 3]
    assert numbers(fromSequenceNumber="11") == []


def test_dead_letters_are_a_queue_of_their_own(bus: Bus) -> None:
    bus.send("q", messages(3))
    bus.dead_letter("q", "broken", count=3)
    (first, *rest) = read_all(bus, subQueue="deadLetter")
    assert len(rest) == 2
    assert (first["deadLetterReason"], first["entity"]) == ("broken", "q/$DeadLetterQueue")
    assert read_all(bus) == []


def test_scheduled_messages_are_read_when_they_are_due_or_on_request(bus: Bus) -> None:
    bus.send("q", [message("later", annotations={"x-opt-scheduled-enqueue-time": FAR})])
    bus.send("q", [message("now")])
    assert names(read_all(bus)) == ["now"]
    rows = read_all(bus, includeScheduled="true")
    assert [(row["messageId"], row["state"]) for row in rows] == [
        ("later", "scheduled"),
        ("now", "active"),
    ]


def test_a_subscription_is_read_like_a_queue(make_bus: Buses) -> None:
    bus = make_bus(topics=("events", "events/Subscriptions/all"))
    bus.send("events", messages(2))
    reader = ServiceBusDataSource(bus.options | {"topic": "events", "subscription": "all"}).reader(
        full()
    )
    assert names(rows_of(reader, reader.partitions())) == ["m-0", "m-1"]


def test_a_schema_chooses_columns(bus: Bus) -> None:
    bus.send("q", messages(1))
    chosen = StructType(
        [StructField("sequenceNumber", LongType()), StructField("messageId", StringType())]
    )
    reader = source(bus).reader(chosen)
    assert rows_of(reader, reader.partitions()) == [{"sequenceNumber": 1, "messageId": "m-0"}]
    with pytest.raises(
        OptionsError, match="the schema has a column colour, which the source does not have"
    ):
        source(bus).reader(StructType([StructField("colour", StringType())]))
    with pytest.raises(
        OptionsError, match="column body of the schema is a bigint; in the source it is"
    ):
        source(bus).reader(StructType([StructField("body", LongType())]))


def test_a_queue_that_is_not_there_is_named(make_bus: Buses) -> None:
    with pytest.raises(ServiceBusAuthenticationError, match="nowhere"):
        read_all(make_bus("q"), queue="nowhere")


@pytest.mark.parametrize("count", [1, 5, 1999])
def test_no_more_is_received_and_deleted_than_was_asked_for(bus: Bus, count: int) -> None:
    bus.send("q", messages(2100))
    options = {"receiveMode": "receiveAndDelete", "maxWaitSeconds": "2"}
    taken = names(read_all(bus, partitions="2", maxMessages=str(count), **options))
    assert len(taken) == len(set(taken)) == count
    assert len(bus.peek("q")) == 2100 - count
    assert len(read_all(bus, **options)) == 2100 - count
    assert bus.peek("q") == []


# -- a stream -------------------------------------------------------------------------------------


def test_offsets_are_sequence_numbers_and_a_batch_can_be_read_again(bus: Bus) -> None:
    bus.send("q", messages(5))
    reader = source(bus, maxMessagesPerTrigger="3", maxWaitSeconds="0").streamReader(full())
    start = reader.initialOffset()
    first, middle = step(reader, start)
    second, end = step(reader, middle)
    assert (first, second) == (["m-0", "m-1", "m-2"], ["m-3", "m-4"])
    assert step(reader, end) == ([], end)
    reader.stop()
    # Another process, from the offsets of a checkpoint.
    again = source(bus, maxMessagesPerTrigger="3", maxWaitSeconds="0").streamReader(full())
    assert names(rows_of(again, again.partitions(start, middle))) == first
    bus.send("q", messages(1, first=5))
    assert step(again, end)[0] == ["m-5"]
    again.stop()


def test_no_batch_is_larger_than_allowed_and_gaps_are_skipped(bus: Bus) -> None:
    bus.send("q", messages(100))
    bus.use("q", lambda got: got[0].complete(got[1]), count=90)
    reader = source(bus, maxMessagesPerTrigger="4", maxWaitSeconds="0").streamReader(full())
    sizes, at = [], reader.initialOffset()
    while True:
        found, end = step(reader, at)
        if end == at:
            break
        sizes.append(len(found))
        at = end
    assert sum(sizes) == 10
    assert max(sizes) <= 4
    assert len(sizes) <= 3
    reader.stop()


def test_latest_begins_behind_what_is_there(bus: Bus) -> None:
    bus.send("q", messages(3))
    reader = source(bus, fromSequenceNumber="latest", maxWaitSeconds="0").streamReader(full())
    at = reader.initialOffset()
    assert step(reader, at) == ([], at)
    bus.send("q", messages(1, first=3))
    assert step(reader, at)[0] == ["m-3"]
    reader.stop()


def test_without_a_start_a_batch_begins_after_the_last_one_that_was_planned(
    bus: Bus,
) -> None:
    """As Spark 4.0 and 4.1 call it."""
    bus.send("q", messages(3))
    options = {"maxMessagesPerTrigger": "2", "maxWaitSeconds": "0"}
    reader = source(bus, fromSequenceNumber="latest", **options).streamReader(full())
    start = reader.latestOffset()
    bus.send("q", messages(3, first=3))
    assert reader.initialOffset() == start, "not behind the messages that came in between"
    middle = reader.latestOffset()
    assert names(rows_of(reader, reader.partitions(start, middle))) == ["m-3", "m-4"]
    reader.stop()
    # A restarted query learns where it was from a plan of nothing.
    again = source(bus, **options).streamReader(full())
    assert rows_of(again, again.partitions(middle, middle)) == []
    end = again.latestOffset()
    assert names(rows_of(again, again.partitions(middle, end))) == ["m-5"]
    again.stop()


def test_available_now_ends_at_what_was_there(bus: Bus) -> None:
    bus.send("q", messages(3))
    reader = source(bus, maxMessagesPerTrigger="2").streamReader(full())
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    bus.send("q", messages(5, first=3))
    first, at = step(reader, at)
    second, at = step(reader, at)
    assert (first, second) == (["m-0", "m-1"], ["m-2"])
    assert step(reader, at) == ([], at)
    reader.stop()


def test_an_idle_stream_asks_seldom(make_bus: Buses) -> None:
    reader = source(make_bus("q"), maxWaitSeconds="0.5").streamReader(full())
    at = reader.initialOffset()
    began = time.monotonic()
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert time.monotonic() - began >= 0.5
    reader.stop()


def test_limits_are_as_the_options_say(bus: Bus) -> None:
    limited = source(bus, maxMessagesPerTrigger="7").streamReader(full())
    assert limited.getDefaultReadLimit() == ReadMaxRows(7)
    assert source(bus).streamReader(full()).getDefaultReadLimit() == ReadAllAvailable()


def test_numbers_of_a_partitioned_entity_are_no_offsets(make_bus: Buses) -> None:
    bus = make_bus(QueueDescription(name="q", enable_partitioning=True))
    bus.send("q", messages(3))
    with pytest.raises(PartitionedEntity, match="'q' is a partitioned entity"):
        read_all(bus)


# -- the search for the end -----------------------------------------------------------------------


class Numbered(Peeker):
    """A Peeker with numbers in place of an entity."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.asked = 0

    def firsts_at(self, numbers: Sequence[int]) -> list[int | None]:
        self.asked += len(numbers)
        return [next((one for one in self.numbers if one >= number), None) for number in numbers]


@pytest.mark.parametrize("numbers", [[1], [1, 2], [5, 9_999], [*range(3, 2_000)], [1, 10**9]])
def test_the_end_is_found_with_few_questions(numbers: list[int]) -> None:
    peeker = Numbered(numbers)
    assert peeker.end(0) == numbers[-1] + 1
    assert peeker.asked < 80
    for limit in (1, 2, 100):
        end = peeker.end(0, limit)
        assert numbers[0] < end <= numbers[-1] + 1
        assert len([one for one in numbers if one < end]) <= limit


def test_nothing_ends_where_it_begins() -> None:
    assert Numbered([3]).end(4) == 4


class Paged(Peeker):
    """A Peeker with numbers in place of an entity. The service returns at most `most` of them."""

    def __init__(self, numbers: list[int], most: int) -> None:
        self.numbers, self.most = numbers, most
        self.waits = self.returned = 0

    def pages(self, wanted: Sequence[tuple[int, int]]) -> list[list[bytes]]:
        self.waits += 1
        pages = []
        for start, count in wanted:
            at = bisect_left(self.numbers, start)
            some = self.numbers[at : at + min(count, self.most)]
            pages.append([numbered(one) for one in some])
        self.returned += sum(map(len, pages))
        return pages

    def _read(self, data: bytes) -> MessageView:
        return read(data, entity="q")


def numbered(number: int) -> bytes:
    annotations = {Symbol("x-opt-sequence-number"): number}
    return encode(Described(ULong(0x72), annotations)) + message(str(number))


@pytest.mark.parametrize("most", [1_000, 40])
@pytest.mark.parametrize(
    "numbers",
    [
        [*range(3, 2_700)],
        [*range(0, 60_000, 40)],
        [*range(5), *range(400, 1_200), *range(3_000, 3_002)],
        [],
    ],
    ids=["dense", "sparse", "gaps", "none"],
)
def test_each_message_of_a_range_is_read_once_and_in_order(numbers: list[int], most: int) -> None:
    peeker = Paged(numbers, most)
    found = [
        sequence_number(one) for one in peeker.messages(SequenceRange(2, 50_000), scheduled=True)
    ]
    assert found == [one for one in numbers if 2 <= one < 50_000]
    assert peeker.returned <= 3 * len(numbers) + 3_000


def test_several_pages_of_a_dense_queue_are_on_their_way_at_once() -> None:
    peeker = Paged([*range(20_000)], 1_000)
    assert len(list(peeker.messages(SequenceRange(0, 20_000), scheduled=True))) == 20_000
    assert peeker.waits <= 12
    assert peeker.returned == 20_000


def test_tasks_and_later_reads_use_the_connections_of_earlier_ones(
    make_bus: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, cache = make_bus("q"), ConnectionCache()
    monkeypatch.setattr(pairbus.spark.options, "OF_THIS_PROCESS", cache)
    bus.send("q", messages(40))
    opened: list[object] = []
    open_connection = Connection.open
    monkeypatch.setattr(
        Connection, "open", lambda *given, **named: opened.append(open_connection(*given, **named))
    )
    for _ in range(3):
        assert len(read_all(bus, partitions="4")) == 40
        assert len(cache) == 1
    assert len(opened) == 1
    other = bus.connection_string.replace("Endpoint=sb://localhost", "Endpoint=sb://127.0.0.1")
    assert len(read_all(bus, connectionString=other)) == 40
    assert len(opened) == 2
    cache.close()


def test_partitions_begin_with_the_first_message(bus: Bus) -> None:
    bus.send("q", messages(100))
    bus.use("q", lambda got: got[0].complete(got[1]), count=60)
    parts = source(bus, partitions="2").reader(full()).partitions()
    assert [(part.range.start, part.range.end) for part in parts] == [(61, 81), (81, 101)]


def test_a_range_is_split_without_gaps() -> None:
    assert split(SequenceRange(5, 15), 3) == [
        SequenceRange(5, 8),
        SequenceRange(8, 11),
        SequenceRange(11, 15),
    ]
    assert split(SequenceRange(5, 7), 9) == [SequenceRange(5, 6), SequenceRange(6, 7)]
    assert split(SequenceRange(5, 5), 3) == [SequenceRange(5, 5)]


def test_no_secret_is_in_what_shows(bus: Bus) -> None:
    key = bus.connection_string.partition("SharedAccessKey=")[2][:12]
    made = source(bus)
    reader = made.reader(full())
    shown = f"{made.options} {made.options!r} {reader.__dict__} {made.__dict__}"
    assert key
    assert key not in shown
    assert read_options(made.options, streaming=False).path == "q"


def test_a_connection_may_be_encrypted_on_any_port() -> None:
    with Broker(["q"]) as broker:
        bus = Bus(broker)
        bus.send("q", messages(2))
        plain = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
        options = {"connectionString": plain, "queue": "q", "port": str(broker.port)}
        reader = ServiceBusDataSource(options | {"caFile": str(broker.ca_file)}).reader(full())
        assert names(rows_of(reader, reader.partitions())) == ["m-0", "m-1"]
