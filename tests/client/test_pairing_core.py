"""What a paired client decides: one router under one lock, and observers that are notified."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pairbus.client.pairing import PairingCore
from pairbus.client.route.router import Nowhere, Ping, Probe, ToBacklog, ToPrimary
from pairbus.client.sdk.errors import PairingError
from pairbus.client.timing import READY_RETRY_SECONDS
from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Closed,
    Diverted,
    Event,
    FailedBack,
    FailedOver,
    Paired,
    PrimaryFailed,
    Recovered,
    SendFailed,
    Throttled,
)
from tests.client.fakes import Clock, busy, outage, pairing_of

PATH = "orders"


def to_primary(pairing: PairingCore, path: str = PATH) -> ToPrimary:
    plan = pairing.plan(path)
    assert isinstance(plan, ToPrimary)
    return plan


def to_backlog(pairing: PairingCore, path: str = PATH) -> ToBacklog:
    plan = pairing.plan(path)
    assert isinstance(plan, ToBacklog)
    return plan


def fail_over(pairing: PairingCore, path: str = PATH) -> ToBacklog:
    assert pairing.failed(path, to_primary(pairing, path), outage())
    return to_backlog(pairing, path)


# --- what it starts from


def test_names_and_bounds_are_those_of_the_clients_and_the_options(clock: Clock) -> None:
    pairing, _ = pairing_of(
        clock,
        queues=2,
        retry_total=5,
        send_timeout=timedelta(seconds=20),
        throttle_wait=timedelta(seconds=12),
    )

    assert pairing.namespace == "contoso"
    assert pairing.secondary == "backup.servicebus.windows.net"
    assert pairing.backlog_queues == (
        "contoso/x-servicebus-transfer/0",
        "contoso/x-servicebus-transfer/1",
    )
    assert pairing.timing.send_seconds == 20.0
    assert (pairing.timing.throttle_wait_seconds, pairing.timing.throttle_waits_max) == (12.0, 5)
    assert pairing.is_ready_mode


# --- decisions, and who is notified of them


@pytest.mark.req("F-04")
def test_observers_are_notified_of_each_decision(clock: Clock) -> None:
    pairing, events = pairing_of(clock, failover_interval=timedelta(seconds=10))
    first = to_primary(pairing)

    assert not pairing.failed(PATH, first, outage())
    pairing.sent(PATH, first, count=1)
    assert not pairing.failed(PATH, first, outage())
    clock.advance(10)
    way = to_backlog(pairing)
    pairing.sent(PATH, way, count=3, seconds=0.5)
    pairing.throttled(PATH, way, busy())
    pairing.failed(PATH, way, outage())
    pairing.send_failed(PATH, pairing.causes(PATH))
    pairing.probe_ended(way.queue, None)
    assert pairing.mark_path_healthy(PATH)

    assert [type(event) for event in events] == [
        PrimaryFailed,
        Recovered,
        PrimaryFailed,
        FailedOver,
        Diverted,
        Throttled,
        BacklogWithdrawn,
        SendFailed,
        BacklogReadmitted,
        FailedBack,
    ]
    assert {event.namespace for event in events} == {"contoso"}


def test_an_observer_may_use_the_pairing_that_notifies_it(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    answers: list[Any] = []

    def ask(event: Event) -> None:
        if isinstance(event, FailedOver):
            answers.append(pairing.status().failed_over)
            answers.append(pairing.plan(PATH))
            answers.append(pairing.mark_path_healthy(PATH))

    pairing.observe(ask)
    assert pairing.failed(PATH, to_primary(pairing), outage())

    assert answers[0] == (PATH,)
    assert isinstance(answers[1], ToBacklog)
    assert answers[2] is True
    assert isinstance(pairing.plan(PATH), ToPrimary)


def test_an_observer_can_be_removed(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    events: list[Event] = []
    end = pairing.observe(events.append)
    end()

    fail_over(pairing)

    assert events == []


def test_a_call_that_began_in_the_backlog_stays_there_when_the_entity_is_back(
    clock: Clock,
) -> None:
    pairing, _ = pairing_of(clock)
    fail_over(pairing)
    pairing.mark_path_healthy(PATH)

    assert isinstance(pairing.plan(PATH), ToPrimary)
    assert isinstance(pairing.plan(PATH, is_begun=True), ToBacklog)


def test_where_no_queue_is_left_both_causes_are_known(clock: Clock) -> None:
    pairing, _ = pairing_of(clock, queues=1)
    primary_error, backlog_error = outage(), outage()
    pairing.failed(PATH, to_primary(pairing), primary_error)
    pairing.failed(PATH, to_backlog(pairing), backlog_error)

    expected = Nowhere(primary_error, backlog_error)

    assert pairing.plan(PATH) == expected
    assert pairing.plan(PATH, is_begun=True) == expected
    assert pairing.causes(PATH) == expected


@pytest.mark.req("F-06")
def test_the_sdk_retries_on_a_backlog_queue_only_if_there_is_no_other(clock: Clock) -> None:
    pairing, _ = pairing_of(clock, queues=2)
    assert pairing.backlog_retries() == 0

    pairing.failed(PATH, fail_over(pairing), outage())

    assert pairing.backlog_retries() == 3  # as the secondary's client was told


# --- by hand


@pytest.mark.req("A-11")
def test_marking_a_path_healthy_brings_it_back_and_says_whether_it_was_away(
    clock: Clock,
) -> None:
    pairing, events = pairing_of(clock)
    fail_over(pairing)

    assert pairing.mark_path_healthy("ORDERS") is True
    assert pairing.mark_path_healthy(PATH) is False
    assert isinstance(events[-1], FailedBack)
    assert events[-1].reason == "by hand"


@pytest.mark.req("A-11")
def test_a_path_that_no_sender_uses_is_refused_with_those_that_are(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    with pytest.raises(PairingError, match=r"sends to 'payments'; the entities it knows: none$"):
        pairing.mark_path_healthy("payments")

    pairing.plan("orders")
    pairing.plan("invoices")

    with pytest.raises(PairingError, match=r"it knows: 'orders', 'invoices'$") as caught:
        pairing.mark_path_healthy("payments")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- status


def test_the_status_has_dates_of_now(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    before = datetime.now(UTC)
    fail_over(pairing)
    clock.advance(5)

    status = pairing.status()

    assert abs((status.entity(PATH).since - before).total_seconds() + 5) < 5
    assert status.namespace == "contoso"
    assert status.secondary == "backup.servicebus.windows.net"


# --- the background


def test_the_first_ping_is_due_in_the_second_half_of_its_interval(clock: Clock) -> None:
    pairing, _ = pairing_of(clock, secondary_connections="lazy")
    fail_over(pairing)
    tasks, due, _ = pairing.take_due_tasks(lambda queue: False)
    assert tasks == []
    assert due is not None
    assert 1030.0 <= due <= 1060.0

    clock.advance(60)
    tasks, next_due, _ = pairing.take_due_tasks(lambda queue: False)

    assert tasks == [Ping(PATH, 0)]
    assert next_due is None or next_due > clock.now


def test_what_an_entity_would_use_is_to_be_made_ready(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    with pairing.decide() as router:
        queue = router.register(PATH, now=clock.now)

    tasks, _, wanted = pairing.take_due_tasks(lambda queue: False)

    assert wanted == (queue,)
    assert tasks == [Probe(str(queue))]
    assert pairing.take_due_tasks(lambda queue: True)[0] == []


def test_what_could_not_be_made_ready_is_left_alone_for_a_while(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    to_primary(pairing)
    [probe] = pairing.take_due_tasks(lambda queue: False)[0]
    assert isinstance(probe, Probe)

    pairing.probe_ended(probe.queue, outage())

    assert pairing.take_due_tasks(lambda queue: False)[0] == []
    clock.advance(READY_RETRY_SECONDS)
    assert pairing.take_due_tasks(lambda queue: False)[0] == [probe]


def test_what_was_made_ready_and_broke_is_made_ready_again_at_once(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    to_primary(pairing)
    [probe] = pairing.take_due_tasks(lambda queue: False)[0]
    assert isinstance(probe, Probe)

    pairing.probe_ended(probe.queue, None)

    assert pairing.take_due_tasks(lambda queue: True)[0] == []
    assert pairing.take_due_tasks(lambda queue: False)[0] == [probe]


def test_where_connections_are_made_lazily_none_is_made_ready(clock: Clock) -> None:
    pairing, _ = pairing_of(clock, secondary_connections="lazy")
    to_primary(pairing)

    assert pairing.take_due_tasks(lambda queue: False) == ([], None, ())


def test_a_withdrawn_queue_is_probed_and_comes_back(clock: Clock) -> None:
    pairing, _ = pairing_of(clock, queues=1, secondary_connections="lazy")
    way = fail_over(pairing)
    pairing.failed(PATH, way, outage())
    clock.advance(30)

    assert pairing.take_due_tasks(lambda queue: False)[0] == [Probe(way.queue)]
    pairing.probe_ended(way.queue, outage())
    assert isinstance(pairing.plan(PATH), Nowhere)
    clock.advance(30)
    assert Probe(way.queue) in pairing.take_due_tasks(lambda queue: False)[0]
    pairing.probe_ended(way.queue, None)

    assert isinstance(pairing.plan(PATH), ToBacklog)


# --- beginning and end


def test_the_end_is_reported_if_the_beginning_was(clock: Clock) -> None:
    pairing, events = pairing_of(clock, queues=1)

    pairing.announce()
    pairing.close_router()
    pairing.close_router()

    assert events == [
        Paired(namespace="contoso", backlog_queues=("contoso/x-servicebus-transfer/0",), made=()),
        Closed(namespace="contoso"),
    ]
    assert pairing.status().is_closed


@pytest.mark.req("A-07")
def test_a_pairing_that_never_was_does_not_end(clock: Clock) -> None:
    pairing, events = pairing_of(clock)

    pairing.close_router()

    assert events == []


@pytest.mark.req("G-03")
def test_nothing_is_due_after_the_end(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    fail_over(pairing)

    pairing.close_router()
    clock.advance(3600)

    tasks, next_due, _ = pairing.take_due_tasks(lambda queue: True)
    assert (tasks, next_due) == ([], None)


def test_a_refused_connection_is_reported_with_a_remedy(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)

    error = pairing.not_connected("q", outage())

    assert str(error) == (
        "could not open a sender link to backlog queue 'q' on the secondary "
        "'backup.servicebus.windows.net': the connection is gone; it must be up, and "
        "messaging_factory must be able to connect to it"
    )
    assert error.queue == "q"


# --- threads


@pytest.mark.req("F-05")
def test_threads_that_fail_at_once_fail_the_entity_over_once(clock: Clock) -> None:
    pairing, events = pairing_of(clock)
    together = threading.Barrier(8)
    again: list[bool] = []

    def fail() -> None:
        plan = to_primary(pairing)
        together.wait()
        again.append(pairing.failed(PATH, plan, outage()))
        pairing.sent(PATH, to_backlog(pairing), count=1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fail) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert again == [True] * 8
    assert [type(event) for event in events].count(FailedOver) == 1
    assert pairing.status().entity(PATH).diverted == 8
    assert {to_backlog(pairing).queue} == {
        event.backlog_queue for event in events if isinstance(event, Diverted)
    }


# --- the router behind it


def test_the_router_has_the_periods_of_the_options(clock: Clock) -> None:
    pairing, _ = pairing_of(
        clock,
        failover_interval=timedelta(seconds=7),
        ping_primary_interval=timedelta(seconds=3),
        secondary_connections="lazy",
    )
    assert not pairing.failed(PATH, to_primary(pairing), outage())

    assert pairing.take_due_tasks(lambda queue: True)[1] == clock.now + 7
    clock.advance(7)
    to_backlog(pairing)
    due = pairing.take_due_tasks(lambda queue: True)[1]
    assert due is not None
    assert clock.now + 1.5 <= due <= clock.now + 3


@pytest.mark.req("Q-05")
def test_entities_spread_over_the_backlog_queues(clock: Clock) -> None:
    pairing, _ = pairing_of(clock, queues=2)

    with pairing.decide() as router:
        picked = {router.register(f"entity {number}", now=0.0) for number in range(64)}

    assert picked == set(pairing.backlog_queues)  # that all 64 agree happens once in 2**63
