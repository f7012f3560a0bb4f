"""`kill -9` of whoever works, in the middle of some thousands of messages: nothing is lost.

The brokers, the driver and Spark's workers are processes of their own. What a dead one had sent and
not settled comes a second time, a chunk at most for each task that died; where ids are watched, not
even that. Its other messages come back when their locks end, which are short here.
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
def test_python_workers_that_are_killed_are_replaced_and_nothing_is_lost(stage, tmp_path):
    faults = slow_primary(stage)
    with driver(stage, tmp_path) as syphon:
        for number in (200, 500):
            await_arrivals(stage, number)
            kill(wait_until(syphon.workers, "a worker")[0])
        assert any(stage.left(queue) for queue in BACKLOGS), "they died too late to prove anything"
        faults.clear_all()
        await_empty_backlog(stage)
        syphon.end()

    check(stage, tasks_killed=2)


@pytest.mark.req("S-03", "S-06", "X-02")
def test_a_driver_that_is_killed_is_followed_by_one_that_goes_on(stage, tmp_path):
    faults = slow_primary(stage)
    with driver(stage, tmp_path) as syphon:
        await_arrivals(stage, 300)
        for pid in (syphon.process.pid, *descendants(syphon.process.pid)):
            kill(pid)
    assert any(stage.left(queue) for queue in BACKLOGS), "it died too late to prove anything"
    faults.clear_all()
    with driver(stage, tmp_path) as syphon:
        await_empty_backlog(stage)
        syphon.end()

    check(stage, tasks_killed=TASKS)
