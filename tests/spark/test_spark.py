"""The data source in Spark itself: one local session, and a broker beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from pairbus.amqp.codec.types import Symbol, Timestamp, UInt, ULong
from pairbus.broker import NamespaceOptions, QueueDescription
from pairbus.fast.columns import COLUMNS
from tests.fast.world import EVERY_VALUE, described, message, messages
from tests.spark.world import KEY, VARIABLE, Bus, names
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.req("X-07")]
WRITABLE = [column.name for column in COLUMNS if column.writable]


def stream(spark: SparkSession, queue: str, **options: Any) -> DataFrame:
    return (
        spark.readStream.format("servicebus")
        .option("connectionString.env", VARIABLE)
        .option("queue", queue)
        .options(**options)
        .load()
    )


def run(frame: DataFrame, checkpoint: Path, form: str, **options: Any) -> list[int]:
    """Run until all available messages are read; returns the sizes of the batches."""
    query = (
        frame.writeStream.format(form)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def to_queue(frame: DataFrame, checkpoint: Path, queue: str) -> list[int]:
    return run(
        frame, checkpoint, "servicebus", **{"connectionString.env": VARIABLE, "queue": queue}
    )


def test_every_column_and_every_type_goes_through(spark: SparkSession, spark_bus: Bus) -> None:
    values = {name: value for name, (value, _, _) in EVERY_VALUE.items()}
    sent = [
        message(
            UUID(int=5),
            header=[None, None, UInt(3_600_000)],
            annotations={
                "x-opt-partition-key": "key",
                "x-opt-scheduled-enqueue-time": Timestamp(1_600_000_000_000),
                "x-own": ULong(7),
            },
            properties={
                1: b"user",
                2: "to",
                3: "subject",
                4: "reply",
                5: b"\x01",
                6: Symbol("text/plain"),
                7: Symbol("gzip"),
                10: "key",
                12: "other",
            },
            application=values,
        ),
        message("sections", sections=described(0x75, b"a") + described(0x75, b"b")),
        message("sequence", sections=described(0x76, [1, None])),
        message("value", sections=described(0x77, {"a": [1]})),
        message("plain"),
    ]
    spark_bus.send("everything", sent)
    frame = (
        spark.read.format("servicebus")
        .option("connectionString.env", VARIABLE)
        .option("queue", "everything")
        .option("partitions", 2)
        .load()
    )
    rows = frame.orderBy("sequenceNumber").collect()
    first = rows[0].asDict(recursive=True)
    assert first["applicationProperties"] == {
        name: {"type": kind, "value": text} for name, (_, kind, text) in EVERY_VALUE.items()
    }
    assert first["scheduledEnqueueTime"].timestamp() == 1_600_000_000
    assert [row.bodyType for row in rows] == ["data", "dataSections", "sequence", "value", "data"]
    assert rows[4].body == b"body"

    (
        frame.write.format("servicebus")
        .option("connectionString.env", VARIABLE)
        .option("queue", "everything.copy")
        .mode("append")
        .save()
    )

    def writable(queue: str) -> list[dict[str, Any]]:
        found = [{name: row[name] for name in WRITABLE} for row in spark_bus.peek(queue)]
        return sorted(found, key=lambda row: row["messageId"])

    assert writable("everything.copy") == writable("everything")
    assert len(writable("everything")) == 5


def test_a_host_name_is_enough_where_the_workers_have_an_identity(
    spark: SparkSession, make_bus: Callable[..., Bus], tmp_path: Path
) -> None:
    queues = [QueueDescription(name=name) for name in ("from", "to", "to.streamed")]
    namespace = NamespaceOptions(name="local", port=0, queues=queues, accepts_bearer=True)
    bus = make_bus(namespaces=[namespace])
    where = {
        "namespace": f"localhost:{bus.broker.port}",
        "credential": "pairbus.testing:LocalCredential",
        "caFile": str(bus.broker.ca_file),
    }
    bus.send("from", messages(5))

    frame = spark.read.format("servicebus").options(**where, queue="from", partitions="2").load()
    frame.write.format("servicebus").options(**where, queue="to").mode("append").save()
    locked = spark.readStream.format("servicebus").options(
        **where, queue="from", receiveMode="peekLock"
    )
    run(locked.load(), tmp_path, "servicebus", **where, queue="to.streamed")

    for queue in ("to", "to.streamed"):
        assert sorted(names(bus.peek(queue))) == [f"m-{number}" for number in range(5)]
    assert bus.peek("from") == []


def test_offsets_survive_a_restart_and_batches_keep_their_limit(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path
) -> None:
    spark_bus.send("paged", messages(5))
    frame = stream(spark, "paged", maxMessagesPerTrigger=2).select("messageId", "sequenceNumber")
    where = {"path": str(tmp_path / "out")}
    assert run(frame, tmp_path / "checkpoint", "parquet", **where) == [2, 2, 1]
    spark_bus.send("paged", messages(3, first=5))
    assert run(frame, tmp_path / "checkpoint", "parquet", **where) == [2, 1]
    rows = spark.read.parquet(where["path"]).collect()
    assert sorted(row.sequenceNumber for row in rows) == list(range(1, 9))
    assert len(spark_bus.peek("paged")) == 8


def test_a_batch_that_is_repeated_writes_the_same_ids(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path
) -> None:
    spark_bus.send("plain", messages(6, body=b"all the same"))
    frame = stream(spark, "plain", partitions=2).select("body")
    assert to_queue(frame, tmp_path, "once") == [6]
    assert len(set(names(spark_bus.peek("once")))) == 6
    # As if the driver had died between the sink and the log of what is done.
    for path in (tmp_path / "commits").glob("*0*"):
        path.unlink()
    assert to_queue(frame, tmp_path, "once") == [6]
    assert len(spark_bus.peek("once")) == 6


def test_what_is_locked_is_completed_after_the_last_batch_too(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    spark_bus.send("locked", messages(5))
    frame = stream(
        spark, "locked", receiveMode="peekLock", maxMessagesPerTrigger=3, maxWaitSeconds=0.5
    )
    target = F.when(F.col("messageId") < "m-3", "chosen.a").otherwise("chosen.b")
    assert to_queue(frame.withColumn("destination", target), tmp_path, "never") == [3, 2]
    assert spark_bus.peek("locked") == []
    assert names(spark_bus.peek("chosen.a")) == ["m-0", "m-1", "m-2"]
    assert names(spark_bus.peek("chosen.b")) == ["m-3", "m-4"]


def test_a_batch_that_fails_settles_nothing_and_its_messages_come_again(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    spark_bus.send("failing", messages(4))
    frame = stream(spark, "failing", receiveMode="peekLock", maxWaitSeconds=0.5)

    def fail(batch: DataFrame, number: int) -> None:
        assert batch.count() == 4
        raise ValueError("the sink is full")

    writer = frame.writeStream.option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(fail).start()
    with pytest.raises(PySparkException, match="the sink is full"):
        query.awaitTermination()
    assert len(spark_bus.peek("failing")) == 4

    # Nobody renews the locks any more: they run out.
    seen: list[str] = []

    def take(batch: DataFrame, number: int) -> None:
        seen.extend(names(batch.select("messageId").collect()))

    query = writer.foreachBatch(take).start()
    # Still running, and all is settled already.
    wait_until(lambda: not spark_bus.peek("failing"), "all are completed")
    query.stop()
    assert sorted(seen) == ["m-0", "m-1", "m-2", "m-3"]


def test_mistakes_have_our_error_texts_and_no_secret_shows_anywhere(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    assert KEY in spark_bus.connection_string
    plain = spark.read.format("servicebus").option("connectionString", spark_bus.connection_string)
    shown: list[str] = []

    def refused(frame: DataFrame, said: str) -> None:
        with pytest.raises(PySparkException) as caught:
            frame.collect()
        assert said in str(caught.value)
        shown.append(str(caught.value))

    refused(plain.option("queu", "secret").load(), "option queu is unknown; did you mean queue")
    plain = spark.read.format("servicebus").option("connectionString", spark_bus.connection_string)
    frame = plain.option("queue", "secret").load()
    spark_bus.send("secret", messages(1))
    assert frame.count() == 1
    shown.append(frame._jdf.queryExecution().toString())

    writer = frame.withColumn("timeToLive", F.lit(-1)).write.format("servicebus")
    with pytest.raises(PySparkException) as caught:
        writer.options(**spark_bus.options).option("queue", "secret").mode("append").save()
    assert "column timeToLive: -1 is not a time to live" in str(caught.value)
    shown.append(str(caught.value))

    streaming = spark.readStream.format("servicebus").options(**spark_bus.options)
    streaming = streaming.option("queue", "secret").load()
    query = (
        streaming.writeStream.format("servicebus")
        .options(**spark_bus.options)
        .option("queue", "secret.missing")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination()
    assert "'secret.missing' (option queue or topic" in str(caught.value)
    shown += [str(caught.value), str(query.lastProgress), str(query.status)]
    query.explain()

    for folder in (Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:")), tmp_path):
        for path in folder.rglob("*"):
            if path.is_file():
                shown.append(path.read_text(errors="replace"))
    assert sum(map(len, shown)) > 10_000
    assert not [text[:200] for text in shown if KEY in text]
