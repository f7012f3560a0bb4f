"""Settling: in ranges, by lock token, and what happens when it fails."""

from __future__ import annotations

import math
import time
from contextlib import suppress

import pytest
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from pairbus.amqp.codec.sections import read_application_properties, slice_message
from pairbus.fast.errors import SettleFailed
from tests.fast.world import delivery_counts, exhaust, left, messages, names, take
from tests.waiting import wait_until


@pytest.fixture
def receiver(client):
    client.sender("q").send(messages(10))
    return client.receiver("q", credit=10)


def test_messages_are_completed_in_any_order_and_with_gaps(client, receiver):
    taken = take(receiver, 10)
    receiver.complete([taken[index] for index in (7, 0, 1, 9, 2)])
    assert left(client) == ["m-3", "m-4", "m-5", "m-6", "m-8"]
    receiver.complete([taken[index] for index in (3, 4, 5, 6, 8)])
    assert left(client) == []


def test_an_abandoned_message_comes_again_with_one_delivery_more(client, receiver):
    taken = take(receiver, 10)
    receiver.abandon(taken[:2])
    again = take(receiver, 2)
    assert names(again) == ["m-0", "m-1"]
    assert delivery_counts(again) == [1, 1]


def test_a_released_message_comes_again_as_if_it_had_not_been_lent(client, receiver):
    taken = take(receiver, 10)
    receiver.release(taken[:2])
    again = take(receiver, 2)
    assert names(again) == ["m-0", "m-1"]
    assert delivery_counts(again) == [0, 0]


def test_a_dead_letter_bears_its_reason_and_nothing_else(client, receiver):
    receiver.dead_letter(take(receiver, 2), reason="why", description="in detail")
    assert len(left(client)) == 8
    for data in client.management("q/$DeadLetterQueue").peek(1, 10):
        parts = slice_message(data)
        assert read_application_properties(parts.bare, parts.application_properties) == {
            "DeadLetterReason": "why",
            "DeadLetterErrorDescription": "in detail",
        }


def test_a_lost_lock_is_reported_for_its_message_and_the_others_are_settled(
    client, receiver, clock
):
    early = take(receiver, 3)
    clock.advance(40)
    late = take(receiver, 7)
    client.management("q").renew_locks(
        [early[1].lock_token_bytes, *(one.lock_token for one in late)]
    )
    clock.advance(40)
    with pytest.raises(SettleFailed) as caught:
        receiver.complete([*early, *late])
    failed = caught.value
    assert [one for one, _ in failed.failed] == [early[0], early[2]]
    assert all(isinstance(error, MessageLockLostError) for _, error in failed.failed)
    assert isinstance(failed.error, MessageLockLostError)
    assert failed.path == "q"
    assert left(client) == ["m-0", "m-2"]


def test_settling_twice_is_a_lost_lock(client, receiver):
    taken = take(receiver, 2)
    receiver.complete(taken)
    with pytest.raises(SettleFailed, match="2 messages of 'q'"):
        receiver.complete(taken)


def test_a_message_that_is_given_twice_is_settled_once(client, receiver):
    taken = take(receiver, 2)
    receiver.complete([*taken, taken[0]])
    assert client.usage().of("q").settle == 2
    assert left(client) == [f"m-{number}" for number in range(2, 10)]


def test_nothing_to_settle_is_no_work(receiver):
    receiver.complete([])
    receiver.abandon([])


def test_after_a_lost_connection_messages_are_settled_by_token(client, receiver):
    taken = take(receiver, 6)
    client.interrupt()
    with pytest.raises(ServiceBusConnectionError):
        receiver.complete(taken[:2])
    receiver.complete(taken[:2])
    receiver.dead_letter(taken[2:3], reason="why")
    receiver.abandon(taken[3:4])
    assert left(client, "q/$DeadLetterQueue") == ["m-2"]
    assert left(client) == [f"m-{number}" for number in range(3, 10)]


def test_messages_of_a_lost_link_and_of_the_new_one_are_settled_together(client, receiver):
    old = take(receiver, 2)
    client.interrupt()
    kept = take(receiver, 8)
    with pytest.raises(ServiceBusConnectionError):
        exhaust(receiver)
    client.sender("q").send(messages(2, first=10))
    new = take(receiver, 2)
    assert names(kept + new) == [f"m-{number}" for number in range(2, 12)]
    receiver.complete([*new, *old, *kept])
    assert left(client) == []


def test_of_many_tokens_those_that_are_lost_are_found(client, receiver, clock):
    taken = take(receiver, 10)
    good = [taken[index].lock_token_bytes for index in (1, 2, 5, 6, 7)]
    clock.advance(40)
    client.management("q").renew_locks(good)
    clock.advance(40)
    client.interrupt()
    with pytest.raises(ServiceBusConnectionError):
        exhaust(receiver)  # some had come before the cut
    with pytest.raises(SettleFailed) as caught:
        receiver.complete(taken)
    lost = {one for one, _ in caught.value.failed}
    assert lost == {taken[index] for index in (0, 3, 4, 8, 9)}
    assert left(client) == ["m-0", "m-3", "m-4", "m-8", "m-9"]


def test_a_busy_broker_raises_the_error_of_the_sdk(client, receiver, broker):
    taken = take(receiver, 2)
    with (
        broker.faults.throttle("q", on=["settle"]),
        pytest.raises(SettleFailed) as caught,
    ):
        receiver.complete(taken)
    assert isinstance(caught.value.error, ServiceBusServerBusyError)
    assert len(caught.value.failed) == 2


def test_waiting_for_a_settlement_times_out(client, broker):
    client.sender("q").send(messages(2))
    receiver = client.receiver("q", credit=2)
    taken = take(receiver, 2)
    with broker.faults.hang("q"):
        client.set_deadline(time.monotonic() + 0.2)
        with pytest.raises(OperationTimeoutError):
            receiver.complete(taken)
    client.set_deadline(math.inf)
    with pytest.raises(SettleFailed):  # it was done when the broker came to it
        receiver.complete(taken)
    assert left(client) == []


# -- begun, and answered later ---------------------------------------------------------------------


def test_a_started_settlement_is_answered_when_it_is_waited_for(client, receiver):
    taken = take(receiver, 10)
    first = receiver.start_completing(taken[:5])
    second = receiver.start_completing(taken[5:8])
    assert first.is_sent
    second.wait()
    first.wait()
    assert left(client) == ["m-8", "m-9"]


def test_a_started_settlement_survives_the_death_of_its_sender(broker, client, connect):
    client.sender("q").send(messages(10))
    dying = connect()
    receiver = dying.receiver("q", credit=10)
    begun = receiver.start_completing(take(receiver, 10))
    dying.interrupt()  # as the system does it for a process that was killed
    assert begun.is_sent
    wait_until(lambda: not left(client), "all are completed")


def test_a_settlement_without_an_answer_raises_and_can_be_tried_again(client, receiver, broker):
    taken = take(receiver, 10)
    with broker.faults.hang(entity="q"):
        begun = receiver.start_completing(taken[:5])
        client.set_deadline(time.monotonic() + 0.2)
        with pytest.raises(OperationTimeoutError):
            begun.wait()
    client.set_deadline(math.inf)
    with suppress(SettleFailed):  # where the first attempt was heard after all
        receiver.complete(taken[:5])
    assert set(left(client)) <= {f"m-{number}" for number in range(5, 10)}


def test_a_started_settlement_reports_lost_locks(client, receiver, clock):
    taken = take(receiver, 10)
    clock.advance(120)
    begun = receiver.start_completing(taken[:5])
    with pytest.raises(SettleFailed) as reported:
        begun.wait()
    assert len(reported.value.failed) == 5
