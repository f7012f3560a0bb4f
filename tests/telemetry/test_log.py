"""Each event is one line that can be read without the code at hand."""

import logging
from dataclasses import replace
from logging import DEBUG, ERROR, INFO, WARNING

import pytest

from pairbus.telemetry.causes import LENGTH_MAX, one_line
from pairbus.telemetry.log import log_event
from tests.telemetry import happenings as happened

LINES = [
    (
        happened.paired, "pairing", INFO,
        "contoso is paired: 3 backlog queues (contoso/x-servicebus-transfer/0 to "
        "contoso/x-servicebus-transfer/2), 2 found and 1 made",
    ),
    (
        replace(happened.paired, backlog_queues=happened.QUEUES[:1], made=()), "pairing", INFO,
        "contoso is paired: 1 backlog queue (contoso/x-servicebus-transfer/0), 1 found and 0 made",
    ),
    (
        happened.primary_failed, "failover", WARNING,
        "a send to orders of contoso failed: ConnectionError: the line is dead; the first such "
        "failure was 12.3 s ago, and it fails over in 47.7 s unless a send succeeds before",
    ),
    (
        happened.recovered, "failover", INFO,
        "orders of contoso takes messages again, before its failover interval was over",
    ),
    (
        happened.failed_over, "failover", WARNING,
        "orders of contoso failed over, 60.0 s after its first failure: ConnectionError: the line "
        "is dead; messages go to contoso/x-servicebus-transfer/1 until a ping is answered",
    ),
    (
        replace(happened.failed_over, backlog_queue=None, error=None), "failover", WARNING,
        "orders of contoso failed over, 60.0 s after its first failure: the cause is not known; "
        "no backlog queue is left: sends fail until one of them or the primary is back",
    ),
    (
        happened.failed_back, "failover", INFO,
        "orders of contoso failed back after 300.5 s (a ping was answered); messages go to the "
        "primary, and pings stop",
    ),
    (
        happened.failed_back_by_hand, "failover", INFO,
        "orders of contoso failed back after 4.0 s (marked healthy by hand); messages go to the "
        "primary, and pings stop",
    ),
    (
        happened.diverted, "backlog", DEBUG,
        "1 message for orders of contoso diverted to contoso/x-servicebus-transfer/1 in 0.020 s, "
        "to wait there for the syphon",
    ),
    (
        happened.diverted_batch, "backlog", DEBUG,
        "40 messages for orders of contoso diverted to contoso/x-servicebus-transfer/1 in 0.300 s, "
        "to wait there for the syphon",
    ),
    (
        happened.withdrawn, "backlog", WARNING,
        "backlog queue contoso/x-servicebus-transfer/1 is out of the rotation: PermissionError: "
        "no entry; 2 backlog queues left until it answers again",
    ),
    (
        replace(happened.withdrawn, left=0), "backlog", WARNING,
        "backlog queue contoso/x-servicebus-transfer/1 is out of the rotation: PermissionError: "
        "no entry; none is left, and sends of what is failed over fail until it answers again",
    ),
    (
        happened.readmitted, "backlog", INFO,
        "backlog queue contoso/x-servicebus-transfer/1 answers again and is back in the rotation: "
        "3 backlog queues now",
    ),
    (
        happened.throttled, "throttling", WARNING,
        "orders of contoso is throttled: the message is sent there again in 10.0 s",
    ),
    (
        happened.throttled_backlog, "throttling", WARNING,
        "backlog queue contoso/x-servicebus-transfer/1, for orders of contoso, is throttled: "
        "the message is sent there again in 10.0 s",
    ),
    (
        happened.ping_unanswered, "ping", DEBUG,
        "orders of contoso did not answer a ping: ConnectionError: the line is dead; "
        "the next one follows while it is failed over",
    ),
    (happened.ping_answered, "ping", INFO, "orders of contoso answered a ping"),
    (
        happened.send_failed, "backlog", ERROR,
        "neither namespace took a message for orders of contoso: on the primary, ConnectionError: "
        "the line is dead; on the backlog queues, PermissionError: no entry; "
        "its sender gets the error and still has the message",
    ),
    (
        happened.closed, "pairing", INFO,
        "the pairing of contoso is closed: nothing is pinged or diverted any more",
    ),
]  # fmt: skip


@pytest.fixture
def log(caplog):
    caplog.set_level(DEBUG, logger="pairbus")
    return caplog


@pytest.mark.parametrize(("event", "topic", "level", "text"), LINES)
def test_an_event_is_one_line_that_says_what_happens_next(log, event, topic, level, text):
    log_event(event)

    assert log.record_tuples == [(f"pairbus.{topic}", level, text)]


def test_every_kind_of_event_has_its_line():
    assert {type(event) for event, *_ in LINES} == happened.KINDS


def test_a_cause_is_shown_on_one_line_and_without_a_traceback(log):
    error = ConnectionError("lost:\n  100% of the packets\r\n\tare gone %s")

    log_event(replace(happened.failed_over, error=error))

    (record,) = log.records
    assert "ConnectionError: lost: 100% of the packets are gone %s; messages" in record.message
    assert len(record.message.splitlines()) == 1
    assert record.exc_info is None


def test_a_long_cause_is_cut_and_one_without_a_text_is_its_type():
    long = one_line(ValueError("x" * 10_000))

    assert long == f"ValueError: {'x' * (LENGTH_MAX - 3)}..."
    assert one_line(TimeoutError()) == "TimeoutError"


def test_handlers_and_levels_are_left_to_the_application():
    for event, *_ in LINES:
        log_event(event)

    ours = [name for name in logging.root.manager.loggerDict if name.startswith("pairbus.")]
    assert {f"pairbus.{topic}" for _, topic, *_ in LINES} <= set(ours)
    for name in ["pairbus", *(f"pairbus.{topic}" for _, topic, *_ in LINES)]:
        assert not logging.getLogger(name).handlers
        assert logging.getLogger(name).propagate
