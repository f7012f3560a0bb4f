"""A long outage by the clock of the test: what it costs, by the broker's own meter, and who has to
wait for whom."""

import threading
from contextlib import contextmanager

import pytest

from pairbus.broker import Broker
from pairbus.syphon.drain import drain
from pairbus.syphon.job import Job
from pairbus.testing import ManualClock
from tests.syphon.processes import wait_until
from tests.syphon.stage import Stage, backlog_names, numbered

BACKLOGS = backlog_names(4)
EACH = 500
MINUTES = 5
STEP_SECONDS = 10
# A probe is to take a handful of each queue, with what was on its way.
OF_A_PROBE_MAX = 20


class Runner:
    """In this process, by the clock of the test."""

    slots = 2

    def __init__(self, clock):
        self._clock = clock
        self.probes = self.whole_looks = 0

    def run(self, tasks):
        for task in tasks:
            if task.chunk < 10:
                self.probes += len(task.queues)
            else:
                self.whole_looks += len(task.queues)
        return [drain(task, clock=self._clock) for task in tasks]


class Syphon:
    def __init__(self, stage, queues):
        self.clock = ManualClock(runs=True)
        self.runner = Runner(self.clock)
        self.job = Job(stage.options(), self.runner, lambda: queues, clock=self.clock)
        self.thread = threading.Thread(target=self.job.run)

    def wait(self, seconds):
        self.clock.advance(seconds)
        wait_until(lambda: self.backlog.pause(now=self.clock()), "nothing to do for now")

    @property
    def backlog(self):
        return self.job._backlog


@contextmanager
def running(stage, queues):
    syphon = Syphon(stage, queues)
    syphon.thread.start()
    try:
        yield syphon
    finally:
        syphon.job.stop()
        syphon.thread.join(20)


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.LOOK_SECONDS", 0.02)
    with Broker(queues=["orders", "invoices"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


OUTAGES = {
    "an entity that takes nothing": lambda faults: faults.cannot_send(entity="orders"),
    "one that throttles": lambda faults: faults.throttle(entity="orders"),
    "a namespace that nobody reaches": lambda faults: faults.unreachable(),
}


@pytest.mark.req("S-04", "M-01")
@pytest.mark.parametrize("kind", OUTAGES)
def test_what_has_to_wait_is_looked_at_by_a_handful_as_long_as_nothing_comes(stage, kind):
    for queue in BACKLOGS:
        stage.divert(numbered(EACH, queue), queue=queue)
    meter = stage.secondary.meter
    with OUTAGES[kind](stage.primary.faults), running(stage, BACKLOGS) as syphon:
        syphon.wait(0)
        for _ in range(MINUTES * 60 // STEP_SECONDS):
            syphon.wait(STEP_SECONDS)
        runner, spent = syphon.runner, meter.read().total
    with running(stage, BACKLOGS) as syphon:
        backlog = syphon.backlog
        wait_until(lambda: backlog.queues and not backlog.pending, "the end of the backlog")

    # At first, and a minute later, when it is not known yet what had been there; some had no turn.
    assert runner.whole_looks <= len(BACKLOGS) * 3
    assert spent.peek <= len(BACKLOGS) * (MINUTES + 1 + EACH / 250)
    assert runner.probes <= len(BACKLOGS) * MINUTES * 60 / STEP_SECONDS
    assert spent.receive <= runner.whole_looks * EACH + runner.probes * OF_A_PROBE_MAX
    assert len(stage.home()) == 4 * EACH
    assert [stage.left(queue) for queue in BACKLOGS] == [0] * 4


def test_where_more_waits_than_can_be_held_that_is_told_once(stage, monkeypatch, caplog):
    monkeypatch.setattr("pairbus.syphon.drain.HELD_MAX", 100)
    stage.divert(numbered(EACH))
    with (
        stage.primary.faults.throttle(entity="orders"),
        running(stage, BACKLOGS[:1]) as syphon,
    ):
        for _ in range(4):
            syphon.wait(60)

    assert caplog.text.count("so many messages wait that what lies behind them") == 1
    assert syphon.runner.whole_looks >= 2


@pytest.mark.req("S-04")
def test_what_lies_behind_messages_that_wait_goes_home_when_its_own_destination_is_back(stage):
    queues = BACKLOGS[:1]
    stage.divert(numbered(50, "o"), "orders")
    stage.divert(numbered(50, "i"), "invoices")
    faults = stage.primary.faults
    with (
        faults.cannot_send(entity="orders"),
        faults.cannot_send(entity="invoices") as other,
        running(stage, queues) as syphon,
    ):
        for _ in range(4):
            syphon.wait(60)
        other.clear()
        for _ in range(7):
            syphon.wait(STEP_SECONDS)
        home = stage.home("invoices")
        stage.divert(["new"], "invoices")
        for _ in range(7):
            syphon.wait(STEP_SECONDS)
        new = stage.home("invoices")

    assert home == numbered(50, "i")
    assert new == ["new"]
    assert stage.home() == []
