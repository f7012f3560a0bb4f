"""A long outage by the clock of the test: what it costs by the broker's own meter, and which
messages wait for which."""

import threading
from contextlib import contextmanager

import pytest

from pairbus.broker import Broker
from pairbus.syphon.drain import drain
from pairbus.syphon.job import Job
from pairbus.testing import ManualClock
from tests.syphon.stage import Stage, backlog_names, numbered
from tests.waiting import wait_until

pytestmark = pytest.mark.alone  # by a clock that runs on while a busy machine works

BACKLOGS = backlog_names(4)
EACH = 500
MINUTES = 5
STEP_SECONDS = 2
NOTICED_SECONDS = 6
"""The longest pause between two attempts, and a step of the clock."""


class Runner:
    """In this process, by the clock of the test. Counts its tasks."""

    slots = 2
    folder = None

    def __init__(self, clock):
        self._clock = clock
        self.probes = self.looks = 0

    def run(self, tasks):
        for task in tasks:
            if task.at_most is not None:
                self.probes += 1
            else:
                self.looks += len(task.queues)
        return [drain(task, clock=self._clock) for task in tasks]


class Syphon:
    def __init__(self, stage, queues):
        self.clock = ManualClock(runs=True)
        self.runner = Runner(self.clock)
        self.job = Job(stage.options(), self.runner, lambda: queues, clock=self.clock)
        self.thread = threading.Thread(target=self.job.run)

    def wait(self, seconds):
        self.clock.advance(seconds)
        wait_until(self._is_idle, "nothing to do for now")

    def _is_idle(self):
        schedule = self.job.schedule
        is_drained = schedule.queues and not schedule.pending
        return schedule.pause(now=self.clock()) or is_drained


@contextmanager
def running(stage, queues):
    syphon = Syphon(stage, queues)
    syphon.thread.start()
    try:
        yield syphon
    finally:
        syphon.job.stop()
        syphon.thread.join(60)


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr("pairbus.syphon.job.CHECK_SECONDS", 0.02)
    with Broker(queues=["orders", "invoices"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


OUTAGES = {
    "an entity that accepts nothing": lambda faults: faults.cannot_send(entity="orders"),
    "one that throttles": lambda faults: faults.throttle(entity="orders"),
    "one that cannot be reached": lambda faults: faults.unreachable(entity="orders"),
    "an unreachable namespace": lambda faults: faults.unreachable(),
}


@pytest.mark.req("S-04", "M-01", "M-02")
@pytest.mark.parametrize("kind", OUTAGES)
def test_a_message_that_waits_through_an_outage_is_received_once(stage, kind):
    """Messages keep arriving, in all queues, and the outage lasts for minutes."""
    meters = stage.primary.meter, stage.secondary.meter
    sent = 0
    with running(stage, BACKLOGS) as syphon:
        with OUTAGES[kind](stage.primary.faults):
            for minute in range(MINUTES):
                for queue in BACKLOGS:
                    stage.divert(numbered(EACH // MINUTES, f"{queue}{minute}"), queue=queue)
                    sent += EACH // MINUTES
                for _ in range(60 // STEP_SECONDS):
                    syphon.wait(STEP_SECONDS)
        steps = []
        wait_until(
            lambda: stage.primary.meter.read().total.send or steps.append(syphon.wait(0.5)),
            "a message",
        )
        wait_until(
            lambda: stage.primary.meter.read().total.send >= sent or syphon.wait(0.5),
            "the end of the backlog",
        )
    home = stage.home()
    primary, secondary = (meter.read().total for meter in meters)

    assert len(home) == sent
    assert len(steps) * 0.5 <= 5 * NOTICED_SECONDS  # a round takes several steps on a busy machine
    # Once more what was there when the outage was noticed, and a probe every five seconds.
    # A busy machine needs more rounds; all again with each probe would be 60 times as much.
    assert secondary.receive <= 3 * sent
    assert secondary.peek <= sent / 20  # the clock runs on while a busy machine works
    assert primary.send == sent


def test_a_queue_of_which_too_many_messages_wait_is_warned_of_once(stage, monkeypatch, caplog):
    monkeypatch.setattr("pairbus.syphon.drain.HELD_MAX", 100)
    stage.divert(numbered(3 * EACH))  # more than the two batches that a task has at a time
    stage.divert(["behind"], "invoices")
    with (
        stage.primary.faults.throttle(entity="orders"),
        running(stage, BACKLOGS[:1]) as syphon,
    ):
        for _ in range(4):
            syphon.wait(60)
        wait_until(lambda: "too many messages wait" in caplog.text, "the warning")
        assert stage.home("invoices") == []

    assert caplog.text.count("too many messages wait") == 1
    assert 2 <= syphon.runner.looks < 10  # as above


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
        home = awaited(stage, syphon, 50)
        stage.divert(["new"], "invoices")
        new = awaited(stage, syphon, 1)

    assert home == numbered(50, "i")
    assert new == ["new"]
    assert stage.home() == []


def awaited(stage, syphon, number):
    """The invoices that come home in a hundred seconds, or earlier if they are so many."""
    home = []
    for _ in range(10):
        syphon.wait(10)
        home += stage.home("invoices")
        if len(home) >= number:
            break
    return home
