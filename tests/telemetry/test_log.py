"""Each event becomes one log line that can be understood without the code."""

import logging
from dataclasses import replace
from logging import DEBUG, ERROR, INFO, WARNING

import pytest

from pairbus.errors import LENGTH_MAX, one_line
from pairbus.telemetry.log import REPEAT_SECONDS, EventLog
from tests.telemetry import sample_events as sample

LINES = [
    (
        sample.paired, "pairing", INFO,
        "contoso is paired: 3 backlog queues (contoso/x-servicebus-transfer/0 to "
        "contoso/x-servicebus-transfer/2), 2 found and 1 created",
    ),
    (
        replace(sample.paired, backlog_queues=sample.QUEUES[:1], made=()), "pairing", INFO,
        "contoso is paired: 1 backlog queue (contoso/x-servicebus-transfer/0), 1 found and 0 "
        "created",
    ),
    (
        sample.primary_failed, "failover", WARNING,
        "a send to orders of contoso failed: ConnectionError: the line is dead; the first "
        "failure was 12.3 s ago, and the entity fails over in 47.7 s unless a send succeeds before",
    ),
    (
        sample.recovered, "failover", INFO,
        "orders of contoso accepts messages again and does not fail over",
    ),
    (
        sample.failed_over, "failover", WARNING,
        "orders of contoso failed over 60.0 s after its first failure: ConnectionError: the line "
        "is dead; messages go to contoso/x-servicebus-transfer/1 until the primary answers "
        "a ping",
    ),
    (
        replace(sample.failed_over, backlog_queue=None, error=None), "failover", WARNING,
        "orders of contoso failed over 60.0 s after its first failure: unknown cause; "
        "no backlog queue is left, so neither namespace accepts its messages",
    ),
    (
        sample.failed_back, "failover", INFO,
        "orders of contoso failed back after 300.5 s (the primary answered a ping); messages "
        "go to the primary",
    ),
    (
        sample.failed_back_by_hand, "failover", INFO,
        "orders of contoso failed back after 4.0 s (marked healthy by hand); messages go to the "
        "primary",
    ),
    (
        replace(sample.failed_back, reason="backlog home"), "failover", INFO,
        "orders of contoso failed back after 300.5 s (its diverted messages are home); messages "
        "go to the primary",
    ),
    (
        replace(sample.failed_back, reason="wait over"), "failover", INFO,
        "orders of contoso failed back after 300.5 s (fail_back_wait_max is over, and order is not "
        "kept); messages go to the primary",
    ),
    (
        sample.returning, "failover", INFO,
        "orders of contoso answers again after 300.5 s; messages go to "
        "contoso/x-servicebus-transfer/1 until those that are there are home",
    ),
    (
        sample.fail_back_delayed, "failover", WARNING,
        "orders of contoso answers, but no diverted message of this client has come home from "
        "contoso/x-servicebus-transfer/1 for 60.0 s; messages are still diverted, to keep their "
        "order; check that a syphon runs",
    ),
    (
        replace(sample.fail_back_delayed, error=sample.LOST), "failover", WARNING,
        "orders of contoso answers, but no diverted message of this client has come home from "
        "contoso/x-servicebus-transfer/1 for 60.0 s (ConnectionError: the line is dead); messages "
        "are still diverted, to keep their order; check that a syphon runs",
    ),
    (
        sample.flapping, "failover", WARNING,
        "orders of contoso is flapping: it failed over 8.0 s after it had failed back; it fails "
        "back when 4 pings in a row are answered",
    ),
    (
        sample.calmed, "failover", INFO,
        "orders of contoso no longer flaps: it needs no more answered pings than at first",
    ),
    (
        sample.diverted, "backlog", DEBUG,
        "diverted 1 message for orders of contoso to contoso/x-servicebus-transfer/1 in 0.020 s",
    ),
    (
        sample.diverted_batch, "backlog", DEBUG,
        "diverted 40 messages for orders of contoso to contoso/x-servicebus-transfer/1 in 0.300 s",
    ),
    (
        sample.withdrawn, "backlog", WARNING,
        "backlog queue contoso/x-servicebus-transfer/1 is out of the rotation until it answers "
        "again: PermissionError: no entry; 2 backlog queues left",
    ),
    (
        replace(sample.withdrawn, left=0), "backlog", WARNING,
        "backlog queue contoso/x-servicebus-transfer/1 is out of the rotation until it answers "
        "again: PermissionError: no entry; no backlog queue is left, so neither namespace "
        "accepts messages for failed-over entities",
    ),
    (
        sample.readmitted, "backlog", INFO,
        "backlog queue contoso/x-servicebus-transfer/1 answers again and is back in the rotation: "
        "3 backlog queues now",
    ),
    (
        sample.throttled, "throttling", WARNING,
        "orders of contoso is throttled: the send is repeated in 10.0 s",
    ),
    (
        sample.throttled_backlog, "throttling", WARNING,
        "backlog queue contoso/x-servicebus-transfer/1, used for orders of contoso, is "
        "throttled: another queue gets the message, or this one in 10.0 s if there is no other",
    ),
    (
        sample.ping_unanswered, "ping", DEBUG,
        "orders of contoso did not answer a ping: ConnectionError: the line is dead; "
        "pings continue while it is failed over",
    ),
    (sample.ping_answered, "ping", INFO, "orders of contoso answered a ping"),
    (
        sample.send_failed, "backlog", ERROR,
        "neither namespace accepted a message for orders of contoso: on the primary, "
        "ConnectionError: the line is dead; on the backlog queues, PermissionError: no entry; "
        "the caller gets the error and still has the message",
    ),
    (
        sample.outbox_opened, "outbox", WARNING,
        "the outbox of contoso, /var/lib/shop/outbox.db, holds 2 messages of an earlier run, which "
        "are sent first; 1 held message must be sent or deleted with `pairbus outbox`",
    ),
    (
        sample.stored, "outbox", WARNING,
        "stored 3 messages for orders of contoso in the outbox /var/lib/shop/outbox.db, where "
        "5 messages wait until a namespace accepts messages again",
    ),
    (
        sample.left_outbox, "outbox", DEBUG,
        "sent 3 messages for orders of contoso from the outbox, where 2 messages wait",
    ),
    (
        sample.outbox_emptied, "outbox", INFO,
        "sent 1 message for orders of contoso from the outbox, which is empty now",
    ),
    (
        sample.held, "outbox", ERROR,
        "message 'a1' for orders of contoso stays in the outbox /var/lib/shop/outbox.db and is "
        "not sent any more: too old; use `pairbus outbox` to send or delete it",
    ),
    (
        sample.stalled, "outbox", WARNING,
        "2 messages for orders of contoso could not leave the outbox: PermissionError: no entry; "
        "the next attempt is in 30.0 s",
    ),
    (
        sample.syphon_failed, "syphon", WARNING,
        "the syphon of contoso failed: ConnectionError: the line is dead; it starts again in "
        "1.0 s, and until then diverted messages wait",
    ),
    (
        sample.syphon_restarted, "syphon", INFO,
        "the syphon of contoso runs again after 7.1 s",
    ),
    (
        sample.closed, "pairing", INFO,
        "the pairing of contoso is closed: pings and diverting have stopped",
    ),
]  # fmt: skip


@pytest.fixture
def log(caplog):
    caplog.set_level(DEBUG, logger="pairbus")
    return caplog


@pytest.mark.parametrize(("event", "topic", "level", "text"), LINES)
def test_an_event_is_one_line_that_says_what_happens_next(log, event, topic, level, text):
    EventLog()(event)

    assert log.record_tuples == [(f"pairbus.{topic}", level, text)]


def test_every_kind_of_event_has_its_line():
    assert {type(event) for event, *_ in LINES} == sample.KINDS


def test_a_cause_is_shown_on_one_line_and_without_a_traceback(log):
    error = ConnectionError("lost:\n  100% of the packets\r\n\tare gone %s")

    EventLog()(replace(sample.failed_over, error=error))

    (record,) = log.records
    assert "ConnectionError: lost: 100% of the packets are gone %s; messages" in record.message
    assert len(record.message.splitlines()) == 1
    assert record.exc_info is None


def test_the_full_stop_of_a_cause_does_not_end_the_line(log):
    EventLog()(replace(sample.failed_over, error=ConnectionError("the line is dead.")))

    assert "the line is dead; messages go to" in log.records[0].message


def test_a_long_cause_is_cut_and_a_cause_without_text_is_its_type():
    long = one_line(ValueError("x" * 10_000))

    assert long == f"ValueError: {'x' * (LENGTH_MAX - 3)}..."
    assert one_line(TimeoutError()) == "TimeoutError"


def test_handlers_and_levels_stay_the_applications():
    for event, *_ in LINES:
        EventLog()(event)

    ours = [name for name in logging.root.manager.loggerDict if name.startswith("pairbus.")]
    assert {f"pairbus.{topic}" for _, topic, *_ in LINES} <= set(ours)
    for name in ["pairbus", *(f"pairbus.{topic}" for _, topic, *_ in LINES)]:
        assert not logging.getLogger(name).handlers
        assert logging.getLogger(name).propagate


# --- many failures


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def failures(log):
    return [record.message for record in log.records]


@pytest.mark.parametrize(
    "event", [sample.primary_failed, sample.send_failed, sample.throttled, sample.throttled_backlog]
)
def test_of_many_failures_the_first_is_logged_and_then_a_line_in_a_while(log, clock, event):
    observe = EventLog(clock=clock)
    for _ in range(252):
        observe(event)
        clock.now += 3 / 252

    [first] = failures(log)
    clock.now = REPEAT_SECONDS
    observe(event)
    observe(event)

    assert failures(log) == [first, f"{first} (251 more like this in 10.0 s)"]


def test_the_failures_of_each_entity_and_queue_are_counted_by_themselves(log, clock):
    observe = EventLog(clock=clock)
    for _ in range(3):
        for path in ("orders", "stock"):
            observe(replace(sample.primary_failed, path=path))
        for queue in ("q/0", "q/1"):
            observe(replace(sample.throttled_backlog, backlog_queue=queue))

    assert len(log.records) == 4


@pytest.mark.parametrize("event", [sample.failed_over, sample.recovered, sample.closed])
def test_what_was_left_out_is_reported_before_the_state_changes(log, clock, event):
    observe = EventLog(clock=clock)
    for _ in range(5):
        observe(sample.primary_failed)
    clock.now = 4.0
    observe(event)
    observe(sample.primary_failed)

    first, summary, _, again = failures(log)
    assert summary == f"{first} (3 more like this in 4.0 s)"
    assert again == first


def test_a_single_failure_is_not_reported_twice(log, clock):
    observe = EventLog(clock=clock)
    observe(sample.primary_failed)
    observe(sample.failed_over)

    assert len(log.records) == 2
