"""The quiet wait: what it costs by the broker's own meter, and what ends it."""

import threading
import time

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import Broker
from pairbus.syphon.job import Job
from pairbus.syphon.long_poll import LONG_POLL_SECONDS, LongPolls
from pairbus.syphon.runner import InProcessRunner
from pairbus.testing import ManualClock
from tests.syphon.stage import Stage, backlog_names, numbered
from tests.waiting import wait_until

BACKLOGS = backlog_names(10)
HOUR = 3600


@pytest.fixture
def stage():
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def polls(stage, clock):
    made = LongPolls(
        stage.address(stage.secondary).client,
        poll_seconds=LONG_POLL_SECONDS,
        stopping=threading.Event(),
        clock=clock,
    )
    yield made
    made.close()


class CountingClock(ManualClock):
    """Counts how often it is read: the job reads it each time that it checks its polls."""

    def __init__(self):
        super().__init__()
        self.reads = 0

    def __call__(self):
        self.reads += 1
        return super().__call__()

    def wait_for_reads(self, count=100):
        enough = self.reads + count
        wait_until(lambda: self.reads > enough, "some checks of the polls")


@pytest.mark.req("S-02")
def test_an_idle_hour_costs_four_receives_for_each_backlog_queue_and_nothing_else(
    stage, monkeypatch
):
    monkeypatch.setattr("pairbus.syphon.job.CHECK_SECONDS", 0.01)
    clock = CountingClock()
    idle = threading.Event()
    job = Job(
        stage.options(),
        InProcessRunner(),
        lambda: BACKLOGS,
        progress=lambda ended: idle.set(),
        clock=clock,
    )
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        assert idle.wait(60), "the first round finds nothing"
        clock.wait_for_reads()
        before = stage.secondary.meter.read()
        polls = int(HOUR / LONG_POLL_SECONDS)
        for number in range(1, polls + 1):
            clock.advance(LONG_POLL_SECONDS - 1)
            clock.wait_for_reads()
            assert spent(stage, before) == 10 * (number - 1), "a poll lasts a quarter of an hour"
            clock.advance(1)
            wait_until(lambda number=number: spent(stage, before) == 10 * number, "its end")
            clock.wait_for_reads()  # so that the next polls have begun before the clock moves on
        reading = stage.secondary.meter.read() - before
    finally:
        job.stop()
        thread.join(60)

    assert reading.total.empty_receive == reading.total.total == 40
    assert {reading.of(queue).empty_receive for queue in BACKLOGS} == {4}
    [counted] = [each for each in job.usage.readings() if each.total.total]
    assert counted.total == stage.secondary.meter.read().total, "the syphon counts the same"


def spent(stage, before):
    return (stage.secondary.meter.read() - before).total.total


@pytest.mark.req("S-02")
def test_a_message_ends_the_poll_of_its_queue_and_is_free_again(stage, polls):
    assert polls.wait_for_messages(BACKLOGS, seconds=0) == []
    stage.divert(numbered(2), queue=BACKLOGS[3])

    assert polls.wait_for_messages(BACKLOGS, seconds=60) == [BACKLOGS[3]]

    assert stage.secondary.meter.read().of(BACKLOGS[3]).receive == 1, "the second one is not needed"
    assert stage.free(BACKLOGS[3]) == numbered(2)
    others = [queue for queue in BACKLOGS if queue != BACKLOGS[3]]
    assert polls.wait_for_messages(others, seconds=0) == []
    stage.divert(numbered(1), queue=BACKLOGS[4])
    assert polls.wait_for_messages(others, seconds=60) == [BACKLOGS[4]]


def test_polls_that_the_service_ends_start_again(stage, polls):
    assert polls.wait_for_messages(BACKLOGS[:2], seconds=0) == []
    outage = stage.secondary.faults.unreachable()
    with outage, pytest.raises(ServiceBusError):
        polls.wait_for_messages(BACKLOGS[:2], seconds=5)

    assert polls.wait_for_messages(BACKLOGS[:2], seconds=0) == []
    stage.divert(numbered(1))
    assert polls.wait_for_messages(BACKLOGS[:2], seconds=60) == [BACKLOGS[0]]


def test_a_queue_that_cannot_be_polled_is_warned_of_once_and_the_others_are_polled(
    stage, polls, clock, caplog
):
    polls.wait_for_messages(BACKLOGS[:2], seconds=0)
    with ServiceBusAdministrationClient.from_connection_string(
        stage.secondary.connection_string, connection_verify=str(stage.secondary.ca_file)
    ) as manager:
        manager.delete_queue(BACKLOGS[0])
        for _ in range(3):
            assert polls.wait_for_messages(BACKLOGS[:2], seconds=0.1) == []
            clock.advance(10)
        assert caplog.text.count(f"cannot poll backlog queue {BACKLOGS[0]}") == 1
        stage.divert(numbered(1), queue=BACKLOGS[1])
        assert polls.wait_for_messages(BACKLOGS[:2], seconds=60) == [BACKLOGS[1]]
        manager.create_queue(BACKLOGS[0])

    clock.advance(10)
    stage.divert(numbered(1), queue=BACKLOGS[0])
    assert polls.wait_for_messages(BACKLOGS[:1], seconds=60) == [BACKLOGS[0]]


def test_all_polls_begin_together_because_the_secondary_may_be_far_away(stage, polls):
    with stage.secondary.faults.slow(latency_seconds=0.5):
        began = time.monotonic()
        assert polls.wait_for_messages(BACKLOGS, seconds=0) == []
        assert time.monotonic() - began < 0.75 * len(BACKLOGS)


def test_all_polls_are_renewed_together_as_well(stage, polls, clock):
    assert polls.wait_for_messages(BACKLOGS, seconds=0) == []
    clock.advance(LONG_POLL_SECONDS)
    with stage.secondary.faults.slow(latency_seconds=0.3):
        began = time.monotonic()
        assert polls.wait_for_messages(BACKLOGS, seconds=0) == []
        assert time.monotonic() - began < 0.27 * len(BACKLOGS)


def test_there_may_be_more_backlog_queues_than_links_on_a_connection():
    queues = backlog_names(260)
    with Broker(queues=["orders"]) as primary, Broker(queues=queues) as secondary:
        stage = Stage(primary, secondary, queues)
        polls = LongPolls(
            stage.address(secondary).client,
            poll_seconds=LONG_POLL_SECONDS,
            stopping=threading.Event(),
            clock=ManualClock(),
        )
        assert polls.wait_for_messages(queues, seconds=0) == []
        for queue in (queues[-1], queues[0]):
            stage.divert(numbered(1), queue=queue)
            wait_until(lambda: polls.wait_for_messages(queues, seconds=0.2), queue)
            assert stage.free(queue) == numbered(1)  # `free` removes it
        polls.close()


def test_a_second_connection_that_cannot_be_opened_does_not_hide_what_the_first_has_found(
    stage, clock, monkeypatch
):
    monkeypatch.setattr("pairbus.syphon.long_poll.QUEUES_MAX", 1)
    clients = [stage.address(stage.secondary).client]

    def connect(**options):
        if not clients:
            raise ServiceBusConnectionError(message="too many connections")
        return clients.pop()(**options)

    polls = LongPolls(
        connect, poll_seconds=LONG_POLL_SECONDS, stopping=threading.Event(), clock=clock
    )
    with pytest.raises(ServiceBusConnectionError):
        polls.wait_for_messages(BACKLOGS[:2], seconds=0)
    stage.divert(numbered(1))

    assert polls.wait_for_messages(BACKLOGS[:2], seconds=60) == [BACKLOGS[0]]
    assert stage.free(BACKLOGS[0]) == numbered(1)  # which takes it away
    with pytest.raises(ServiceBusConnectionError):
        polls.wait_for_messages(BACKLOGS[:2], seconds=0)
    polls.close()
