"""Which queues a round takes, and when: no clock, no broker."""

import pytest

from pairbus.syphon.policy import Destination, Failure
from pairbus.syphon.receipts import Outcome, Receipt
from pairbus.syphon.schedule import REST_SECONDS_MAX, REST_SECONDS_MIN, Backlog, Backlogs, Group


def receipt(outcome, count=1, queue="a", path="q"):
    return Receipt(run="r", round=1, queue=queue, path=path, outcome=outcome, count=count, at_ms=0)


WAITS, MOVED = receipt(Outcome.WAITING), receipt(Outcome.BROUGHT_HOME)


def down(path="q", *failures, now=100):
    destination = Destination(path)
    for failure in failures or [Failure.THROTTLED]:
        destination.failed(failure, now=max(destination.until, now))
    return destination


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
    dealt = known("a", "b", "c", shares=shares).groups(slots, now=0)
    assert [group.queues for group in dealt] == groups


def test_with_one_share_no_queue_is_in_two_tasks():
    queues = [f"q{n}" for n in range(10)]

    groups = known(*queues).groups(4, now=0)

    assert sorted(queue for group in groups for queue in group.queues) == queues


def test_what_was_emptied_is_left_alone_until_something_arrives():
    backlog = known("a", "b")

    backlog.ended({"a": False, "b": False}, [MOVED], [], ["a", "b"], now=0)
    assert backlog.pending == ()
    assert backlog.groups(2, now=0) == []

    backlog.arrived(["b", "of somebody else"])
    assert backlog.pending == ("b",)


def test_a_queue_that_has_more_goes_on_at_once():
    backlog = known("a", "b")

    backlog.ended({"a": False, "b": False}, [MOVED, WAITS], [], [], now=100)

    assert backlog.due(now=100) == ("a", "b"), "one of them had its turn, and one had none"
    assert backlog.pause(now=100) == 0


# --- what has to wait -------------------------------------------------------------------------


@pytest.mark.req("S-04")
@pytest.mark.parametrize(
    ("destination", "most", "seconds"),
    [
        (down("q"), REST_SECONDS_MAX, 10),
        (down("another"), REST_SECONDS_MAX, 10),
        (down("q", *[Failure.DISABLED] * 9), REST_SECONDS_MAX, REST_SECONDS_MAX),
        (down("q"), 5.0, 5),
        (down("q", Failure.UNREACHABLE, now=99.9), REST_SECONDS_MAX, pytest.approx(0.9)),
    ],
)
def test_a_queue_rests_until_a_destination_may_be_tried_again(destination, most, seconds):
    backlog = known("a", "b", rest_seconds_max=most)
    now = destination.heard if destination.failures > 1 else 100

    backlog.ended({"a": False}, [WAITS], [destination], [], now=now)

    assert backlog.due(now=now) == ("b",), "others do not"
    assert backlog.pause(now=now) == 0
    backlog.ended({"b": False}, [], [], ["b"], now=now)
    assert backlog.pause(now=now) == seconds
    assert backlog.groups(2, now=now) == []


@pytest.mark.req("S-04")
def test_what_arrives_elsewhere_disturbs_no_rest():
    backlog = known("a", "b")
    backlog.ended({"a": False, "b": False}, [WAITS], [down()], ["b"], now=100)

    backlog.arrived(["b"])

    assert backlog.groups(2, now=101) == [Group(queues=("b",))]


def test_the_rest_grows_where_no_destination_is_to_blame():
    backlog = known("a")
    rests = []
    for _ in range(8):
        backlog.ended({"a": False}, [], [], [], troubled=["a"], now=100)
        rests.append(backlog.pause(now=100))
    backlog.ended({"a": False}, [MOVED], [], [], now=100)
    assert backlog.pause(now=100) == 0
    backlog.ended({"a": False}, [], [], [], troubled=["a"], now=100)

    assert rests == [0.5, 1, 2, 4, 8, 16, 16, 16]
    assert backlog.pause(now=100) == REST_SECONDS_MIN


def test_after_a_rest_a_handful_is_tried_first():
    backlog = known("a", "b", "c")
    backlog.ended({"a": False, "b": False}, [WAITS], [down()], ["b"], now=100)

    assert backlog.groups(4, now=110) == [
        Group(queues=("c",)),
        Group(queues=("a",), is_probe=True),
    ]


def test_what_a_probe_finds_out_decides():
    backlog = known("a")
    backlog.ended({"a": False}, [WAITS], [down(now=100)], [], now=100)

    backlog.ended({"a": True}, [WAITS], [down(now=110)], [], now=110)
    assert backlog.pause(now=110) == 10, "still down"
    assert backlog.groups(1, now=120)[0].is_probe

    backlog.ended({"a": True}, [MOVED], [], [], now=120)
    assert backlog.groups(1, now=120) == [Group(queues=("a",))]


@pytest.mark.req("S-04")
def test_a_probe_is_followed_by_a_look_at_all_if_another_destination_may_be_there_again():
    """What may go can lie behind what has to wait."""
    backlog = known("a")
    waits = [WAITS, receipt(Outcome.WAITING, path="other")]
    backlog.ended({"a": False}, waits, [down(), down("other")], [], now=100)
    assert backlog.groups(1, now=110)[0].is_probe

    backlog.ended({"a": True}, [WAITS], [down(now=110)], [], now=110)

    assert backlog.pause(now=110) == REST_SECONDS_MIN
    assert backlog.groups(1, now=111) == [Group(queues=("a",))]
    backlog.ended({"a": False}, waits, [down("other", now=111)], [], now=111)
    assert backlog.pause(now=111) == 9, "neither is"


@pytest.mark.req("S-04")
def test_all_of_a_queue_is_looked_at_once_a_minute_for_what_has_come_since():
    backlog = known("a")
    is_probe, now = [False], 100
    backlog.ended({"a": False}, [WAITS], [down(now=now)], [], now=now)
    for _ in range(14):
        now += 10
        [group] = backlog.groups(1, now=now)
        is_probe.append(group.is_probe)
        backlog.ended({"a": group.is_probe}, [WAITS], [down(now=now)], [], now=now)

    assert is_probe == [False, *[True] * 5, False, *[True] * 5, False, True, True]


def test_where_nothing_has_come_since_a_probe_is_enough_but_not_for_ever():
    backlog = known("a")
    is_probe, now = [], 100
    backlog.ended({"a": False}, [WAITS], [down(now=now)], [], now=now)
    for _ in range(16):
        now += 60
        backlog.nothing_new(backlog.stale(now=now), now=now)
        [group] = backlog.groups(1, now=now)
        is_probe.append(group.is_probe)
        backlog.ended({"a": group.is_probe}, [WAITS], [down(now=now)], [], now=now)

    assert is_probe == [*[True] * 14, False, True]


def test_the_rest_grows_where_all_could_go_and_nothing_was_tried():
    """As where a round ends before anything was sent."""
    backlog = known("a")
    rests = []
    for _ in range(4):
        backlog.ended({"a": False}, [WAITS], [], [], now=100)
        rests.append(backlog.pause(now=100))

    assert rests == [0.5, 1, 2, 4]


def test_a_queue_that_had_no_turn_because_the_primary_was_lost_rests_as_well():
    backlog = known("a", "b")

    backlog.ended({"a": False, "b": False}, [WAITS], [down()], [], now=100)

    assert backlog.groups(2, now=101) == []
    assert [group.is_probe for group in backlog.groups(1, now=110)] == [True]


@pytest.mark.parametrize(("waiting", "seconds"), [(11, 0.5), (2_000, 10), (20_000, 60)])
def test_where_little_went_home_and_much_waits_the_rest_is_as_long_as_that_is_much(
    waiting, seconds
):
    backlog = known("a")

    backlog.ended({"a": False}, [MOVED, receipt(Outcome.WAITING, waiting)], [down()], [], now=100)

    assert backlog.pause(now=100) == seconds
    assert backlog.groups(1, now=100 + seconds) == [Group(queues=("a",))]


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
    "a task is of one primary": (2, [("a", tuple(A)), ("b", (B[0],))]),
}


@pytest.mark.parametrize(("slots", "groups"), PRIMARIES.values(), ids=PRIMARIES)
def test_tasks_are_dealt_out_to_primaries(slots, groups):
    dealt = of_two().groups(slots, now=0)
    assert [(group.primary, group.queues) for group in dealt] == groups


def test_where_there_is_not_room_for_all_primaries_they_take_turns():
    backlogs = of_two()
    turns = []
    for now in range(1, 5):
        [group] = backlogs.groups(1, now=now)
        turns.append(group.primary)
        moved = [receipt(Outcome.BROUGHT_HOME, queue=queue) for queue in group.queues]
        looked_at = dict.fromkeys(group.queues, False)
        backlogs.ended(group.primary, looked_at, moved, [], [], now=now)

    assert turns == ["a", "b", "a", "b"]


@pytest.mark.req("S-04")
def test_a_primary_that_has_to_wait_holds_up_no_other():
    backlogs = of_two()
    waits = [receipt(Outcome.WAITING, queue=queue) for queue in A]

    backlogs.ended("a", dict.fromkeys(A, False), waits, [], [], now=100)

    assert backlogs.pause(now=100) == 0
    assert backlogs.groups(2, now=100) == [Group(primary="b", queues=(B[0],))]
    backlogs.ended("b", {B[0]: False}, [receipt(Outcome.BROUGHT_HOME, queue=B[0])], [], B, now=100)
    assert backlogs.pause(now=100) == REST_SECONDS_MIN
    assert backlogs.groups(2, now=100) == []


def test_destinations_of_one_name_on_two_primaries_are_two():
    backlogs = of_two()
    one, other = Destination("orders"), Destination("orders")
    one.failed(Failure.UNAUTHORIZED, now=1)
    backlogs.ended("a", {}, [], [one], [], now=1)

    assert backlogs.stopper == ("a", one)
    other.sent(now=1)
    backlogs.ended("b", {}, [], [other], [], now=1)
    assert backlogs.destinations == (("a", one), ("b", other))
    assert backlogs.stopper is None, "somebody takes something: it can go on"
