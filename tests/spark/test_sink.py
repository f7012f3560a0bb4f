"""Writing: what a task does with its rows. Plain objects, real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pairbus.broker import QueueDescription
from pairbus.errors import OptionsError
from pairbus.fast.compose import RowError
from pairbus.fast.connection_cache import ConnectionCache
from pairbus.fast.errors import SendIncomplete
from pairbus.spark import ServiceBusDataSource, sink
from pairbus.spark.options import WriteOptions, write_options
from pairbus.spark.schema import PROPERTIES, full
from pairbus.spark.sink import (
    BatchSink,
    StreamSink,
    WriteFailed,
    _RetryingSender,
    stream_run,
    stream_seed,
    write,
)
from tests.spark.world import Bus, names

Buses = Callable[..., Bus]
NO_CACHE = ConnectionCache(clients_max=0)


def options_for(bus: Bus, **options: str) -> WriteOptions:
    return write_options(bus.options | options, has_destination=True)


def batch(*rows: dict[str, Any]) -> Any:
    return pa.RecordBatch.from_pylist(list(rows))


def write_rows(bus: Bus, *rows: dict[str, Any], seed: str = "s", **options: str) -> sink.Sent:
    made = options_for(bus, **options)
    return write(iter([batch(*rows)]), made, seed, run=seed, cache=NO_CACHE, sleep=pytest.fail)


def test_rows_go_to_their_destination_or_else_to_that_of_the_option(make_bus: Buses) -> None:
    bus = make_bus("a", "b", topics=("t", "t/Subscriptions/s"))
    rows = [
        {"messageId": "1", "destination": "a"},
        {"messageId": "2", "destination": "t"},
        {"messageId": "3", "destination": None},
        {"messageId": "4", "destination": "a"},
    ]
    write_rows(bus, *rows, queue="b")
    assert names(bus.peek("a")) == ["1", "4"]
    assert names(bus.peek("b")) == ["3"]
    assert names(bus.peek("t/Subscriptions/s")) == ["2"]


def test_a_row_must_go_somewhere(make_bus: Buses) -> None:
    rows = [{"destination": "q"}, {"destination": None}]
    with pytest.raises(RowError, match=r"column destination: it is null.*\(row 1 of the task\)"):
        write_rows(make_bus("q"), *rows)


def test_a_bad_row_is_named_with_its_column(make_bus: Buses) -> None:
    rows = [{"timeToLive": 5}, {"timeToLive": -5}]
    with pytest.raises(RowError, match=r"column timeToLive: -5 is .*\(row 1 of the task\)"):
        write_rows(make_bus("q"), *rows, queue="q")


def test_rows_of_many_batches_keep_their_order(bus: Bus) -> None:
    batches = [
        batch(*({"messageId": str(number)} for number in range(first, first + 100)))
        for first in range(0, 500, 100)
    ]
    options = options_for(bus, queue="q")
    assert write(iter(batches), options, "s", run="r", cache=NO_CACHE).count == 500
    assert names(bus.peek("q")) == [str(number) for number in range(500)]


def test_nothing_is_connected_for_nothing() -> None:
    address = {"connectionString.env": "NOT_SET_ANYWHERE", "queue": "q"}
    options = write_options(address, has_destination=False)
    assert write(iter([]), options, "s", run="r", cache=NO_CACHE).count == 0


def test_the_tasks_of_one_run_share_a_connection_unless_one_failed(make_bus: Buses) -> None:
    bus, cache = make_bus("q"), ConnectionCache()
    options = options_for(bus, queue="q", retrySeconds="0.01")

    def task(number: int, **row: Any) -> None:
        rows = iter([batch({"messageId": str(number)} | row)])
        write(rows, options, f"s/{number}", run="r", cache=cache)

    for number in range(3):
        task(number)
        assert len(cache) == 1
    with pytest.raises(RowError):
        task(3, timeToLive=-5)
    assert len(cache) == 0
    assert names(bus.peek("q")) == ["0", "1", "2"]


def test_a_task_that_is_repeated_writes_the_same_ids(make_bus: Buses) -> None:
    bus = make_bus(QueueDescription(name="q", requires_duplicate_detection=True))
    rows = [{"body": "same"}, {"body": "same"}, {"body": "other"}]
    write_rows(bus, *rows, queue="q")
    write_rows(bus, *rows, queue="q")
    assert [row["body"] for row in bus.peek("q")] == [b"same", b"same", b"other"]
    assert len(set(names(bus.peek("q")))) == 3
    # The same rows of another batch of the stream, or of another task, are others.
    write_rows(bus, *rows, queue="q", seed="another")
    assert len(bus.peek("q")) == 6


class Context:
    """The part of a Spark task that is used."""

    def __init__(
        self, query: str | None, batch: str | None, partition: int, group: str | None = None
    ) -> None:
        self._properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": batch,
            "spark.jobGroup.id": group,
        }
        self._partition = partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties[name]

    def partitionId(self) -> int:
        return self._partition


def test_ids_belong_to_a_query_a_batch_and_a_task() -> None:
    seeds = {
        stream_seed(Context(query, batch, partition))
        for query in ("q1", "q2")
        for batch in ("0", "1")
        for partition in (0, 1)
    }
    assert len(seeds) == 8
    assert stream_seed(Context("q", "0", 1)) == stream_seed(Context("q", "0", 1))
    # Where it cannot be known, no two are the same: better twice than not at all.
    assert stream_seed(None) != stream_seed(None)
    assert stream_seed(Context("q", None, 0)) != stream_seed(Context("q", None, 0))


def test_the_batches_of_a_query_share_connections_until_it_is_restarted() -> None:
    runs = [stream_run(Context("q", batch, 0, "run")) for batch in ("0", "1")]
    assert runs[0] == runs[1]
    assert stream_run(Context("q", "0", 0, "another")) not in runs
    assert stream_run(Context("other", "0", 0, "run")) not in runs
    assert stream_run(None) != stream_run(None)
    assert stream_run(Context("q", "0", 0)) != stream_run(Context("q", "0", 0))


def test_a_queue_that_is_not_there_is_named_and_not_tried_again(make_bus: Buses) -> None:
    with pytest.raises(
        WriteFailed, match=r"'nowhere' \(option queue or topic, or column dest"
    ) as e:
        write_rows(make_bus("q"), {"body": "a"}, queue="nowhere")
    assert "accepted 0 of 1 rows" in str(e.value)


def test_a_message_that_is_too_large_is_named(make_bus: Buses) -> None:
    with pytest.raises(WriteFailed, match=r"has \d+ bytes"):
        write_rows(make_bus("q"), {"body": "x" * 2_000_000}, queue="q")


class Failing:
    """A sender that raises these errors, and then accepts everything."""

    path = "q"

    def __init__(self, *failures: Any) -> None:
        self.failures = list(failures)
        self.sent: list[list[bytes]] = []

    def send(self, messages: list[bytes]) -> None:
        self.sent.append(list(messages))
        if self.failures:
            raise self.failures.pop(0)


def failure(
    error: Any, *, accepted: int = 0, doubtful: int = 0, refused: int = 0
) -> SendIncomplete:
    """The first messages were accepted, the next ones are doubtful, and the last ones refused."""
    sent = accepted + doubtful
    ranges = range(accepted), range(accepted, sent), range(sent, sent + refused)
    return SendIncomplete(
        "q", error=error, accepted=ranges[:1], doubtful=ranges[1:2], refused=ranges[2:]
    )


def send_through(sender: Failing, count: int, retries: int) -> list[float]:
    slept: list[float] = []
    options = WriteOptions(
        address=None, path="q", retries=retries, retry_seconds=1.0, timeout_seconds=60.0
    )  # type: ignore[arg-type]
    _RetryingSender(sender, options, slept.append).send([b"%d" % number for number in range(count)])  # type: ignore[arg-type]
    return slept


GONE = ServiceBusConnectionError(message="gone")
BUSY = ServiceBusServerBusyError(message="busy")


def test_refused_and_doubtful_messages_are_sent_again() -> None:
    sender = Failing(failure(GONE, accepted=2, doubtful=2, refused=2))
    assert send_through(sender, 6, retries=1) == [1.0]
    assert sender.sent[1] == [b"2", b"3", b"4", b"5"]


def test_a_busy_service_is_left_alone_for_ten_seconds() -> None:
    assert send_through(Failing(failure(BUSY, refused=1)), 1, retries=1) == [10.0]


def test_trying_again_has_an_end() -> None:
    with pytest.raises(WriteFailed, match="accepted 0 of 1 rows"):
        send_through(Failing(*[failure(GONE, doubtful=1)] * 3), 1, retries=2)


# -- what may be written --------------------------------------------------------------------------


def source(**options: str) -> ServiceBusDataSource:
    text = "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    return ServiceBusDataSource({"connectionString": text, "queue": "q"} | options)


def test_what_was_read_can_be_written() -> None:
    assert isinstance(source().writer(full(), False), BatchSink)
    assert isinstance(source().streamWriter(full(), False), StreamSink)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("colour", StringType(), "column colour is not part of a message; the columns are destin"),
        ("body", IntegerType(), "column body is a int; expected binary or string"),
        ("messageId", IntegerType(), "column messageId is a int; expected string"),
        ("timeToLive", DoubleType(), "column timeToLive is a double; expected bigint or int or"),
        ("destination", IntegerType(), "column destination is a int; expected string"),
        (
            "applicationProperties",
            MapType(StringType(), IntegerType()),
            "column applicationProperties is a map<string,int>; expected map<string,struct<type:",
        ),
    ],
)
def test_a_column_that_no_message_has_is_refused_at_once(name: str, kind: Any, said: str) -> None:
    with pytest.raises(OptionsError) as caught:
        source().writer(StructType([StructField(name, kind)]), False)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("body", StringType()),
        ("timeToLive", IntegerType()),
        ("applicationProperties", MapType(StringType(), StringType())),
        ("applicationProperties", PROPERTIES),
        ("sequenceNumber", StringType()),
    ],
)
def test_other_types_with_the_same_meaning_are_accepted(name: str, kind: Any) -> None:
    source().writer(StructType([StructField(name, kind)]), False)


def test_a_queue_is_not_overwritten() -> None:
    with pytest.raises(OptionsError, match="cannot be overwritten"):
        source().writer(full(), True)
    with pytest.raises(OptionsError, match="cannot be overwritten"):
        source().streamWriter(full(), True)


def test_a_life_is_kept_as_it_was_given(make_bus: Buses) -> None:
    bus = make_bus(QueueDescription(name="q", default_message_time_to_live=timedelta(days=1)))
    write_rows(bus, {"timeToLive": 60_000}, queue="q")
    assert bus.peek("q")[0]["timeToLive"] == 60_000
