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
    two_drivers,
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
        assert other.brought_home() > before
        other.end()

    check(stage, tasks_killed=TASKS)
