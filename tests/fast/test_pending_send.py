"""Several sends at once: what becomes of one does not affect the others."""

from __future__ import annotations

import time

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
)

from pairbus.fast.client import wait_together
from pairbus.fast.sender import wait_all
from tests.fast.world import left, message, messages

LARGE = bytes(100_000)  # two of these fill a batch


def test_messages_for_several_entities_are_waited_for_together(client):
    sends = [
        client.sender("q").start(messages(5)),
        client.sender("other").start(messages(3)),
        client.sender("events").start(messages(2)),
    ]
    wait_all(sends)
    assert [send.failure() for send in sends] == [None] * 3
    assert left(client, "q") == [f"m-{number}" for number in range(5)]
    assert left(client, "other") == [f"m-{number}" for number in range(3)]
    assert left(client, "events/Subscriptions/audit") == ["m-0", "m-1"]


def test_what_one_entity_refuses_the_others_take(client):
    refused = client.sender("sessions").start(messages(4))  # without a session id
    taken = client.sender("q").start(messages(4))
    wait_all([refused, taken])
    assert taken.failure() is None
    failed = refused.failure()
    assert (failed.accepted, failed.refused_ranges, failed.doubtful_ranges) == (0, (range(4),), ())
    assert len(left(client, "q")) == 4


def test_an_entity_that_is_not_there_fails_its_own_send_only(client):
    sends = [client.sender(path).start(messages(2)) for path in ("nowhere", "q")]
    wait_all(sends)
    failed = sends[0].failure()
    assert isinstance(failed.error, MessagingEntityNotFoundError | ServiceBusAuthenticationError)
    assert (failed.refused_ranges, failed.doubtful_ranges) == ((range(2),), ())
    assert sends[1].failure() is None


def test_the_answers_of_others_count_although_one_never_comes(client, broker):
    senders = {path: client.sender(path) for path in ("q", "other")}
    for sender in senders.values():
        sender.send(messages(1))
    with broker.faults.hang(entity="other"):
        sends = [sender.start(messages(3)) for sender in senders.values()]
        taken, silent = sends
        assert wait_together([client], taken.has_ended, time.monotonic() + 60)
        client.set_deadline(time.monotonic() + 0.2)
        began = time.monotonic()
        wait_all(sends)
        assert time.monotonic() - began < 20
    assert taken.failure() is None
    failed = silent.failure()
    assert isinstance(failed.error, OperationTimeoutError)
    assert failed.doubtful_ranges == (range(3),)


def test_when_the_connection_is_lost_all_that_is_in_the_air_is_in_doubt(client):
    sends = [client.sender(path).start(messages(3)) for path in ("q", "other")]
    client.interrupt()
    wait_all(sends)
    for send in sends:
        failed = send.failure()
        if failed is not None:  # its answer may have come just before
            assert isinstance(failed.error, ServiceBusConnectionError)
            assert failed.doubtful_ranges == (range(3),)


def test_batches_of_one_flight_follow_each_other_and_stop_behind_a_refused_one(client):
    """One batch at a time by default, so the order is kept."""
    wrong = message("wrong", body=LARGE)  # without a session id
    fine = [message(f"s-{number}", body=LARGE, properties={10: "g"}) for number in range(6)]
    sends = [
        client.sender("sessions").start([*fine[:2], wrong, *fine[2:]]),
        client.sender("q").start(messages(7, body=LARGE)),
    ]
    wait_all(sends)
    failed = sends[0].failure()
    assert failed.accepted_ranges == (range(2),)
    assert [index for some in failed.refused_ranges for index in some] == list(range(2, 7))
    assert sends[1].failure() is None
    assert len(left(client, "q")) == 7


def test_nothing_to_send_is_over_at_once(client):
    send = client.sender("q").start([])
    wait_all([send])
    assert send.failure() is None


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_a_client_whose_time_is_up_waits_for_nothing(client, broker, seconds):
    client.open()
    client.set_deadline(time.monotonic() + seconds)
    with broker.faults.hang(entity="q"):  # an answer that is already here would count
        began = time.monotonic()
        send = client.sender("q").start(messages(1))
        wait_all([send])
        client.close()
        assert time.monotonic() - began < 20
    assert send.failure() is not None


def test_a_send_that_has_not_ended_is_never_taken_for_a_success(client, broker):
    sender = client.sender("q")
    sender.send(messages(1))
    with broker.faults.hang(entity="q"):
        unanswered = sender.start(messages(3))
        with pytest.raises(RuntimeError, match="3 messages have no answer and 0 were not sent"):
            unanswered.failure()
        partly_sent = sender.start(messages(6, body=LARGE))
        with pytest.raises(RuntimeError, match=r"have no answer and [1-5] were not sent"):
            partly_sent.failure()


def test_a_send_that_nobody_waits_for_ends_with_an_error_when_its_answer_is_overdue(
    broker, connect
):
    client = connect()
    sender = client.sender("q")
    sender.send(messages(1))
    with broker.faults.hang():
        send = sender.start(messages(1))
        assert not wait_together([client], send.has_ended, time.monotonic() + 0.05)
        client.set_deadline(time.monotonic())
        assert wait_together([client], send.has_ended, time.monotonic() + 60)
    failed = send.failure()
    assert isinstance(failed.error, OperationTimeoutError)


def test_a_send_that_nobody_waits_for_ends_with_its_connection(connect):
    client = connect()
    send = client.sender("q").start(messages(1))
    while not send.has_ended():
        wait_together([client], send.has_ended, time.monotonic() + 60)
    assert send.failure() is None
    send = client.sender("q").start([])
    assert send.has_ended()
