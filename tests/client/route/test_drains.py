"""When the messages of an entity leave the outbox. Pure: the test passes the time in."""

from __future__ import annotations

import pytest

from pairbus.client.route.drains import (
    DRAINS_AT_ONCE_MAX,
    REFUSED_REST_SECONDS,
    REST_SECONDS,
    DrainSchedule,
)
from pairbus.client.route.plans import Drain

pytestmark = pytest.mark.req("X-04")

ERROR = ConnectionError("gone")


def take(schedule: DrainSchedule, *waiting: str, now: float = 0.0, but: str = "") -> list[str]:
    tasks = schedule.take_due(waiting, now=now, can_send=lambda path: path != but)
    assert all(isinstance(task, Drain) for task in tasks)
    return [task.path for task in tasks]


def test_an_entity_with_messages_is_drained_at_once_and_once_at_a_time():
    schedule = DrainSchedule()

    assert take(schedule) == []
    assert take(schedule, "orders") == ["orders"]
    assert take(schedule, "orders") == []
    schedule.ended("orders", now=1.0)
    assert take(schedule, "orders", now=1.0) == ["orders"]


def test_an_entity_that_no_namespace_accepts_is_not_drained_and_does_not_delay_others():
    schedule = DrainSchedule()

    assert take(schedule, "invoices", "orders", but="invoices") == ["orders"]
    assert schedule.next_due(now=0.0) is None, "the end of a ping or a probe wakes the worker"
    assert take(schedule, "invoices", "orders") == ["invoices"]


def test_after_a_failure_it_rests():
    schedule = DrainSchedule()
    take(schedule, "orders")

    assert schedule.ended("orders", now=10.0, error=ERROR) == REST_SECONDS
    assert take(schedule, "orders", now=10.0 + REST_SECONDS - 0.1) == []
    assert schedule.next_due(now=10.0) == 10.0 + REST_SECONDS
    assert take(schedule, "orders", now=10.0 + REST_SECONDS) == ["orders"]


def test_an_entity_that_refuses_its_messages_rests_longer_and_tells_why():
    schedule = DrainSchedule()
    take(schedule, "orders")

    assert schedule.ended("orders", now=0.0, error=ERROR, is_refused=True) == REFUSED_REST_SECONDS
    assert schedule.refusal("orders") is ERROR
    assert schedule.refusal("invoices") is None
    take(schedule, "orders", now=REFUSED_REST_SECONDS)
    assert schedule.refusal("orders") is ERROR, "as long as nothing else is known"
    schedule.ended("orders", now=60.0)
    assert schedule.refusal("orders") is None


def test_only_some_are_drained_at_once_and_each_gets_its_turn():
    schedule = DrainSchedule()
    names = [f"q{number:02}" for number in range(10)]
    seen: list[str] = []
    running = take(schedule, *names)

    for now in range(1, 30):
        assert len(running) <= DRAINS_AT_ONCE_MAX
        seen += running
        for path in running:
            schedule.ended(path, now=float(now))
        running = take(schedule, *names, now=float(now))

    assert set(seen) == set(names)
    assert max(map(seen.count, names)) - min(map(seen.count, names)) <= 1


def test_an_entity_without_messages_is_forgotten():
    schedule = DrainSchedule()
    take(schedule, "orders")
    schedule.ended("orders", now=0.0, error=ERROR, is_refused=True)

    assert take(schedule, now=1.0) == []
    assert schedule.refusal("orders") is None
    assert schedule.next_due(now=1.0) is None


def test_an_entity_that_is_being_drained_is_not_forgotten():
    schedule = DrainSchedule()
    take(schedule, "orders")

    assert take(schedule) == [], "its last message has just left"
    assert take(schedule, "orders") == [], "it is still being drained"
    schedule.ended("orders", now=1.0)
    assert take(schedule, "orders", now=1.0) == ["orders"]
