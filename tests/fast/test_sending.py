"""Sending: batches within the limits, in order; and the error when not all are accepted."""

from __future__ import annotations

import math
import time

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus.broker import Broker, QueueDescription, Status
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.fast.address import Address
from pairbus.fast.errors import SendIncomplete
from tests.fast.world import left, message, messages, names, send_one, take

LARGE = bytes(100_000)  # two of these fill a batch


def test_many_messages_go_in_order(client):
    sender = client.sender("q")
    sender.send(messages(3000, body=bytes(500)))
    sender.send(messages(10, first=3000))
    assert left(client) == [f"m-{number}" for number in range(3010)]


def test_messages_that_no_batch_holds_together_go_in_several(client):
    client.sender("q").send(messages(7, body=LARGE))
    taken = take(client.receiver("q", credit=7), 7)
    assert names(taken) == [f"m-{number}" for number in range(7)]


@pytest.mark.parametrize("sizes", [(1, 254, 255, 256, 257), (0, 65_535, 65_536, 70_000)])
def test_sizes_around_the_limits_of_encodings_arrive(client, sizes):
    sent = [message(f"s-{size}", body=bytes(size)) for size in sizes]
    client.sender("q").send(sent)
    assert left(client) == [f"s-{size}" for size in sizes]


def test_the_official_sdk_reads_what_was_sent(client, broker):
    client.sender("q").send([message("one", body=b"1"), message("two", body=b"2")])
    send_one(client.sender("q"), message("three", body=b"3"))
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_receiver("q") as receiver,
    ):
        seen = receiver.peek_messages(10)
    assert [(one.message_id, str(one)) for one in seen] == [
        ("one", "1"),
        ("two", "2"),
        ("three", "3"),
    ]


def test_messages_of_sessions_go_in_a_batch(client):
    sent = [message(f"m-{number}", properties={10: f"s-{number % 2}"}) for number in range(4)]
    client.sender("sessions").send(sent)
    assert len(client.management("sessions").peek(1, 10)) == 4


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(client):
    sender = client.sender("q")
    with pytest.raises(MessageSizeExceededError, match="the maximum is 262144"):
        send_one(sender, message("huge", body=bytes(300_000)))
    with pytest.raises(SendIncomplete) as caught:
        sender.send([*messages(2), message("huge", body=bytes(300_000)), *messages(2, first=2)])
    failed = caught.value
    assert (failed.accepted, failed.refused_ranges) == (2, (range(2, 5),))
    assert kind_of(failed.error) is Kind.MESSAGE
    assert left(client) == ["m-0", "m-1"]


def test_nothing_to_send_is_no_work(client):
    client.sender("nowhere").send([])
    assert not client.is_open


def test_a_window_of_less_than_one_is_refused(client):
    with pytest.raises(ValueError, match="window is 0"):
        client.sender("q").send(messages(1), window=0)


def test_a_refused_batch_is_reported_and_those_behind_it_are_not_sent(client, broker):
    sender = client.sender("q")
    sender.start([])  # attaches the link
    with (
        broker.faults.throttle("q"),
        pytest.raises(SendIncomplete) as caught,
    ):
        sender.send(messages(6, body=LARGE), window=1)
    failed = caught.value
    assert failed.accepted == 0
    assert failed.refused_ranges == (range(2), range(2, 6))
    assert failed.doubtful_ranges == ()
    assert isinstance(failed.error, ServiceBusServerBusyError)
    assert failed.path == "q"
    assert "accepted 0 of 6 messages" in str(failed)
    sender.send(messages(6, body=LARGE))
    assert len(take(client.receiver("q", credit=6), 6)) == 6


def test_with_a_window_a_batch_behind_a_refused_one_may_be_accepted(client, broker):
    sender = client.sender("q")
    sender.start([])  # attaches the link
    with (
        broker.faults.error("q", times=1),
        pytest.raises(SendIncomplete) as caught,
    ):
        sender.send(messages(6, body=LARGE), window=3)
    failed = caught.value
    assert failed.refused_ranges == (range(2),)
    assert failed.accepted_ranges == (range(2, 4), range(4, 6))
    assert failed.accepted == 4
    assert type(failed.error) is ServiceBusError
    assert kind_of(failed.error) is Kind.OUTAGE


def test_a_batch_that_was_interrupted_is_doubtful_and_not_stored(client, broker):
    sender = client.sender("q")
    send_one(sender, message("before"))
    with (
        broker.faults.cut_in_transfer("q", times=1),
        pytest.raises(SendIncomplete) as caught,
    ):
        sender.send(messages(3))
    failed = caught.value
    assert failed.doubtful_ranges == (range(3),)
    assert failed.accepted == 0
    assert isinstance(failed.error, ServiceBusConnectionError)
    assert kind_of(failed.error) is Kind.OUTAGE
    send_one(sender, message("after"))  # on a new connection
    assert left(client) == ["before", "after"]


def test_a_batch_that_was_stored_before_the_connection_was_lost_is_doubtful_too(client, broker):
    sender = client.sender("q")
    with (
        broker.faults.cut_after_accept("q", times=1),
        pytest.raises(SendIncomplete) as caught,
    ):
        sender.send(messages(3))
    assert caught.value.doubtful_ranges == (range(3),)
    assert left(client) == ["m-0", "m-1", "m-2"]


def test_waiting_for_an_acknowledgement_times_out(client, broker):
    sender = client.sender("q")
    send_one(sender, message("before"))
    with broker.faults.hang("q"):
        client.set_deadline(time.monotonic() + 0.5)
        with pytest.raises(OperationTimeoutError):
            send_one(sender, message("late"))
        client.set_deadline(math.inf)
        send_one(client.sender("other"), message("x"))  # the connection goes on
    send_one(sender, message("after"))
    assert left(client) == ["before", "late", "after"]


def test_a_disabled_queue_fails_before_anything_is_sent():
    queue = QueueDescription(name="q", status=Status.SEND_DISABLED)
    with (
        Broker(queues=[queue]) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        with pytest.raises(SendIncomplete) as caught:
            client.sender("q").send(messages(3))
        assert caught.value.refused_ranges == (range(3),)
        assert isinstance(caught.value.error, MessagingEntityDisabledError)


def test_a_full_queue_is_an_outage():
    queue = QueueDescription(name="q", max_size_in_megabytes=1)
    with (
        Broker(queues=[queue]) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        with pytest.raises(SendIncomplete) as caught:
            client.sender("q").send(messages(20, body=LARGE))
        failed = caught.value
        assert 0 < failed.accepted < 20
        assert kind_of(failed.error) is Kind.OUTAGE
        assert failed.accepted == len(left(client))
