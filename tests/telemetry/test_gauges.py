"""The values of gauges: one client or several, observers added late, clients that closed."""

import itertools
from dataclasses import replace

import pytest

from pairbus.telemetry import gauges
from pairbus.telemetry.gauges import Gauge, GaugeTracker
from tests.client.lines import run_and_interrupt
from tests.telemetry import sample_events as sample

BACK = sample.failed_back
OVER = sample.failed_over
PAIRED = sample.paired
CLOSED = sample.closed
BILLS_OVER = replace(OVER, path="bills")
ELSEWHERE = "fabrikam"

HISTORIES = {
    "all gauges start at zero": ([], 0, 0, 0),
    "a pairing is open": ([PAIRED], 1, 0, 0),
    "two pairings are open": ([PAIRED, PAIRED], 2, 0, 0),
    "one of two closes": ([PAIRED, PAIRED, CLOSED], 1, 0, 0),
    "an entity is failed over": ([PAIRED, OVER], 1, 1, 0),
    "two entities are failed over": ([PAIRED, OVER, BILLS_OVER], 1, 2, 0),
    "one of two entities fails back": ([PAIRED, OVER, BILLS_OVER, BACK], 1, 1, 0),
    "an entity is failed over for two clients": ([PAIRED, PAIRED, OVER, OVER], 2, 2, 0),
    "it fails back for one of two clients": ([PAIRED, PAIRED, OVER, OVER, BACK], 2, 1, 0),
    "closing the only client resets all": ([PAIRED, OVER, sample.withdrawn, CLOSED], 0, 0, 0),
    "one of two clients closes during an outage": ([PAIRED, PAIRED, OVER, OVER, CLOSED], 1, 1, 0),
    "closing another namespace's client changes nothing": (
        [PAIRED, OVER, replace(PAIRED, namespace=ELSEWHERE), replace(CLOSED, namespace=ELSEWHERE)],
        1, 1, 0,
    ),
    "events after the close do not count": ([PAIRED, CLOSED, OVER], 0, 0, 0),
    "pairing again after a close counts": ([PAIRED, CLOSED, PAIRED, OVER], 1, 1, 0),
    "a backlog queue is withdrawn": ([PAIRED, sample.withdrawn], 1, 0, 1),
    "and readmitted": ([PAIRED, sample.withdrawn, sample.readmitted], 1, 0, 0),
    "an observer added after the pairing counts a failover": ([OVER], 0, 1, 0),
    "but only once": ([OVER, OVER], 0, 1, 0),
    "an observer added after a failover": ([BACK, OVER], 0, 1, 0),
    "its client closes": ([OVER, CLOSED], 0, 0, 0),
    "other events change nothing": ([PAIRED, sample.diverted, sample.throttled], 1, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("history", "pairings", "entities", "queues"), HISTORIES.values(), ids=HISTORIES
)
def test_events_add_up_to_the_value_of_each_gauge(history, pairings, entities, queues):
    tracker = GaugeTracker()

    changes = [change for event in history for change in tracker.changes(event)]

    def value(gauge):
        return sum(change.delta for change in changes if change.gauge is gauge)

    assert value(Gauge.PAIRINGS) == pairings
    assert value(Gauge.ENTITIES_FAILED_OVER) == entities
    assert value(Gauge.QUEUES_WITHDRAWN) == queues


FLAPPING, DOWN = Gauge.ENTITIES_FLAPPING, Gauge.SYPHONS_DOWN
FAILED, FAILED_AGAIN = sample.syphon_failed, sample.syphon_failed_again
COUNTED_ONCE = {
    "an entity flaps": (FLAPPING, [PAIRED, sample.flapping], 1),
    "and goes on": (FLAPPING, [PAIRED, PAIRED, sample.flapping, sample.flapping_again], 1),
    "and calms down": (FLAPPING, [PAIRED, sample.flapping, sample.calmed], 0),
    "or its client closes": (FLAPPING, [PAIRED, sample.flapping, CLOSED], 0),
    "a syphon fails": (DOWN, [PAIRED, FAILED], 1),
    "and fails to start": (DOWN, [PAIRED, PAIRED, FAILED, FAILED_AGAIN], 1),
    "and runs again": (DOWN, [PAIRED, FAILED, sample.syphon_restarted], 0),
    "or the client of the syphon closes": (DOWN, [PAIRED, FAILED, CLOSED], 0),
    "the syphons of two clients fail": (DOWN, [PAIRED, PAIRED, FAILED, FAILED], 2),
}


@pytest.mark.req("X-11")
@pytest.mark.parametrize(("gauge", "history", "value"), COUNTED_ONCE.values(), ids=COUNTED_ONCE)
def test_flapping_entities_and_failed_syphons_are_counted_once_each(gauge, history, value):
    tracker = GaugeTracker()

    changes = [change for event in history for change in tracker.changes(event)]

    assert sum(change.delta for change in changes if change.gauge is gauge) == value


@pytest.mark.parametrize(("before", "event"), [([PAIRED], OVER), ([PAIRED, OVER], BACK)])
def test_a_signal_handler_that_closes_the_client_in_the_middle_of_an_event_leaves_nothing(
    before, event
):
    for line in itertools.count(1):
        tracker, changes = GaugeTracker(), []

        def take(*events, tracker=tracker, changes=changes):
            for each in events:
                changes.extend(tracker.changes(each))

        take(*before)
        was_interrupted = run_and_interrupt(
            lambda: take(event),
            gauges,
            lambda: take(CLOSED),
            before_line=line,
        )
        if not was_interrupted:
            break
        left = {gauge: sum(x.delta for x in changes if x.gauge is gauge) for gauge in Gauge}
        assert not any(left.values()), f"before line {line}"

    assert line > 5
