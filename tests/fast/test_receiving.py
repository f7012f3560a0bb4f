"""Receiving: order, limits, and what is released."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

from pairbus.broker import Broker
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient, wait_together
from pairbus.fast.connection import attach_all, attach_each
from pairbus.fast.receiver import stop_all, wait_for_any
from tests.fast.world import bare, delivery_counts, message, messages, names, send_one, take


def test_messages_come_in_order_and_byte_for_byte(client):
    sent = messages(1500)
    client.sender("q").send(sent)
    receiver = client.receiver("q", credit=200)
    taken = take(receiver, 1500)
    assert [bare(one.data) for one in taken] == sent
    receiver.complete(taken)
    assert client.management("q").peek(1, 10) == []


def test_the_annotations_of_the_broker_can_be_read(client):
    send_one(client.sender("q"), message("a"))
    before = datetime.now(UTC)
    [one] = take(client.receiver("q", credit=1), 1)
    assert one.sequence_number == 1
    assert delivery_counts([one]) == [0]
    assert abs(one.enqueued_time - before) < timedelta(seconds=10)
    assert one.locked_until - one.enqueued_time > timedelta(seconds=50)
    assert one.lock_token.bytes_le == one.lock_token_bytes
    assert "x-opt-message-state" not in one.annotations  # it is active
    assert repr(one) == f"<ReceivedMessage 1 of {len(one.data)} bytes>"


def test_nothing_comes_of_an_empty_queue_when_the_wait_is_over(client):
    receiver = client.receiver("q", credit=10)
    begun = time.monotonic()
    assert receiver.receive(10, max_wait_seconds=0.2) == []
    assert 0.2 <= time.monotonic() - begun < 20
    assert receiver.receive(10, max_wait_seconds=0) == []


def test_a_wait_ends_with_the_first_message(client, connect):
    receiver = client.receiver("q", credit=10)
    assert receiver.receive(10, max_wait_seconds=0) == []
    send_one(connect().sender("q"), message("a"))
    begun = time.monotonic()
    assert names(receiver.receive(10, max_wait_seconds=60)) == ["a"]
    assert time.monotonic() - begun < 30


def test_no_more_than_max_count_is_returned_and_the_rest_waits(client):
    client.sender("q").send(messages(10))
    receiver = client.receiver("q", credit=10)
    assert names(take(receiver, 3)) == ["m-0", "m-1", "m-2"]
    assert names(take(receiver, 7)) == [f"m-{number}" for number in range(3, 10)]


def test_credit_bounds_what_is_locked(client, connect):
    client.sender("q").send(messages(20))
    greedy = client.receiver("q", credit=5)
    assert len(greedy.receive(1, max_wait_seconds=30)) == 1  # and up to five more wait here
    rest = connect().receiver("q", credit=100)
    assert len(take(rest, 14)) == 14


@pytest.mark.parametrize("size", [0, 255, 65_000, 65_536, 250_000])
def test_messages_of_any_size_come_whole(client, size):
    sent = message("large", body=bytes(index % 251 for index in range(size)))
    send_one(client.sender("q"), sent)
    receiver = client.receiver("q", credit=5)
    [one] = take(receiver, 1)
    assert bare(one.data) == sent
    receiver.complete([one])


def test_several_receivers_share_a_connection(client):
    client.sender("q").send(messages(5))
    client.sender("other").send(messages(5, first=5))
    one, other = client.receiver("q", credit=5), client.receiver("other", credit=5)
    first, second = take(one, 5), take(other, 5)
    assert names(first + second) == [f"m-{number}" for number in range(10)]
    other.complete(second)
    one.complete(first)
    assert client.management("q").peek(1, 1) == client.management("other").peek(1, 1) == []


def test_a_subscription_and_a_dead_letter_queue_are_received_from_by_path(client):
    client.sender("events").send(messages(2))
    receiver = client.receiver("events/Subscriptions/audit", credit=5)
    taken = take(receiver, 2)
    receiver.dead_letter(taken[:1], reason="because")
    dead = client.receiver("events/Subscriptions/audit/$DeadLetterQueue", credit=5)
    assert names(take(dead, 1)) == ["m-0"]


def test_receive_and_delete_leaves_nothing_to_settle(client):
    client.sender("q").send(messages(30))
    receiver = client.receiver("q", credit=10, mode="receiveAndDelete")
    taken = take(receiver, 30)
    assert names(taken) == [f"m-{number}" for number in range(30)]
    assert client.management("q").peek(1, 1) == []
    with pytest.raises(ValueError, match="receiveAndDelete"):
        receiver.complete(taken)


def test_stopping_releases_what_waits_without_counting_a_delivery(client, connect):
    client.sender("q").send(messages(20))
    receiver = client.receiver("q", credit=20)
    [first] = take(receiver, 1)
    assert receiver.stop() == []
    others = take(connect().receiver("q", credit=20), 19)
    assert names(others) == [f"m-{number}" for number in range(1, 20)]
    assert set(delivery_counts(others)) == {0}
    receiver.complete([first])  # what was taken is still its to settle


def test_a_receiver_that_was_stopped_can_go_on(client):
    client.sender("q").send(messages(3))
    receiver = client.receiver("q", credit=2)
    assert len(receiver.receive(1, max_wait_seconds=30)) == 1
    receiver.stop()
    assert names(take(receiver, 2)) == ["m-1", "m-2"]


def test_stopping_hands_over_what_was_deleted_already(client):
    client.sender("q").send(messages(20))
    receiver = client.receiver("q", credit=20, mode="receiveAndDelete")
    taken = receiver.receive(1, max_wait_seconds=30)
    taken += receiver.stop()
    taken += receiver.receive(20, max_wait_seconds=0) if len(taken) < 20 else []
    assert names(taken) == [f"m-{number}" for number in range(20)]


@pytest.mark.parametrize("how", ["receiver", "client"])
def test_closing_releases_what_waits(client, connect, how):
    client.sender("q").send(messages(20))
    receiver = client.receiver("q", credit=20)
    receiver.complete(take(receiver, 1))
    (receiver if how == "receiver" else client).close()
    others = take(connect().receiver("q", credit=20), 19)
    assert set(delivery_counts(others)) == {0}


def test_what_is_closed_says_so(client):
    receiver, sender = client.receiver("q", credit=1), client.sender("q")
    receiver.close()
    sender.close()
    with pytest.raises(ValueError, match="closed"):
        receiver.receive(1, max_wait_seconds=0)
    with pytest.raises(ValueError, match="closed"):
        send_one(sender, message("a"))
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.management("q").peek(1, 1)


@pytest.mark.parametrize("mode", ["peekLock", "receiveAndDelete"])
def test_delivered_messages_can_be_received_after_the_connection_is_lost(client, broker, mode):
    client.sender("q").send(messages(10))
    receiver = client.receiver("q", credit=10, mode=mode)
    taken = take(receiver, 2)
    with broker.faults.unreachable():
        taken += take(receiver, 8)
        with pytest.raises(ServiceBusConnectionError):
            receiver.receive(1, max_wait_seconds=10)
    assert names(taken) == [f"m-{number}" for number in range(10)]


def test_stopping_without_a_connection_loses_no_deleted_message(client, broker):
    client.sender("q").send(messages(10))
    receiver = client.receiver("q", credit=10, mode="receiveAndDelete")
    taken = take(receiver, 2)
    assert [one.lock_token_bytes for one in taken] == [b"", b""]
    with broker.faults.unreachable():
        taken += receiver.stop()
    assert names(taken) == [f"m-{number}" for number in range(10)]
    assert receiver.stop() == []


def test_stopping_gives_back_by_token_what_came_by_a_lost_link(client, connect):
    client.sender("q").send(messages(10))
    receiver = client.receiver("q", credit=10)
    taken = take(receiver, 1)
    client.interrupt()
    with pytest.raises(ServiceBusConnectionError):
        receiver.complete(taken)
    receiver.complete(taken)  # the connection is there again, the link is not
    assert receiver.stop() == []
    others = take(connect().receiver("q", credit=20), 9)
    assert set(delivery_counts(others)) == {1}


def test_several_entities_are_waited_for_at_once(client, connect):
    receivers = [client.receiver(path, credit=1) for path in ("q", "other")]
    assert wait_for_any(receivers, max_wait_seconds=0.1) == []
    sender = connect().sender("other")
    send_one(sender, message("a"))
    assert wait_for_any(receivers, max_wait_seconds=60) == receivers[1:]
    assert names(take(receivers[1], 1)) == ["a"]
    assert wait_for_any([], max_wait_seconds=60) == []
    send_one(sender, message("b"))
    assert wait_for_any(receivers, max_wait_seconds=60) == receivers[1:]
    client.interrupt()
    with pytest.raises(ServiceBusConnectionError):
        receivers[0].receive(1, max_wait_seconds=60)
    begun = time.monotonic()
    assert wait_for_any(receivers, max_wait_seconds=60) == receivers[1:]
    assert time.monotonic() - begun < 30
    assert names(take(receivers[1], 1)) == ["b"]


def test_a_session_entity_is_not_received_from(client):
    with pytest.raises(ServiceBusError, match="session"):
        client.receiver("sessions", credit=1).receive(1, max_wait_seconds=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"credit": 0}, "is 0, but must"), ({"credit": 1, "mode": "peek"}, "peekLock or")],
)
def test_impossible_receivers_are_refused(client, options, said):
    with pytest.raises(ValueError, match=said):
        client.receiver("q", **options)


def test_at_least_one_message_must_be_asked_for(client):
    with pytest.raises(ValueError, match="max_count is 0"):
        client.receiver("q", credit=1).receive(0, max_wait_seconds=0)


def test_no_more_messages_than_at_most_are_requested(client):
    client.sender("q").send(messages(30))
    receiver = client.receiver("q", credit=8, at_most=20, mode="receiveAndDelete")
    taken = take(receiver, 20)
    assert receiver.receive(10, max_wait_seconds=0.1) == receiver.close() == []
    assert names(taken) == [f"m-{number}" for number in range(20)]
    assert len(client.management("q").peek(1, 100)) == 10


@pytest.mark.parametrize(("size", "expected"), [(50_000, 10), (100, 40)])
def test_credit_follows_the_size_of_the_messages(client, size, expected):
    """With receiveAndDelete, a stop returns what the service had sent for the credit."""
    sent = messages(60, body=bytes(size))
    for at in range(0, 60, 4):
        client.sender("q").send(sent[at : at + 4])
    receiver = client.receiver("q", credit=40, mode="receiveAndDelete", bytes_max=501_000)
    [one] = receiver.receive(1, max_wait_seconds=20)
    assert names([one]) == ["m-0"]

    rest = receiver.stop()

    assert abs(len(rest) - expected) <= 1


def test_with_the_size_of_the_messages_the_first_credit_is_the_full_one(client):
    client.sender("q").send(messages(60, body=b"x" * 100))
    receiver = client.receiver(
        "q", credit=40, mode="receiveAndDelete", bytes_max=501_000, message_bytes=150
    )
    receiver.open()

    assert len(receiver.stop()) == 40  # what the service had sent for the first credit


def test_a_receiver_that_is_limited_asks_for_no_more_and_has_none_to_release(client):
    client.sender("q").send(messages(30))
    receiver = client.receiver("q", credit=10)
    for first in (0, 12):
        receiver.limit_to(12)
        taken = take(receiver, 12)
        assert names(taken) == [f"m-{number}" for number in range(first, first + 12)]
        assert receiver.receive(30, max_wait_seconds=0.1) == []
        assert not receiver.has_credit
        assert receiver.stop() == []
        receiver.complete(taken)


def test_stop_granting_keeps_the_granted_credit_and_ends_with_a_stop(client):
    client.sender("q").send(messages(30))
    receiver = client.receiver("q", credit=10)
    first = take(receiver, 1)  # which asks for one more in its place, or will
    receiver.stop_granting()
    assert receiver.has_credit or len(first) == 1
    rest = take(receiver, 9)
    while receiver.has_credit or receiver.has_messages:
        rest += receiver.receive(30, max_wait_seconds=30)
    assert 9 <= len(rest) <= 10
    assert receiver.receive(30, max_wait_seconds=0.1) == []
    receiver.stop()
    assert len(take(receiver, 5)) == 5


def test_several_receivers_stop_in_one_go_and_give_back_what_they_have(client):
    receivers = [client.receiver(path, credit=10) for path in ("q", "other")]
    for receiver in receivers:
        client.sender(receiver.path).send(messages(10))
        take(receiver, 1)
    assert stop_all(receivers) == []
    for receiver in receivers:
        again = client.receiver(receiver.path, credit=10)
        assert names(take(again, 9)) == [f"m-{number}" for number in range(1, 10)]


def test_several_are_attached_in_the_time_of_one_and_failures_are_raised_later(client, broker):
    client.open()
    paths = ["q", "other", "nowhere", "events/Subscriptions/audit"]
    receivers = [client.receiver(path, credit=5) for path in paths]
    with broker.faults.slow(latency_seconds=0.5):
        began = time.monotonic()
        attach_all(receivers)
        took = time.monotonic() - began
    assert took < 0.5 * 2 * len(paths), "a token and a link each, one after the other"
    for path, receiver in (("q", receivers[0]), ("other", receivers[1]), ("events", receivers[3])):
        client.sender(path).send(messages(3))
        assert len(take(receiver, 3)) == 3
    with pytest.raises(ServiceBusError):
        receivers[2].receive(1, max_wait_seconds=1)


def test_more_links_are_tried_than_a_connection_may_have():
    paths = [f"q{number}" for number in range(260)]
    with (
        Broker(queues=paths) as broker,
        Address.from_connection_string(broker.connection_string).client() as client,
    ):
        for _ in range(2):  # the second time, no requests for tokens come between the groups
            errors = attach_each([client.receiver(path, credit=1) for path in (*paths, "nowhere")])
            assert errors[:-1] == [None] * 260
            assert errors[-1] is not None


def test_the_error_of_a_credential_is_raised_by_the_call_that_needs_it(connect):
    class Failing:
        def get_token(self, *scopes, **options):
            raise OSError("no metadata service")

    client = connect()
    broken = FastClient(
        client.namespace, Failing(), use_tls=False, port=int(client.namespace.partition(":")[2])
    )
    receivers = [broken.receiver(path, credit=5) for path in ("q", "other")]
    attach_all(receivers)
    with pytest.raises(OSError, match="metadata"):
        receivers[0].receive(1, max_wait_seconds=1)
    broken.close()


def test_what_has_arrived_is_taken_by_count_and_by_size(client, connect):
    connect().sender("q").send(messages(10, body=bytes(1_000)))
    receiver = client.receiver("q", credit=10)
    assert receiver.take(5, max_bytes=5_000) == []
    assert wait_together([client], lambda: not receiver.has_credit, time.monotonic() + 60)
    assert receiver.buffered_bytes > 10_000
    assert names(receiver.take(2, max_bytes=1_000_000)) == ["m-0", "m-1"]
    assert names(receiver.take(5, max_bytes=4_000)) == ["m-2", "m-3", "m-4"]
    assert names(receiver.take(5, max_bytes=1)) == ["m-5"]
    assert 4_000 < receiver.buffered_bytes < 5_000
    assert names(receiver.take(5, max_bytes=1_000_000)) == ["m-6", "m-7", "m-8", "m-9"]
    assert receiver.buffered_bytes == 0


def test_an_entity_says_that_it_is_empty_and_messages_that_come_later_are_received(client, connect):
    receiver = client.receiver("q", credit=10)
    receiver.take(1, max_bytes=1)
    receiver.ask_for_the_rest()
    assert receiver.is_draining
    assert wait_together([client], lambda: not receiver.has_credit, time.monotonic() + 60)
    assert not receiver.has_messages
    receiver.stop()
    connect().sender("q").send(messages(1))
    assert names(take(receiver, 1)) == ["m-0"]


def test_asking_for_the_rest_of_an_entity_brings_it_and_ends_with_the_next_take(client, connect):
    connect().sender("q").send(messages(3))
    receiver = client.receiver("q", credit=10)
    receiver.take(1, max_bytes=1)
    receiver.ask_for_the_rest()
    assert wait_together([client], lambda: not receiver.has_credit, time.monotonic() + 60)
    assert names(receiver.take(10, max_bytes=1_000)) == ["m-0", "m-1", "m-2"]
    assert not receiver.is_draining
    assert receiver.has_credit
