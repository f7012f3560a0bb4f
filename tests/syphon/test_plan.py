"""Which queues a round takes, and when: no clock, no broker."""

import pytest

from pairbus.syphon.destinations import Destination, Failure
from pairbus.syphon.plan import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, Backlog
from pairbus.syphon.receipts import Outcome, Receipt


def receipt(outcome, count=1):
    return Receipt(run="r", round=1, queue="a", path="q", outcome=outcome, count=count, at_ms=0)


def known(*queues, **settings):
    backlog = Backlog(**settings)
    backlog.found(queues)
    return backlog


def test_a_queue_that_was_just_found_may_hold_something():
    backlog = known("a", "b")

    assert backlog.pending == ("a", "b")
    assert backlog.found(["a", "b", "c"]) == ("c",)
    assert backlog.queues == ("a", "b", "c")


def test_a_queue_that_is_gone_is_not_asked_again():
    backlog = known("a", "b")

    backlog.found(["b"])

    assert backlog.queues == backlog.pending == ("b",)


GROUPS = {
    "a task for each queue, as long as there is room": (3, 1, [("a",), ("b",), ("c",)]),
    "queues share a task where there is not": (2, 1, [("a", "c"), ("b",)]),
    "one task takes them all": (1, 1, [("a", "b", "c")]),
    "more room than queues is left unused": (8, 1, [("a",), ("b",), ("c",)]),
    "a queue in two shares is in two tasks": (
        6,
        2,
        [("a",), ("a",), ("b",), ("b",), ("c",), ("c",)],
    ),
    "a queue is never twice in one task": (1, 4, [("a", "b", "c")]),
}


@pytest.mark.parametrize(("slots", "shares", "groups"), GROUPS.values(), ids=GROUPS)
def test_queues_are_dealt_out(slots, shares, groups):
    assert known("a", "b", "c", shares=shares).groups(slots) == groups


def test_with_one_share_no_queue_is_in_two_tasks():
    queues = [f"q{n}" for n in range(10)]

    groups = known(*queues).groups(4)

    assert sorted(queue for group in groups for queue in group) == queues


def test_what_was_emptied_is_left_alone_until_something_arrives():
    backlog = known("a", "b")

    backlog.ended([receipt(Outcome.MOVED)], [], ["a", "b"], now=0)
    assert backlog.pending == ()
    assert backlog.groups(2) == []

    backlog.arrived(["b", "of somebody else"])
    assert backlog.pending == ("b",)


def test_a_round_that_moved_something_is_followed_by_the_next_at_once():
    backlog = known("a")

    backlog.ended([receipt(Outcome.MOVED), receipt(Outcome.WAITING)], [], [], now=100)

    assert backlog.pause(now=100) == 0


def test_a_round_that_moved_nothing_is_followed_by_a_pause():
    backlog = known("a")

    backlog.ended([receipt(Outcome.WAITING)], [], [], now=100)

    assert backlog.pause(now=100) == PAUSE_SECONDS_MIN
    assert backlog.pause(now=100 + PAUSE_SECONDS_MIN) == 0


@pytest.mark.req("S-04")
def test_the_pause_is_until_a_destination_may_be_tried_again_but_not_long():
    backlog = known("a")
    throttled = Destination("q")
    throttled.failed(Failure.THROTTLED, now=100)

    backlog.ended([receipt(Outcome.WAITING)], [throttled], [], now=100)

    assert backlog.pause(now=100) == PAUSE_SECONDS_MAX
    assert [one.path for one in backlog.destinations] == ["q"]
