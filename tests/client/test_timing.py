"""How much time a call has, and which periods the options set."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pairbus.client.timing import LINK_SECONDS_MAX, TASK_SECONDS_MAX, TimeBudget, Timing
from tests.client.fakes import options


def test_periods_and_limits_come_from_the_options() -> None:
    timing = Timing.of(
        options(
            failover_interval=timedelta(minutes=2),
            ping_primary_interval=timedelta(seconds=30),
            send_timeout=timedelta(seconds=3),
            throttle_wait=timedelta(seconds=20),
            fail_back="ordered",
            fail_back_wait_max=timedelta(hours=1),
        ),
        retries=5,
    )

    assert timing == Timing(
        failover_seconds=120.0,
        ping_seconds=30.0,
        send_seconds=3.0,
        throttle_wait_seconds=20.0,
        fail_back_wait_seconds=3600.0,
        throttle_waits_max=5,
    )
    assert timing.task_seconds == 3.0
    assert timing.link_seconds == 3.0


def test_without_options_the_defaults_hold() -> None:
    timing = Timing.of(options(), retries=0)

    assert (timing.failover_seconds, timing.ping_seconds, timing.send_seconds) == (60, 60, 60)
    assert (timing.throttle_wait_seconds, timing.throttle_waits_max) == (10, 1)
    assert timing.task_seconds == TASK_SECONDS_MAX
    assert timing.link_seconds == LINK_SECONDS_MAX


# --- the time of a call


def test_a_timeout_that_is_over_leaves_a_moment_because_zero_means_for_ever_to_the_sdk() -> None:
    budget = TimeBudget(5.0, 60.0)
    budget.on_primary(now=100.0)

    assert budget.on_primary(now=106.0) == 0.001


def test_the_timeout_holds_on_each_of_the_two_namespaces() -> None:
    budget = TimeBudget(5.0, 60.0)
    budget.on_primary(now=100.0)

    assert budget.in_backlog(now=105.0) == 5.0
    assert budget.in_backlog(now=107.0) == 3.0
    assert budget.in_backlog(now=111.0) == 0.0


@pytest.mark.parametrize(
    ("send_seconds", "each", "all_together"),
    [
        pytest.param(5.0, 5.0, 60.0, id="short: as long on each, but several are tried"),
        pytest.param(60.0, 20.0, 60.0, id="the default"),
        pytest.param(600.0, 20.0, 600.0, id="long: others are tried in between"),
    ],
)
def test_the_send_timeout_holds_on_each_backlog_queue_and_there_is_an_end(
    send_seconds: float, each: float, all_together: float
) -> None:
    budget = TimeBudget(None, send_seconds)

    assert budget.in_backlog(now=0.0) == each
    assert budget.in_backlog(now=all_together - 1.0) == 1.0
    assert budget.in_backlog(now=all_together) == 0.0


@pytest.mark.parametrize(
    ("queues_left", "share"), [(1, 9.0), (2, 4.5), (3, 3.0), (10, 3.0)], ids=str
)
def test_while_there_are_other_queues_one_gets_a_part_of_the_callers_time(
    queues_left: int, share: float
) -> None:
    budget = TimeBudget(9.0, 60.0)

    assert budget.in_backlog(now=0.0, queues_left=queues_left) == pytest.approx(share)
    assert budget.in_backlog(now=0.0) == 9.0


@pytest.mark.parametrize(
    ("timeout", "is_backlog", "expected"),
    [
        pytest.param(None, False, True, id="without a limit, always"),
        pytest.param(None, True, True, id="without a limit, in the backlog as well"),
        pytest.param(10.0, False, False, id="not if nothing would be left"),
        pytest.param(10.1, False, True, id="if something is left afterwards"),
        pytest.param(10.1, True, True, id="the backlog has a time of its own"),
        pytest.param(9.0, True, False, id="the backlog's time is as short"),
    ],
)
def test_a_throttled_call_waits_within_its_limit(
    timeout: float | None, is_backlog: bool, expected: bool
) -> None:
    budget = TimeBudget(timeout, 60.0)

    assert budget.can_wait(10.0, is_backlog=is_backlog, now=0.0) is expected


def test_time_that_has_been_used_is_missing_for_a_wait() -> None:
    budget = TimeBudget(15.0, 60.0)
    budget.on_primary(now=0.0)

    assert budget.can_wait(10.0, is_backlog=False, now=4.0)
    assert not budget.can_wait(10.0, is_backlog=False, now=6.0)
    assert budget.can_wait(10.0, is_backlog=True, now=6.0)
