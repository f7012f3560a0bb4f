"""Which queues a round takes, and when: no clock, no broker."""

import pytest

from pairbus.syphon.destinations import Destination, Failure
from pairbus.syphon.plan import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, Backlog, Backlogs
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


def test_the_pause_grows_where_no_destination_is_to_blame():
    backlog = known("a")
    pauses = []
    for _ in range(8):
        backlog.ended([], [], [], now=100)
        pauses.append(backlog.pause(now=100))
    backlog.ended([receipt(Outcome.MOVED)], [], [], now=100)
    backlog.ended([], [], [], now=100)

    assert pauses == [0.5, 1, 2, 4, 8, 16, 16, 16]
    assert backlog.pause(now=100) == PAUSE_SECONDS_MIN


@pytest.mark.req("S-04")
@pytest.mark.parametrize(
    ("failures", "most", "pause"),
    [
        ([Failure.THROTTLED], None, 10),
        ([Failure.DISABLED] * 9, None, PAUSE_SECONDS_MAX),
        ([Failure.THROTTLED], 5.0, 5),
    ],
)
def test_the_pause_is_until_a_destination_may_be_tried_again_but_not_long(failures, most, pause):
    backlog = known("a", pause_seconds_max=most)
    destination = Destination("q")
    for failure in failures:
        destination.failed(failure, now=destination.until or 100)
    now = destination.heard

    backlog.ended([receipt(Outcome.WAITING)], [destination], [], now=now)

    assert backlog.pause(now=now) == pause
    assert [one.path for one in backlog.destinations] == ["q"]


@pytest.mark.req("S-04")
def test_what_arrives_meanwhile_ends_the_pause():
    backlog = known("a", "b")
    backlog.ended([receipt(Outcome.WAITING)], [], ["b"], now=100)

    backlog.arrived(["a"])
    assert backlog.pause(now=100) == PAUSE_SECONDS_MIN, "that is known to wait"
    backlog.arrived(["b"])
    assert backlog.pause(now=100) == 0


# --- several primaries ------------------------------------------------------------------------

A = [f"a/x-servicebus-transfer/{n}" for n in range(4)]
B = ["B/x-servicebus-transfer/0"]


def of_two(**settings):
    backlogs = Backlogs(["a", "b"], **settings)
    backlogs.found([*A, *B, "c/x-servicebus-transfer/0", "orders"])
    return backlogs


def test_queues_belong_to_the_primary_that_their_name_begins_with():
    backlogs = of_two()

    assert backlogs.queues == backlogs.pending == (*A, *B)
    assert backlogs.primary_of(B[0]) == "b"
    assert backlogs.primary_of("c/x-servicebus-transfer/0") is None


def test_of_a_single_primary_they_may_have_any_name():
    backlogs = Backlogs(["a"])

    assert backlogs.found(["any", *B]) == ("any", *B)
    assert backlogs.primary_of("any") == "a"


PRIMARIES = {
    "each has its part of the room": (5, [("a", (each,)) for each in A] + [("b", (B[0],))]),
    "and at least one task": (1, [("a", tuple(A)), ("b", (B[0],))]),
    "which is of one primary": (2, [("a", tuple(A)), ("b", (B[0],))]),
}


@pytest.mark.parametrize(("slots", "groups"), PRIMARIES.values(), ids=PRIMARIES)
def test_tasks_are_dealt_out_to_primaries(slots, groups):
    assert of_two().groups(slots, now=0) == groups


@pytest.mark.req("S-04")
def test_a_primary_that_has_to_wait_holds_up_no_other():
    backlogs = of_two()

    backlogs.ended("a", [receipt(Outcome.WAITING)], [], [], now=100)

    assert backlogs.pause(now=100) == 0
    assert backlogs.groups(2, now=100) == [("b", (B[0],))]
    backlogs.ended("b", [receipt(Outcome.MOVED)], [], B, now=100)
    assert backlogs.pause(now=100) == PAUSE_SECONDS_MIN
    assert backlogs.groups(2, now=100) == []


def test_destinations_of_one_name_on_two_primaries_are_two():
    backlogs = of_two()
    one, other = Destination("orders"), Destination("orders")
    one.failed(Failure.UNAUTHORIZED, now=1)
    backlogs.ended("a", [], [one], [], now=1)

    assert backlogs.stopper == ("a", one)
    other.sent(now=1)
    backlogs.ended("b", [], [other], [], now=1)
    assert backlogs.destinations == (("a", one), ("b", other))
    assert backlogs.stopper is None, "somebody takes something: it can go on"
