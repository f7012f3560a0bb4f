"""A long outage by the clock of the test: what it costs by the broker's own meter, and which
messages wait for which."""

import threading
from contextlib import contextmanager

import pytest

from pairbus.broker import Broker
from pairbus.syphon.drain import drain
from pairbus.syphon.job import PROBE_MESSAGES, Job
from pairbus.testing import ManualClock
from tests.syphon.processes import wait_until
from tests.syphon.stage import Stage, backlog_names, numbered

BACKLOGS = backlog_names(4)
EACH = 500
MINUTES = 5
STEP_SECONDS = 10
# A probe takes a handful from each queue, and a few more are on their way.
OF_A_PROBE_MAX = 20


class Runner:
    """In this process, by the clock of the test. Counts the queues of its tasks."""

    slots = 2

    def __init__(self, clock):
        self._clock = clock
        self.probes = self.full_looks = 0

    def run(self, tasks):
        for task in tasks:
            if task.chunk == PROBE_MESSAGES:
                self.probes += len(task.queues)
            else:
                self.full_looks += len(task.queues)
        return [drain(task, clock=self._clock) for task in tasks]


class Syphon:
    def __init__(self, stage, queues):
        self.clock = ManualClock(runs=True)
        self.runner = Runner(self.clock)
        self.job = Job(stage.options(), self.runner, lambda: queues, clock=self.clock)
        self.thread = threading.Thread(target=self.job.run)

    def wait(self, seconds):
        self.clock.advance(seconds)
        wait_until(lambda: self.job.schedule.pause(now=self.clock()), "nothing to do for now")


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
    monkeypatch.setattr("pairbus.syphon.job.CHECK_SECONDS", 0.02)
    with Broker(queues=["orders", "invoices"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


OUTAGES = {
    "an entity that accepts nothing": lambda faults: faults.cannot_send(entity="orders"),
    "one that throttles": lambda faults: faults.throttle(entity="orders"),
    "an unreachable namespace": lambda faults: faults.unreachable(),
}


@pytest.mark.req("S-04", "M-01")
@pytest.mark.parametrize("kind", OUTAGES)
def test_during_an_outage_only_probes_are_received_as_long_as_no_message_arrives(stage, kind):
    for queue in BACKLOGS:
        stage.divert(numbered(EACH, queue), queue=queue)
    meter = stage.secondary.meter
    with OUTAGES[kind](stage.primary.faults), running(stage, BACKLOGS) as syphon:
        syphon.wait(0)
        for _ in range(MINUTES * 60 // STEP_SECONDS):
            syphon.wait(STEP_SECONDS)
        runner, spent = syphon.runner, meter.read().total
    with running(stage, BACKLOGS) as syphon:
        schedule = syphon.job.schedule
        wait_until(lambda: schedule.queues and not schedule.pending, "the end of the backlog")

    # At the start, and a minute later, when it is not known yet what arrived; some had no turn.
    assert runner.full_looks <= len(BACKLOGS) * 3
    assert spent.peek <= len(BACKLOGS) * (MINUTES + 1 + EACH / 250)
    assert runner.probes <= len(BACKLOGS) * MINUTES * 60 / STEP_SECONDS
    assert spent.receive <= runner.full_looks * EACH + runner.probes * OF_A_PROBE_MAX
    assert len(stage.home()) == 4 * EACH
    assert [stage.left(queue) for queue in BACKLOGS] == [0] * 4


def test_a_queue_of_which_too_many_messages_wait_is_warned_of_once(stage, monkeypatch, caplog):
    monkeypatch.setattr("pairbus.syphon.drain.HELD_MAX", 100)
    stage.divert(numbered(EACH))
    with (
        stage.primary.faults.throttle(entity="orders"),
        running(stage, BACKLOGS[:1]) as syphon,
    ):
        for _ in range(4):
            syphon.wait(60)

    assert caplog.text.count("too many messages wait") == 1
    assert syphon.runner.full_looks >= 2


@pytest.mark.req("S-04")
def test_messages_behind_others_that_wait_go_home_when_their_own_destination_is_back(stage):
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
