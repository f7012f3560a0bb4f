"""What a paired client decides: one router under one lock, told to whoever watches."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pairbus.client.pairing import CHORE_SECONDS_MAX, READY_AGAIN_SECONDS, Pair
from pairbus.client.route.router import Nowhere, Ping, Probe, ToBacklog, ToPrimary
from pairbus.client.sdk.errors import PairingError
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
from tests.client.fakes import Clock, outage, pair_of

PATH = "orders"


def to_primary(pair: Pair, path: str = PATH) -> ToPrimary:
    plan = pair.plan(path)
    assert isinstance(plan, ToPrimary)
    return plan


def to_backlog(pair: Pair, path: str = PATH) -> ToBacklog:
    plan = pair.plan(path)
    assert isinstance(plan, ToBacklog)
    return plan


def fail_over(pair: Pair, path: str = PATH) -> ToBacklog:
    assert pair.failed(path, to_primary(pair, path), outage())
    return to_backlog(pair, path)


# --- what it starts from


def test_names_and_bounds_are_those_of_the_clients_and_the_options(clock: Clock) -> None:
    pair, _ = pair_of(
        clock,
        queues=2,
        retry_total=5,
        send_timeout=timedelta(seconds=20),
        throttle_wait=timedelta(seconds=12),
    )

    assert pair.namespace == "contoso"
    assert pair.secondary == "backup.servicebus.windows.net"
    assert pair.backlog_queues == (
        "contoso/x-servicebus-transfer/0",
        "contoso/x-servicebus-transfer/1",
    )
    assert (pair.send_seconds, pair.throttle_seconds, pair.throttle_laps_max) == (20.0, 12.0, 5)
    assert pair.chore_seconds == 20.0
    assert pair.is_ready_mode


def test_a_chore_has_no_longer_than_its_bound_and_a_throttled_send_at_least_one_lap(
    clock: Clock,
) -> None:
    pair, _ = pair_of(clock, retry_total=0, secondary_connections="lazy")

    assert pair.send_seconds == 60.0
    assert pair.chore_seconds == CHORE_SECONDS_MAX
    assert pair.throttle_laps_max == 1
    assert not pair.is_ready_mode


# --- decisions, and what is told of them


@pytest.mark.req("F-04")
def test_each_decision_is_told_after_it_was_taken(clock: Clock) -> None:
    pair, told = pair_of(clock, failover_interval=timedelta(seconds=10))
    first = to_primary(pair)

    assert not pair.failed(PATH, first, outage())
    pair.sent(PATH, first, count=1)
    assert not pair.failed(PATH, first, outage())
    clock.advance(10)
    way = to_backlog(pair)
    pair.sent(PATH, way, count=3, seconds=0.5)
    pair.throttled(PATH, way)
    pair.failed(PATH, way, outage())
    pair.undeliverable(PATH, pair.causes(PATH))
    pair.probed(way.queue, None)
    assert pair.mark_path_healthy(PATH)

    assert [type(event) for event in told] == [
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
    assert {event.namespace for event in told} == {"contoso"}


def test_an_observer_may_ask_the_pair_that_tells_it(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    answers: list[Any] = []

    def ask(event: Event) -> None:
        if isinstance(event, FailedOver):
            answers.append(pair.status().failed_over)
            answers.append(pair.plan(PATH))
            answers.append(pair.mark_path_healthy(PATH))

    pair.observe(ask)
    assert pair.failed(PATH, to_primary(pair), outage())

    assert answers[0] == (PATH,)
    assert isinstance(answers[1], ToBacklog)
    assert answers[2] is True
    assert isinstance(pair.plan(PATH), ToPrimary)


def test_watching_can_be_ended(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    told: list[Event] = []
    end = pair.observe(told.append)
    end()

    fail_over(pair)

    assert told == []


def test_a_call_that_began_in_the_backlog_stays_there_when_the_entity_is_back(
    clock: Clock,
) -> None:
    pair, _ = pair_of(clock)
    fail_over(pair)
    pair.mark_path_healthy(PATH)

    assert isinstance(pair.plan(PATH), ToPrimary)
    assert isinstance(pair.plan(PATH, is_begun=True), ToBacklog)


def test_where_no_queue_is_left_both_causes_are_known(clock: Clock) -> None:
    pair, _ = pair_of(clock, queues=1)
    primary_error, backlog_error = outage(), outage()
    pair.failed(PATH, to_primary(pair), primary_error)
    pair.failed(PATH, to_backlog(pair), backlog_error)

    expected = Nowhere(primary_error, backlog_error)

    assert pair.plan(PATH) == expected
    assert pair.plan(PATH, is_begun=True) == expected
    assert pair.causes(PATH) == expected


@pytest.mark.req("F-06")
def test_the_sdk_retries_on_a_backlog_queue_only_if_there_is_no_other(clock: Clock) -> None:
    pair, _ = pair_of(clock, queues=2)
    assert pair.backlog_retries() == 0

    pair.failed(PATH, fail_over(pair), outage())

    assert pair.backlog_retries() == 3  # as the secondary's client was told


# --- by hand


@pytest.mark.req("A-11")
def test_marking_a_path_healthy_brings_it_back_and_says_whether_it_was_away(
    clock: Clock,
) -> None:
    pair, told = pair_of(clock)
    fail_over(pair)

    assert pair.mark_path_healthy("ORDERS") is True
    assert pair.mark_path_healthy(PATH) is False
    assert isinstance(told[-1], FailedBack)
    assert told[-1].reason == "by hand"


@pytest.mark.req("A-11")
def test_a_path_that_no_sender_uses_is_refused_with_those_that_are(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    with pytest.raises(PairingError, match=r"sends to 'payments'; the entities it knows: none$"):
        pair.mark_path_healthy("payments")

    pair.plan("orders")
    pair.plan("invoices")

    with pytest.raises(PairingError, match=r"it knows: 'orders', 'invoices'$") as caught:
        pair.mark_path_healthy("payments")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- status


def test_the_status_has_dates_of_now(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    before = datetime.now(UTC)
    fail_over(pair)
    clock.advance(5)

    status = pair.status()

    assert abs((status.entity(PATH).since - before).total_seconds() + 5) < 5
    assert status.namespace == "contoso"
    assert status.secondary == "backup.servicebus.windows.net"


# --- the background


def test_a_ping_is_due_after_its_interval_and_the_next_moment_is_told(clock: Clock) -> None:
    pair, _ = pair_of(clock, secondary_connections="lazy")
    fail_over(pair)
    assert pair.chores(lambda queue: False) == ([], 1060.0, ())

    clock.advance(60)
    chores, next_due, _ = pair.chores(lambda queue: False)

    assert chores == [Ping(PATH, 0)]
    assert next_due is None or next_due > clock.now


def test_what_an_entity_would_use_is_to_be_made_ready(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    with pair.deciding() as router:
        queue = router.register(PATH, now=clock.now)

    chores, _, wanted = pair.chores(lambda queue: False)

    assert wanted == (queue,)
    assert chores == [Probe(str(queue))]
    assert pair.chores(lambda queue: True)[0] == []


def test_what_could_not_be_made_ready_is_left_alone_for_a_while(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    to_primary(pair)
    [probe] = pair.chores(lambda queue: False)[0]
    assert isinstance(probe, Probe)

    pair.probed(probe.queue, outage())

    assert pair.chores(lambda queue: False)[0] == []
    clock.advance(READY_AGAIN_SECONDS)
    assert pair.chores(lambda queue: False)[0] == [probe]


def test_what_was_made_ready_and_broke_is_made_ready_again_at_once(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    to_primary(pair)
    [probe] = pair.chores(lambda queue: False)[0]
    assert isinstance(probe, Probe)

    pair.probed(probe.queue, None)

    assert pair.chores(lambda queue: True)[0] == []
    assert pair.chores(lambda queue: False)[0] == [probe]


def test_where_connections_are_made_lazily_none_is_made_ready(clock: Clock) -> None:
    pair, _ = pair_of(clock, secondary_connections="lazy")
    to_primary(pair)

    assert pair.chores(lambda queue: False) == ([], None, ())


def test_a_withdrawn_queue_is_probed_and_comes_back(clock: Clock) -> None:
    pair, _ = pair_of(clock, queues=1, secondary_connections="lazy")
    way = fail_over(pair)
    pair.failed(PATH, way, outage())
    clock.advance(30)

    assert pair.chores(lambda queue: False)[0] == [Probe(way.queue)]
    pair.probed(way.queue, outage())
    assert isinstance(pair.plan(PATH), Nowhere)
    clock.advance(30)
    assert Probe(way.queue) in pair.chores(lambda queue: False)[0]
    pair.probed(way.queue, None)

    assert isinstance(pair.plan(PATH), ToBacklog)


# --- beginning and end


def test_the_end_is_told_where_the_beginning_was(clock: Clock) -> None:
    pair, told = pair_of(clock, queues=1)

    pair.tell_paired()
    pair.close_router()
    pair.close_router()

    assert told == [
        Paired(namespace="contoso", backlog_queues=("contoso/x-servicebus-transfer/0",), made=()),
        Closed(namespace="contoso"),
    ]
    assert pair.status().is_closed


@pytest.mark.req("A-07")
def test_a_pairing_that_never_was_does_not_end(clock: Clock) -> None:
    pair, told = pair_of(clock)

    pair.close_router()

    assert told == []


@pytest.mark.req("G-03")
def test_nothing_is_due_after_the_end(clock: Clock) -> None:
    pair, _ = pair_of(clock)
    fail_over(pair)

    pair.close_router()
    clock.advance(3600)

    chores, next_due, _ = pair.chores(lambda queue: True)
    assert (chores, next_due) == ([], None)


def test_a_connection_that_the_secondary_refuses_is_told_with_what_to_do(clock: Clock) -> None:
    pair, _ = pair_of(clock)

    error = pair.not_connected("q", outage())

    assert "'backup.servicebus.windows.net' does not take a sender's link to backlog queue 'q'" in (
        str(error)
    )
    assert "the connection is gone; it must be up, and messaging_factory must lead to it" in str(
        error
    )
    assert error.queue == "q"


def test_a_child_process_is_told_to_pair_anew(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, _ = pair_of(clock)
    pair.check_process()
    pair.failed(PATH, pair.plan(PATH), outage())  # type: ignore[arg-type]
    pair.plan(PATH)
    assert pair.detour(PATH) is not None

    monkeypatch.setattr("pairbus.client.pairing._forks", 1)

    with pytest.raises(PairingError, match="make and pair a client in the child process"):
        pair.check_process()
    assert pair.direct(PATH) is None
    assert pair.detour(PATH) is None


# --- threads


@pytest.mark.req("F-05")
def test_threads_that_fail_at_once_fail_the_entity_over_once(clock: Clock) -> None:
    pair, told = pair_of(clock)
    together = threading.Barrier(8)
    again: list[bool] = []

    def fail() -> None:
        plan = to_primary(pair)
        together.wait()
        again.append(pair.failed(PATH, plan, outage()))
        pair.sent(PATH, to_backlog(pair), count=1)

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
    assert [type(event) for event in told].count(FailedOver) == 1
    assert pair.status().entity(PATH).diverted == 8
    assert {to_backlog(pair).queue} == {
        event.backlog_queue for event in told if isinstance(event, Diverted)
    }
