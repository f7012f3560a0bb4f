"""`kill -9` of Python processes of a stream that takes and writes: nothing is lost, and what comes
twice is what the page says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.target import parse_target
from tests.fast.world import messages
from tests.spark.world import VARIABLE, Bus, names
from tests.syphon.processes import children, command_of, descendants, kill
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.req("X-07"), pytest.mark.timeout(900)]
COUNT = 400
BATCH = COUNT // 2
TASKS = 2


def start(spark: SparkSession, folder: Path) -> StreamingQuery:
    from pyspark.sql import functions as F

    taken = (
        spark.readStream.format("servicebus")
        .option("connectionString.env", VARIABLE)
        .option("queue", "killed")
        .option("receiveMode", "peekLock")
        .option("maxMessagesPerTrigger", BATCH)
        .option("partitions", TASKS)
        .option("maxWaitSeconds", 0.5)
        .load()
    )
    is_odd = F.regexp_extract("messageId", "m-([0-9]+)", 1).cast("int") % 2 == 1
    return (
        taken.withColumn("destination", F.when(is_odd, "killed.plain").otherwise("killed.once"))
        .writeStream.format("servicebus")
        .option("connectionString.env", VARIABLE)
        .option("checkpointLocation", str(folder))
        .start()
    )


def workers() -> list[int]:
    """Of tasks: their readers and their writers."""
    return [pid for daemon in _running("pyspark.daemon") for pid in children(daemon)]


def takers() -> list[int]:
    """The process beside the driver that receives and settles."""
    return _running("python_streaming_source_runner")


def _running(module: str) -> list[int]:
    return [pid for pid in descendants(os.getpid()) if module in command_of(pid)]


def test_killed_processes_lose_nothing_and_repeat_no_more_than_their_batch(
    spark: SparkSession, spark_bus: Bus, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    spark_bus.send("killed", messages(COUNT))
    faults = FaultClient(parse_target(spark_bus.connection_string))
    # Each task begins with the even ones, and then hangs.
    faults.add({"kind": "hang", "entity": "killed.plain"})
    query = start(spark, tmp_path)
    try:
        # In the middle of two tasks: some of their rows are written, and none is settled.
        wait_until(lambda: spark_bus.peek("killed.once"), "the first rows")
        for pid in workers():
            kill(pid)
        faults.clear_all()
        wait_until(lambda: spark_bus.peek("killed.plain"), "tasks that follow")
        assert query.isActive, "Spark repeats a task"
        [taker] = takers()
        kill(taker)
        with pytest.raises(PySparkException):
            query.awaitTermination(180)
        # It goes on where it was, when the locks of the dead have run out.
        query = start(spark, tmp_path)
        wait_until(lambda: not spark_bus.peek("killed"), "the end")
    finally:
        faults.clear_all()
        query.stop()
    ids = [f"m-{number}" for number in range(COUNT)]
    assert sorted(names(spark_bus.peek("killed.once"))) == sorted(ids[::2])
    plain = names(spark_bus.peek("killed.plain"))
    assert sorted(set(plain)) == sorted(ids[1::2])
    assert len(plain) - COUNT // 2 <= 2 * BATCH // 2, "what two batches had for it"
