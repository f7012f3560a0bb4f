"""What a paired client decides: one router under one lock, and observers that are notified."""

from __future__ import annotations

import gc
import threading
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pairbus.client import tasks
from pairbus.client.pairing import PairingCore
from pairbus.client.route.plans import Ping, Probe, ToBacklog, ToPrimary
from pairbus.client.sdk.pairing_errors import PairingError
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
from pairbus.telemetry.sends import SendTotals
from tests.client.fakes import Clock, busy, outage, pairing_of, run_in_threads

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


# --- by hand


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
    tasks, due = pairing.take_due_tasks()
    assert tasks == []
    assert due is not None
    assert 1030.0 <= due <= 1060.0

    clock.advance(60)
    tasks, next_due = pairing.take_due_tasks()

    assert tasks == [Ping(PATH, 0)]
    assert next_due is None or next_due > clock.now


def test_what_an_entity_would_use_is_to_be_made_ready(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    with pairing.decide() as router:
        queue = router.register(PATH, now=clock.now)

    tasks, _ = pairing.take_due_tasks()

    assert pairing.pool.kept == {queue}
    assert tasks == [Probe(str(queue))]
    pairing.pool.is_ready = True
    assert pairing.take_due_tasks()[0] == []


def test_what_could_not_be_made_ready_is_left_alone_for_a_while(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    to_primary(pairing)
    [probe] = pairing.take_due_tasks()[0]
    assert isinstance(probe, Probe)

    pairing.probe_ended(probe.queue, outage())

    assert pairing.take_due_tasks()[0] == []
    clock.advance(READY_RETRY_SECONDS)
    assert pairing.take_due_tasks()[0] == [probe]


def test_what_was_made_ready_and_broke_is_made_ready_again_at_once(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)
    to_primary(pairing)
    [probe] = pairing.take_due_tasks()[0]
    assert isinstance(probe, Probe)

    pairing.probe_ended(probe.queue, None)

    pairing.pool.is_ready = True
    assert pairing.take_due_tasks()[0] == []
    pairing.pool.is_ready = False
    assert pairing.take_due_tasks()[0] == [probe]


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


def test_a_refused_connection_is_reported_with_a_remedy(clock: Clock) -> None:
    pairing, _ = pairing_of(clock)

    error = tasks.not_connected(pairing, "q", outage())

    assert str(error) == (
        "could not open a sender link to backlog queue 'q' on the secondary "
        "'backup.servicebus.windows.net': the connection is gone; it must be up, and "
        "messaging_factory must be able to connect to it"
    )
    assert error.queue == "q"


class Counting:
    """An observer with metrics, which outlive every client."""

    def __init__(self) -> None:
        self.totals = SendTotals()
        self.watch_sends = self.totals.watch_sends

    def __call__(self, event: Event) -> None: ...


def test_metrics_do_not_keep_a_client_that_was_dropped_without_closing_it(clock: Clock) -> None:
    counting = Counting()
    pairing, _ = pairing_of(clock, observers=[counting])
    pairing.announce()
    pairing.sent(PATH, to_primary(pairing), count=3)
    dropped = weakref.ref(pairing)

    del pairing
    gc.collect()

    assert dropped() is None
    assert counting.totals.totals() == {("contoso", PATH): 3}


# --- threads


def test_a_signal_handler_may_close_the_client_during_a_decision_while_metrics_are_read(
    clock: Clock,
) -> None:
    counting = Counting()
    pairing, _ = pairing_of(clock, observers=[counting])
    pairing.announce()
    pairing.sent(PATH, to_primary(pairing), count=3)
    totals: list[Any] = []
    reader = threading.Thread(target=lambda: totals.append(counting.totals.totals()), daemon=True)

    with pairing.decide():  # and here comes the signal
        reader.start()
        reader.join(30)
        assert totals == [{("contoso", PATH): 3}]
        pairing.close_router()


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

    run_in_threads(fail)

    assert again == [True] * 8
    assert [type(event) for event in events].count(FailedOver) == 1
    assert pairing.status().entity(PATH).diverted == 8
    assert {to_backlog(pairing).queue} == {
        event.backlog_queue for event in events if isinstance(event, Diverted)
    }
