"""A stop takes at most five seconds, even if a namespace does not answer, and leaves as little as
possible locked."""

import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from pairbus.broker import Broker
from pairbus.syphon.discovery import ListedQueues
from pairbus.syphon.job import Job
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.syphon.runner import InProcessRunner
from tests.syphon.stage import Stage, after_sends, backlog_names, count, numbered

BACKLOGS = backlog_names(10)
# Of five seconds. The rest is for Spark.
STOP_SECONDS_MAX = 20.0
ROUND_SECONDS = 2.0


@pytest.fixture
def stage():
    with Broker(queues=["orders", "invoices"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


class Running:
    """A job in a thread."""

    def __init__(self, stage, discovery=None, **settings):
        self.idle = threading.Event()
        self.job = Job(
            stage.options(round_seconds=ROUND_SECONDS, chunk=10, **settings),
            InProcessRunner(),
            discovery or (lambda: BACKLOGS),
            progress=self._ended,
        )
        self.receipts = []
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        self.receipts = self.job.run()

    def _ended(self, ended):
        if not ended.pending:
            self.idle.set()

    def stop(self):
        """Returns how many seconds that took."""
        began = time.monotonic()
        self.job.stop()
        self.thread.join(60)
        return time.monotonic() - began


@contextmanager
def running(stage, **settings):
    made = Running(stage, **settings)
    made.thread.start()
    try:
        yield made
    finally:
        made.job.stop()
        made.thread.join(60)


@contextmanager
def silent(monkeypatch, stage, which):
    """A namespace stops answering after the syphon's second batch is acknowledged."""
    reached = threading.Event()
    with ExitStack() as stack:

        def act():
            stack.enter_context(getattr(stage, which).faults.hang())
            reached.set()

        after_sends(monkeypatch, 2, act)
        yield reached


@pytest.mark.req("S-02", "S-04")
def test_a_primary_that_stops_answering_does_not_delay_a_stop_and_nothing_stays_locked(
    stage, monkeypatch
):
    ids = numbered(200)
    stage.divert(ids)
    with silent(monkeypatch, stage, "primary") as reached, running(stage) as syphon:
        assert reached.wait(60)
        seconds = syphon.stop()
        free = stage.free()

    assert seconds < STOP_SECONDS_MAX
    home_count = count(syphon.receipts, ReceiptOutcome.BROUGHT_HOME)
    assert 0 < home_count < 20
    assert free == ids[home_count:]
    assert stage.home()[:home_count] == ids[:home_count]


@pytest.mark.req("S-02", "S-03")
def test_a_secondary_that_stops_answering_does_not_delay_a_stop_and_no_message_is_lost(
    stage, monkeypatch
):
    ids = numbered(200)
    stage.divert(ids)
    with silent(monkeypatch, stage, "secondary") as reached, running(stage) as syphon:
        assert reached.wait(60)
        seconds = syphon.stop()

    assert seconds < STOP_SECONDS_MAX
    home = stage.home()
    assert home == ids[: len(home)]
    assert stage.left() >= len(ids) - len(home)


@pytest.mark.req("S-02")
def test_a_secondary_that_stops_answering_between_rounds_does_not_delay_a_stop(stage):
    with running(stage, long_poll_seconds=0.1) as syphon:
        assert syphon.idle.wait(60)
        time.sleep(0.3)  # into the quiet wait
        with stage.secondary.faults.hang():
            time.sleep(0.3)  # until a poll has ended without an answer
            seconds = syphon.stop()

    assert seconds < STOP_SECONDS_MAX


def test_a_listing_of_queues_without_an_answer_does_not_delay_a_stop(stage, monkeypatch):
    class Manager:
        has_answered = threading.Event()
        asked = threading.Event()

        def list_queues(self):
            self.asked.set()
            self.has_answered.wait(60)
            return []

    with running(stage, discovery=ListedQueues(Manager(), "contoso")) as syphon:
        assert Manager.asked.wait(60)
        seconds = syphon.stop()
        Manager.has_answered.set()

    assert seconds < STOP_SECONDS_MAX


@pytest.mark.req("S-02")
def test_a_stop_ends_the_round_early_if_the_tasks_see_the_files_of_this_machine(
    stage, monkeypatch, tmp_path
):
    ids = numbered(5_000)
    stage.divert(ids)
    options = stage.options(chunk=20, round_seconds=600.0)
    job = Job(options, InProcessRunner(tmp_path), lambda: BACKLOGS)
    after_sends(monkeypatch, 4, job.stop)

    receipts = job.run()

    home_count = count(receipts, ReceiptOutcome.BROUGHT_HOME)
    assert 0 < home_count < 5_000
    assert stage.home() == ids[:home_count]
    assert stage.free() == ids[home_count:]
    assert list(tmp_path.iterdir()) == []


class Stuck:
    """Spark without a free core."""

    slots = 2
    folder = None

    def __init__(self):
        self.running, self.cancelled = threading.Event(), threading.Event()

    def run(self, tasks):
        self.running.set()
        assert self.cancelled.wait(60)
        raise RuntimeError("job 1 was cancelled")


def test_a_stop_cancels_a_round_that_does_not_run(stage, caplog):
    stage.divert(numbered(1))
    stuck = Stuck()
    cancel = stuck.cancelled.set
    job = Job(stage.options(), stuck, lambda: BACKLOGS, cancel=cancel, cancel_seconds=0.05)
    thread = threading.Thread(target=job.run)
    thread.start()
    assert stuck.running.wait(60)
    job.stop()
    thread.join(60)

    assert not thread.is_alive()
    assert "the last round was cancelled" in caplog.text
    assert stage.free() == numbered(1)


@pytest.mark.parametrize("which", ["primary", "secondary"])
def test_a_namespace_that_never_answers_does_not_delay_a_stop(stage, which):
    stage.divert(numbered(50))
    with getattr(stage, which).faults.hang(), running(stage) as job:
        time.sleep(0.5)  # the round has begun, and waits
        assert job.stop() < STOP_SECONDS_MAX

    assert len(stage.free()) == 50
