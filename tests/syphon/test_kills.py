"""`kill -9` of workers and drivers in the middle of thousands of messages: no message is lost.

The brokers, the driver and Spark's workers are processes of their own. Messages that a killed task
had sent and not settled arrive twice, at most a chunk for each task, and once with duplicate
detection. Its other messages are free when their locks expire, which are short here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syphon.processes import (
    BACKLOGS,
    TASKS,
    await_arrivals,
    await_empty_backlog,
    check,
    descendants,
    driver,
    filled_stage,
    kill,
    slow_primary,
    wait_until,
)
from tests.syphon.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with filled_stage(tmp_path) as made:
        yield made


@pytest.mark.req("S-03", "S-06", "X-02")
def test_killed_python_workers_are_replaced_and_no_message_is_lost(stage, tmp_path):
    faults = slow_primary(stage)
    with driver(stage, tmp_path) as syphon:
        for number in (200, 500):
            await_arrivals(stage, number)
            kill(wait_until(syphon.workers, "a worker")[0])
        assert any(stage.left(queue) for queue in BACKLOGS), "the workers were killed too late"
        faults.clear_all()
        await_empty_backlog(stage)
        syphon.end()

    check(stage, tasks_killed=2)


@pytest.mark.req("S-03", "S-06", "X-02")
def test_a_new_driver_continues_after_a_killed_one_and_no_message_is_lost(stage, tmp_path):
    faults = slow_primary(stage)
    with driver(stage, tmp_path) as syphon:
        await_arrivals(stage, 300)
        for pid in (syphon.process.pid, *descendants(syphon.process.pid)):
            kill(pid)
    assert any(stage.left(queue) for queue in BACKLOGS), "the driver was killed too late"
    faults.clear_all()
    with driver(stage, tmp_path) as syphon:
        await_empty_backlog(stage)
        syphon.end()

    check(stage, tasks_killed=TASKS)
