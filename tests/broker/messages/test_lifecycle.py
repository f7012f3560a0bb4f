"""Decisions about one message: tables of cases, no clock, no file."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import Status
from pairbus.broker.entities.durations import INFINITE
from pairbus.broker.message import MessageState
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.lifecycle import (
    REASON_DELIVERIES,
    REASON_EXPIRED,
    DeadLetter,
    Defer,
    MailboxKind,
    MakeAvailable,
    Refuse,
    Remove,
    Settlement,
    Times,
)
from tests.broker.world import queue, stored_message

NOW = 1_800_000_000_000
MAIN, DEAD_LETTER, TRANSFER = (
    MailboxKind.MAIN,
    MailboxKind.DEAD_LETTER,
    MailboxKind.TRANSFER_DEAD_LETTER,
)


# -- in ---------------------------------------------------------------------------------------

TIMES_TO_LIVE = {
    "neither says anything: for ever": (INFINITE, None, None),
    "only the queue does": (timedelta(seconds=60), None, 60_000),
    "only the message does": (INFINITE, 5_000, 5_000),
    "the message's is smaller": (timedelta(seconds=60), 5_000, 5_000),
    "the queue's is smaller": (timedelta(seconds=60), 90_000, 60_000),
    "zero is a time, too": (INFINITE, 0, 0),
}


@pytest.mark.req("B-05")
@pytest.mark.parametrize(("default", "own", "expected"), TIMES_TO_LIVE.values(), ids=TIMES_TO_LIVE)
def test_the_smaller_time_to_live_holds(default, own, expected):
    description = queue(default_message_time_to_live=default)

    assert lifecycle.effective_ttl_ms(description, own) == expected


ENQUEUED = {
    "a plain message is active and never expires": (
        {"ttl_ms": None, "due_ms": None},
        Times(MessageState.ACTIVE, NOW, None, None, None),
    ),
    "a time to live counts from now": (
        {"ttl_ms": 1000, "due_ms": None},
        Times(MessageState.ACTIVE, NOW, 1000, NOW + 1000, None),
    ),
    "a scheduled message waits, and its time to live with it": (
        {"ttl_ms": 1000, "due_ms": NOW + 1},
        Times(MessageState.SCHEDULED, NOW, 1000, None, NOW + 1),
    ),
    "scheduled for this very moment is now": (
        {"ttl_ms": None, "due_ms": NOW},
        Times(MessageState.ACTIVE, NOW, None, None, None),
    ),
    "scheduled for the past is now": (
        {"ttl_ms": 7, "due_ms": NOW - 9999},
        Times(MessageState.ACTIVE, NOW, 7, NOW + 7, None),
    ),
}


@pytest.mark.req("B-05")
@pytest.mark.parametrize(("asked", "expected"), ENQUEUED.values(), ids=ENQUEUED)
def test_times_at_enqueue(asked, expected):
    assert lifecycle.times_at_enqueue(queue(), now_ms=NOW, **asked) == expected


@pytest.mark.req("B-05")
@given(
    default=st.one_of(st.none(), st.integers(1000, 10**9)),
    own=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    due=st.one_of(st.none(), st.integers(NOW - 10**9, NOW + 10**9)),
)
def test_a_message_never_expires_later_than_anybody_said(default, own, due):
    life = INFINITE if default is None else timedelta(milliseconds=default)

    times = lifecycle.times_at_enqueue(
        queue(default_message_time_to_live=life), ttl_ms=own, due_ms=due, now_ms=NOW
    )

    said = [ttl for ttl in (default, own) if ttl is not None]
    if times.state == MessageState.SCHEDULED:
        assert (times.due_ms, times.expires_ms) == (due, None)
    elif said:
        assert times.expires_ms == NOW + min(said)
    else:
        assert times.expires_ms is None


STATUSES = {
    Status.ACTIVE: (True, True),
    Status.DISABLED: (False, False),
    Status.SEND_DISABLED: (False, True),
    Status.RECEIVE_DISABLED: (True, False),
}


@pytest.mark.parametrize(("status", "allowed"), STATUSES.items(), ids=STATUSES)
def test_a_queues_status_decides_who_may_send_and_receive(status, allowed):
    description = queue(status=status)

    refusals = (
        lifecycle.refusal_to_send(description),
        lifecycle.refusal_to_receive(description, MAIN),
    )

    assert tuple(refusal is None for refusal in refusals) == allowed
    for refusal in refusals:
        if refusal is not None:
            assert refusal.condition == "com.microsoft:entity-disabled"
            assert "'q'" in refusal.description
            assert status.value in refusal.description


def test_a_forwarding_queue_delivers_only_its_dead_letters():
    description = queue(forward_to="there")

    refusal = lifecycle.refusal_to_receive(description, MAIN)

    assert refusal is not None
    assert refusal.condition == "amqp:not-allowed"
    assert "'there'" in refusal.description
    assert lifecycle.refusal_to_receive(description, DEAD_LETTER) is None
    assert lifecycle.refusal_to_receive(description, TRANSFER) is None


OWN_FAULTS = {
    "the largest that fits": (queue(), 256 * 1024, None, None),
    "one byte more": (queue(), 256 * 1024 + 1, None, "amqp:link:message-size-exceeded"),
    "no session where one is needed": (queue(requires_session=True), 9, None, "amqp:not-allowed"),
    "a session where one is needed": (queue(requires_session=True), 9, "s", None),
    "an empty session id is one": (queue(requires_session=True), 9, "", None),
}


@pytest.mark.req("B-09")
@pytest.mark.parametrize(
    ("description", "size", "session_id", "condition"), OWN_FAULTS.values(), ids=OWN_FAULTS
)
def test_a_message_may_be_at_fault_itself(description, size, session_id, condition):
    refusal = lifecycle.refusal_of_message(description, size=size, session_id=session_id)

    assert (refusal and refusal.condition) == condition


def test_a_queue_is_full_when_a_message_more_would_not_fit():
    description = queue(max_size_in_megabytes=1)
    limit = 1024 * 1024

    assert lifecycle.refusal_of_size(description, used=limit - 10, added=10) is None
    refusal = lifecycle.refusal_of_size(description, used=limit - 10, added=11)

    assert refusal == AmqpError(
        "amqp:resource-limit-exceeded",
        "queue 'q' is full: 1048566 of 1048576 bytes are used, and 11 more do not fit",
    )


# -- out --------------------------------------------------------------------------------------

ACTIVE, DEFERRED = MessageState.ACTIVE, MessageState.DEFERRED
COMPLETE, ABANDON, DEFER, DEAD, RELEASE = (
    Settlement.COMPLETE,
    Settlement.ABANDON,
    Settlement.DEFER,
    Settlement.DEAD_LETTER,
    Settlement.RELEASE,
)
TOO_OFTEN = DeadLetter(
    REASON_DELIVERIES, "Message could not be consumed after 3 delivery attempts."
)

SETTLED = {
    "completed: gone": (COMPLETE, MAIN, ACTIVE, 0, Remove()),
    "completed in the dead-letter queue: gone": (COMPLETE, DEAD_LETTER, ACTIVE, 9, Remove()),
    "completed after it was deferred: gone": (COMPLETE, MAIN, DEFERRED, 0, Remove()),
    "released: as if it had not been delivered": (RELEASE, MAIN, ACTIVE, 2, MakeAvailable(2)),
    "abandoned: one failed delivery": (ABANDON, MAIN, ACTIVE, 0, MakeAvailable(1)),
    "abandoned before the last chance": (ABANDON, MAIN, ACTIVE, 1, MakeAvailable(2)),
    "abandoned at the last chance": (ABANDON, MAIN, ACTIVE, 2, TOO_OFTEN),
    "abandoned dead letters are counted": (
        ABANDON,
        DEAD_LETTER,
        ACTIVE,
        7,
        MakeAvailable(8),
    ),
    "the same for transfer dead letters": (ABANDON, TRANSFER, ACTIVE, 7, MakeAvailable(8)),
    "abandoned after it was deferred: deferred": (ABANDON, MAIN, DEFERRED, 9, Defer(10)),
    "deferred counts no delivery": (DEFER, MAIN, ACTIVE, 1, Defer(1)),
    "deferred again": (DEFER, MAIN, DEFERRED, 1, Defer(1)),
    "dead-lettered with its reason": (DEAD, MAIN, ACTIVE, 0, DeadLetter("why", "because")),
    "dead-lettered after it was deferred": (DEAD, MAIN, DEFERRED, 0, DeadLetter("why", "because")),
}


@pytest.mark.req("B-03", "B-04")
@pytest.mark.parametrize(
    ("settlement", "kind", "state", "delivery_count", "expected"), SETTLED.values(), ids=SETTLED
)
def test_a_settlement_leads_to_a_decision(settlement, kind, state, delivery_count, expected):
    decision = lifecycle.settled(
        settlement,
        stored_message(state=state, delivery_count=delivery_count),
        queue(max_delivery_count=3),
        kind,
        reason="why",
        description="because",
    )

    assert decision == expected


def test_every_settlement_has_its_case():
    assert {case[0] for case in SETTLED.values()} == set(Settlement)


@pytest.mark.parametrize("kind", [DEAD_LETTER, TRANSFER])
def test_a_dead_letter_cannot_be_dead_lettered(kind):
    decision = lifecycle.settled(DEAD, stored_message(), queue(), kind)

    assert isinstance(decision, Refuse)
    assert decision.error.condition == "amqp:not-allowed"
    assert "'q'" in decision.error.description


LOCK_EXPIRED = {
    "an expired lock is a failed delivery": (MAIN, ACTIVE, 0, MakeAvailable(1)),
    "and may be the last": (MAIN, ACTIVE, 2, TOO_OFTEN),
    "a dead letter just comes back": (DEAD_LETTER, ACTIVE, 2, MakeAvailable(3)),
    "a deferred message stays deferred": (MAIN, DEFERRED, 2, Defer(3)),
}


@pytest.mark.req("B-03", "B-04")
@pytest.mark.parametrize(
    ("kind", "state", "delivery_count", "expected"), LOCK_EXPIRED.values(), ids=LOCK_EXPIRED
)
def test_an_expired_lock_leads_to_a_decision(kind, state, delivery_count, expected):
    expired = stored_message(state=state, delivery_count=delivery_count)

    assert lifecycle.delivery_failed(expired, queue(max_delivery_count=3), kind) == expected


@pytest.mark.req("B-04")
@given(limit=st.integers(1, 50), start=st.integers(0, 60))
def test_a_message_is_delivered_as_often_as_the_queue_says(limit, start):
    description = queue(max_delivery_count=limit)
    count, deliveries = start, 0
    while True:  # ends: each lap adds one
        deliveries += 1
        decision = lifecycle.delivery_failed(
            stored_message(delivery_count=count), description, MAIN
        )
        if isinstance(decision, DeadLetter):
            break
        assert decision == MakeAvailable(count + 1)
        count += 1

    assert deliveries == max(1, limit - start)


@pytest.mark.req("B-05")
def test_a_message_expires_at_its_time_and_not_before():
    assert not lifecycle.is_expired(stored_message(), now_ms=NOW)
    assert not lifecycle.is_expired(stored_message(expires_ms=NOW + 1), now_ms=NOW)
    assert lifecycle.is_expired(stored_message(expires_ms=NOW), now_ms=NOW)


@pytest.mark.req("B-04")
def test_the_queue_decides_what_happens_to_expired_messages():
    kept = lifecycle.expired(queue(dead_lettering_on_message_expiration=True))

    assert lifecycle.expired(queue()) == Remove()
    assert isinstance(kept, DeadLetter)
    assert kept.reason == REASON_EXPIRED
    assert kept.description
