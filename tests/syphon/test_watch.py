"""The quiet wait: what it costs by the broker's own meter, and what ends it."""

import threading

import pytest
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import Broker
from pairbus.syphon.job import LONG_POLL_SECONDS, Job
from pairbus.syphon.runner import InProcessRunner
from pairbus.syphon.watch import Tails, Watch
from pairbus.testing import ManualClock
from tests.syphon.processes import wait_until
from tests.syphon.stage import Stage, backlog_names, numbered

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
def watch(stage, clock):
    made = Watch(
        stage.address(stage.secondary).client,
        poll_seconds=LONG_POLL_SECONDS,
        stopping=threading.Event(),
        clock=clock,
    )
    yield made
    made.close()


@pytest.mark.req("S-02")
def test_an_idle_hour_costs_four_receives_for_each_backlog_queue_and_nothing_else(stage, clock):
    idle = threading.Event()
    job = Job(
        stage.options(),
        InProcessRunner(),
        lambda: BACKLOGS,
        progress=lambda ended: idle.set(),
        clock=clock,
    )
    looks = 0
    look = job._watch.look

    def counted(queues, *, seconds):
        nonlocal looks
        looks += 1
        return look(queues, seconds=0.01)

    job._watch.look = counted
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        assert idle.wait(20), "the first round finds nothing"
        wait_until(lambda: len(job._watch._polls) == 10, "the quiet wait")
        before = stage.secondary.meter.read()
        polls = int(HOUR / LONG_POLL_SECONDS)
        for number in range(1, polls + 1):
            clock.advance(LONG_POLL_SECONDS - 1)
            so_far = looks
            wait_until(lambda so_far=so_far: looks > so_far + 2, "some looks")
            assert spent(stage, before) == 10 * (number - 1), "a poll lasts a quarter of an hour"
            clock.advance(1)
            wait_until(lambda number=number: spent(stage, before) == 10 * number, "its end")
        reading = stage.secondary.meter.read() - before
    finally:
        job.stop()
        thread.join(20)

    assert reading.total.empty_receive == reading.total.total == 40
    assert {reading.of(queue).empty_receive for queue in BACKLOGS} == {4}
    [told] = [each for each in job.usage.readings() if each.total.total]
    assert told.total == stage.secondary.meter.read().total, "what the syphon counts is the same"


def spent(stage, before):
    return (stage.secondary.meter.read() - before).total.total


@pytest.mark.req("S-02")
def test_a_message_ends_the_poll_of_its_queue_and_is_free_again(stage, watch):
    assert watch.look(BACKLOGS, seconds=0) == []
    stage.divert(numbered(2), queue=BACKLOGS[3])

    assert watch.look(BACKLOGS, seconds=5) == [BACKLOGS[3]]

    assert stage.free(BACKLOGS[3]) == numbered(2)
    others = [queue for queue in BACKLOGS if queue != BACKLOGS[3]]
    assert watch.look(others, seconds=0) == []
    stage.divert(numbered(1), queue=BACKLOGS[4])
    assert watch.look(others, seconds=5) == [BACKLOGS[4]]


def test_links_that_the_service_ends_begin_anew(stage, watch):
    assert watch.look(BACKLOGS[:2], seconds=0) == []
    outage = stage.secondary.faults.unreachable()
    with outage, pytest.raises(ServiceBusError):
        watch.look(BACKLOGS[:2], seconds=5)

    assert watch.look(BACKLOGS[:2], seconds=0) == []
    stage.divert(numbered(1))
    assert watch.look(BACKLOGS[:2], seconds=5) == [BACKLOGS[0]]


def test_a_queue_that_cannot_be_watched_is_told_once_and_the_others_are(
    stage, watch, clock, caplog
):
    watch.look(BACKLOGS[:2], seconds=0)
    with ServiceBusAdministrationClient.from_connection_string(
        stage.secondary.connection_string, connection_verify=str(stage.secondary.ca_file)
    ) as manager:
        manager.delete_queue(BACKLOGS[0])
        for _ in range(3):
            assert watch.look(BACKLOGS[:2], seconds=0.1) == []
            clock.advance(10)
        assert caplog.text.count(f"{BACKLOGS[0]} cannot be watched") == 1
        stage.divert(numbered(1), queue=BACKLOGS[1])
        assert watch.look(BACKLOGS[:2], seconds=5) == [BACKLOGS[1]]
        manager.create_queue(BACKLOGS[0])

    clock.advance(10)
    stage.divert(numbered(1), queue=BACKLOGS[0])
    assert watch.look(BACKLOGS[:1], seconds=5) == [BACKLOGS[0]]


def test_whether_something_has_come_is_seen_without_receiving(stage):
    tails = Tails(stage.address(stage.secondary).client, stopping=threading.Event())
    stage.divert(numbered(600))

    assert tails.without_news(BACKLOGS[:2]) == [], "nobody knows what had been there"
    assert tails.without_news(BACKLOGS[:2]) == BACKLOGS[:2]
    stage.divert(numbered(1), queue=BACKLOGS[1])
    assert tails.without_news(BACKLOGS[:2]) == BACKLOGS[:1]
    assert tails.without_news(BACKLOGS[:2]) == BACKLOGS[:2]
    with stage.secondary.faults.unreachable():
        assert tails.without_news(BACKLOGS[:2]) == []
    assert stage.secondary.meter.read().total.receive == 0
