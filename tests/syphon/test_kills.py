"""`kill -9` of workers and drivers in the middle of thousands of messages: no message is lost.

The brokers, the driver and Spark's workers are processes of their own. Messages that a killed task
had sent and not settled arrive twice, at most a chunk for each task, and once with duplicate
detection. Its other messages are free when their locks expire, which are short here. The ledger has
a line for each message, also for those that a killed task has settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.parquet import ParquetDataset

from pairbus.spark.session import syphon_session
from pairbus.syphon.ledger import FOLDER
from tests.syphon.processes import (
    BACKLOGS,
    EACH,
    LOCK_SECONDS,
    PATHS,
    TASKS,
    await_arrivals,
    await_empty_backlog,
    check,
    command_of,
    descendants,
    driver,
    filled_stage,
    kill,
    slow,
    slow_primary,
    two_drivers,
)
from tests.syphon.stage import Stage, metric, numbered
from tests.waiting import wait_until

SENT = [each for path in PATHS for each in numbered(EACH, path)]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with filled_stage(tmp_path, lock_seconds=getattr(request, "param", LOCK_SECONDS)) as made:
        yield made


@pytest.mark.req("S-03", "S-06", "X-02")
def test_killed_python_workers_are_replaced_and_no_message_is_lost(stage, tmp_path):
    faults = [slow(namespace) for namespace in (stage.primary, stage.secondary)]
    with driver(stage, tmp_path) as syphon:
        for number in (200, 500):
            await_arrivals(stage, number)
            kill(wait_until(syphon.workers, "a worker")[0])
        assert any(stage.left(queue) for queue in BACKLOGS), "the workers were killed too late"
        for each in faults:
            each.clear_all()
        await_empty_backlog(stage)
        syphon.end()

    check(stage, tmp_path / "ledger", tasks_killed=2)
    messages = ParquetDataset(tmp_path / "ledger" / FOLDER).read(["message_id"])
    assert set(messages["message_id"].to_pylist()) == set(SENT)


@pytest.mark.req("S-03")
def test_connections_outlive_the_rounds_and_end_with_the_driver(stage, tmp_path):
    both = stage.primary, stage.secondary
    for each in both:
        slow(each, latency_seconds=0.3)  # one round is not enough
    before = [metric(each, "connections_opened_total") for each in both]
    with driver(stage, tmp_path) as syphon:
        wait_until(lambda: syphon.rounds() >= 2, "two rounds")
        opened = [metric(each, "connections_opened_total") for each in both]
        assert opened[0] - before[0] <= TASKS
        assert opened[1] - before[1] <= TASKS + 1, "the driver polls on a connection of its own"
        below = descendants(syphon.process.pid)
        kill(syphon.process.pid)
        for each in both:
            wait_until(lambda each=each: not metric(each, "connections"), "no connection")
        wait_until(lambda: not [pid for pid in below if command_of(pid)], "no process")


# Spark leaves the pipe to its Java process open.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
# The ledger does not know which locks a syphon has lost before it was killed. So they are long
# enough for a busy machine.
@pytest.mark.parametrize("stage", [30], indirect=True, ids=["locks of 30 s"])
@pytest.mark.req("S-03", "S-06", "X-02", "X-10")
def test_of_two_syphons_at_once_one_is_killed_and_the_other_loses_no_message(stage, tmp_path):
    faults = slow_primary(stage, latency_seconds=0.5)
    with two_drivers(stage, tmp_path) as (one, other):
        wait_until(lambda: one.brought_home() and other.brought_home(), "both at work")
        for pid in (one.process.pid, *descendants(one.process.pid)):
            kill(pid)
        assert any(stage.left(queue) for queue in BACKLOGS), "it was killed too late"
        before = other.brought_home()
        faults.clear_all()
        await_empty_backlog(stage)
        wait_until(lambda: other.brought_home() > before, "the other has brought the rest home")
        other.end()

    check(stage, tmp_path / "ledger", tasks_killed=TASKS)
    assert _unaccounted(tmp_path / "ledger", SENT) == (len(SENT), [])


def _unaccounted(ledger: Path, sent: list[str]) -> tuple[int, list[str]]:
    """How many the ledger has of those that an application has sent, and which it has not."""
    with syphon_session("local[1]", "a join") as spark:
        spark.sparkContext.setLogLevel("ERROR")
        sent_rows = spark.createDataFrame([(each,) for each in sent], "id string")
        sent_rows.createOrReplaceTempView("sent")
        spark.read.parquet(str(ledger / FOLDER)).createOrReplaceTempView("messages")
        rounds = spark.read.parquet(str(ledger))  # the lines are not in its way
        assert rounds.where("outcome = 'brought_home'").count()
        found = spark.sql(
            """SELECT sent.id, count(messages.message_id) AS times,
                      min(messages.sequence_number) AS number, min(messages.size) AS size
               FROM sent LEFT JOIN messages ON messages.message_id = sent.id
                    AND messages.outcome = 'brought_home'
                    AND sent.id LIKE concat(messages.path, '%')
               GROUP BY sent.id"""
        ).collect()
    complete = [row for row in found if row.times and row.number and row.size]
    return len(complete), sorted(row.id for row in found if not row.times)
