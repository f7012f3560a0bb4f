"""What a long outage costs, by the broker's own meter: what waits is not looked at again and
again."""

import threading

import pytest

from pairbus.broker import Broker
from pairbus.syphon.discovery import Named
from pairbus.syphon.drain import drain
from pairbus.syphon.job import Job
from pairbus.testing import ManualClock
from tests.syphon.processes import wait_until
from tests.syphon.stage import Stage, backlog_names, numbered

BACKLOGS = backlog_names(4)
EACH = 500
LOOKS = 6
# A look is to take a handful of each queue, with what was on its way.
OF_A_LOOK_MAX = 20


class Runner:
    """In this process, by the clock of the test."""

    slots = 2

    def __init__(self, clock):
        self._clock = clock

    def run(self, tasks):
        return [drain(task, clock=self._clock) for task in tasks]


OUTAGES = {
    "an entity that takes nothing": lambda faults: faults.cannot_send(entity="orders"),
    "one that throttles": lambda faults: faults.throttle(entity="orders"),
    "a namespace that nobody reaches": lambda faults: faults.unreachable(),
}


@pytest.mark.req("S-04", "M-01")
@pytest.mark.parametrize("kind", OUTAGES)
def test_a_look_at_what_has_to_wait_costs_a_handful_of_receives(monkeypatch, kind):
    monkeypatch.setattr("pairbus.syphon.job.LOOK_SECONDS", 0.02)
    clock, rounds = ManualClock(runs=True), []
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        stage = Stage(primary, secondary, BACKLOGS)
        for queue in BACKLOGS:
            stage.divert(numbered(EACH, queue), queue=queue)
        job = Job(stage.options(), Runner(clock), Named(BACKLOGS), progress=rounds.append)
        job._clock = clock
        thread = threading.Thread(target=job.run)
        with OUTAGES[kind](primary.faults):
            thread.start()
            wait_until(lambda: job._backlog.pause(now=clock()), "the first look at all of them")
            first = secondary.meter.read().total.receive
            for _ in range(LOOKS):
                so_far = len(rounds)
                clock.advance(60)
                wait_until(
                    lambda so_far=so_far: len(rounds) > so_far and job._backlog.pause(now=clock()),
                    "another look",
                )
            looked = secondary.meter.read().total.receive - first
        clock.advance(60)
        wait_until(lambda: not job._backlog.pending, "the end of the backlog")
        job.stop()
        thread.join(20)

        assert first <= 2 * 4 * EACH, "some were given back unread at first"
        assert looked <= LOOKS * len(BACKLOGS) * OF_A_LOOK_MAX
        assert len(stage.home()) == 4 * EACH
        assert [stage.left(queue) for queue in BACKLOGS] == [0] * 4
