"""Which queues a round takes, and when."""

import pytest

from pairbus.syphon.policy import Destination, Failure
from pairbus.syphon.receipts import Drained, Receipt, ReceiptOutcome
from pairbus.syphon.schedule import REST_SECONDS_MAX, REST_SECONDS_MIN, Schedule, TaskPlan


def receipt(outcome, count=1, queue="a", path="q"):
    return Receipt(run="r", round=1, queue=queue, path=path, outcome=outcome, count=count, at_ms=0)


WAITS, HOME = receipt(ReceiptOutcome.WAITING), receipt(ReceiptOutcome.BROUGHT_HOME)
NOTHING = Drained(receipts=(), destinations=(), emptied=(), errors=())


def ended(
    schedule, looked_at, receipts, destinations, emptied, *, failed=(), now, primary="contoso"
):
    """A round is over. `looked_at`: its queues, and whether they were only probed."""
    plans = [
        TaskPlan(primary=primary, queues=(queue,), is_probe=is_probe)
        for queue, is_probe in looked_at.items()
    ]
    first = Drained(
        receipts=tuple(receipts),
        destinations=tuple(destinations),
        emptied=tuple(emptied),
        errors=tuple((queue, "lost") for queue in failed),
    )
    plans = plans or [TaskPlan(primary=primary, queues=())]
    results = [first, *[NOTHING] * (len(plans) - 1)]
    schedule.round_ended(zip(plans, results, strict=True), now=now)


def plan(*queues, is_probe=False):
    return TaskPlan(primary="contoso", queues=queues, is_probe=is_probe)


def due(schedule, *, now):
    return tuple(queue for task in schedule.tasks(9, now=now) for queue in task.queues)


def down(path="q", *failures, now=100):
    destination = Destination(path)
    for failure in failures or [Failure.THROTTLED]:
        destination.failed(failure, now=max(destination.until, now))
    return destination


def known(*queues, **settings):
    schedule = Schedule(["contoso"], **settings)
    schedule.found(queues)
    return schedule


def test_a_new_queue_may_hold_messages():
    schedule = known("a", "b")

    assert schedule.pending == ("a", "b")
    assert schedule.found(["a", "b", "c"]) == ("c",)
    assert schedule.queues == ("a", "b", "c")


def test_a_deleted_queue_is_forgotten():
    schedule = known("a", "b")

    schedule.found(["b"])

    assert schedule.queues == schedule.pending == ("b",)


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
def test_queues_are_dealt_out_to_tasks(slots, shares, groups):
    dealt = known("a", "b", "c", shares=shares).tasks(slots, now=0)
    assert [task.queues for task in dealt] == groups


def test_with_one_share_no_queue_is_in_two_tasks():
    queues = [f"q{n}" for n in range(10)]

    groups = known(*queues).tasks(4, now=0)

    assert sorted(queue for task in groups for queue in task.queues) == queues


def test_an_empty_queue_is_not_due_until_a_message_arrives():
    schedule = known("a", "b")

    ended(schedule, {"a": False, "b": False}, [HOME], [], ["a", "b"], now=0)
    assert schedule.pending == ()
    assert schedule.tasks(2, now=0) == []

    schedule.arrived(["b", "of somebody else"])
    assert schedule.pending == ("b",)


def test_a_queue_that_has_more_is_due_at_once():
    schedule = known("a", "b")

    ended(schedule, {"a": False, "b": False}, [HOME, WAITS], [], [], now=100)

    assert due(schedule, now=100) == ("a", "b"), "one had its turn, the other had none"
    assert schedule.pause(now=100) == 0


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
    schedule = known("a", "b")
    schedule.rest_seconds_max = most
    now = destination.last_heard if destination.failures > 1 else 100

    ended(schedule, {"a": False}, [WAITS], [destination], [], now=now)

    assert due(schedule, now=now) == ("b",), "the other does not rest"
    assert schedule.pause(now=now) == 0
    ended(schedule, {"b": False}, [], [], ["b"], now=now)
    assert schedule.pause(now=now) == seconds
    assert schedule.tasks(2, now=now) == []


@pytest.mark.req("S-04")
def test_a_message_in_another_queue_does_not_end_a_rest():
    schedule = known("a", "b")
    ended(schedule, {"a": False, "b": False}, [WAITS], [down()], ["b"], now=100)

    schedule.arrived(["b"])

    assert schedule.tasks(2, now=101) == [plan("b")]


def test_rests_grow_if_no_destination_is_to_blame():
    schedule = known("a")
    rests = []
    for _ in range(8):
        ended(schedule, {"a": False}, [], [], [], failed=["a"], now=100)
        rests.append(schedule.pause(now=100))
    ended(schedule, {"a": False}, [HOME], [], [], now=100)
    assert schedule.pause(now=100) == 0
    ended(schedule, {"a": False}, [], [], [], failed=["a"], now=100)

    assert rests == [0.5, 1, 2, 4, 8, 16, 16, 16]
    assert schedule.pause(now=100) == REST_SECONDS_MIN


def test_after_a_rest_comes_a_probe():
    schedule = known("a", "b", "c")
    ended(schedule, {"a": False, "b": False}, [WAITS], [down()], ["b"], now=100)

    assert schedule.tasks(4, now=110) == [
        plan("c"),
        plan("a", is_probe=True),
    ]


def test_the_result_of_a_probe_decides_what_is_next():
    schedule = known("a")
    ended(schedule, {"a": False}, [WAITS], [down(now=100)], [], now=100)

    ended(schedule, {"a": True}, [WAITS], [down(now=110)], [], now=110)
    assert schedule.pause(now=110) == 10, "still down"
    assert schedule.tasks(1, now=120)[0].is_probe

    ended(schedule, {"a": True}, [HOME], [], [], now=120)
    assert schedule.tasks(1, now=120) == [plan("a")]


@pytest.mark.req("S-04")
def test_a_probe_is_followed_by_a_full_look_if_another_destination_may_be_available():
    """Messages that can go home may lie behind messages that have to wait."""
    schedule = known("a")
    waits = [WAITS, receipt(ReceiptOutcome.WAITING, path="other")]
    ended(schedule, {"a": False}, waits, [down(), down("other")], [], now=100)
    assert schedule.tasks(1, now=110)[0].is_probe

    ended(schedule, {"a": True}, [WAITS], [down(now=110)], [], now=110)

    assert schedule.pause(now=110) == REST_SECONDS_MIN
    assert schedule.tasks(1, now=111) == [plan("a")]
    ended(schedule, {"a": False}, waits, [down("other", now=111)], [], now=111)
    assert schedule.pause(now=111) == 9, "neither is"


@pytest.mark.req("S-04")
def test_a_full_look_follows_once_a_minute_because_messages_may_have_arrived():
    schedule = known("a")
    is_probe, now = [False], 100
    ended(schedule, {"a": False}, [WAITS], [down(now=now)], [], now=now)
    for _ in range(14):
        now += 10
        [task] = schedule.tasks(1, now=now)
        is_probe.append(task.is_probe)
        ended(schedule, {"a": task.is_probe}, [WAITS], [down(now=now)], [], now=now)

    assert is_probe == [False, *[True] * 5, False, *[True] * 5, False, True, True]


def test_if_no_message_has_arrived_probes_are_enough_for_a_quarter_of_an_hour():
    schedule = known("a")
    is_probe, now = [], 100
    ended(schedule, {"a": False}, [WAITS], [down(now=now)], [], now=now)
    for _ in range(16):
        now += 60
        schedule.nothing_new(schedule.stale(now=now), now=now)
        [task] = schedule.tasks(1, now=now)
        is_probe.append(task.is_probe)
        ended(schedule, {"a": task.is_probe}, [WAITS], [down(now=now)], [], now=now)

    assert is_probe == [*[True] * 14, False, True]


def test_rests_grow_if_messages_wait_although_their_destination_is_open():
    """For example, if a round ends before anything was sent."""
    schedule = known("a")
    rests = []
    for _ in range(4):
        ended(schedule, {"a": False}, [WAITS], [], [], now=100)
        rests.append(schedule.pause(now=100))

    assert rests == [0.5, 1, 2, 4]


def test_a_queue_that_had_no_turn_because_the_primary_was_lost_rests_too():
    schedule = known("a", "b")

    ended(schedule, {"a": False, "b": False}, [WAITS], [down()], [], now=100)

    assert schedule.tasks(2, now=101) == []
    assert [task.is_probe for task in schedule.tasks(1, now=110)] == [True]


@pytest.mark.parametrize(("waiting", "seconds"), [(11, 0.5), (2_000, 10), (20_000, 60)])
def test_if_little_went_home_the_rest_is_in_proportion_to_what_waits(waiting, seconds):
    schedule = known("a")

    ended(
        schedule,
        {"a": False},
        [HOME, receipt(ReceiptOutcome.WAITING, waiting)],
        [down()],
        [],
        now=100,
    )

    assert schedule.pause(now=100) == seconds
    assert schedule.tasks(1, now=100 + seconds) == [plan("a")]


# --- several primaries ------------------------------------------------------------------------

A = [f"a/x-servicebus-transfer/{n}" for n in range(4)]
B = ["B/x-servicebus-transfer/0"]


def of_two(**settings):
    schedule = Schedule(["a", "b"], **settings)
    schedule.found([*A, *B, "c/x-servicebus-transfer/0", "orders"])
    return schedule


def test_the_name_of_a_queue_says_which_primary_it_belongs_to():
    schedule = of_two()

    assert schedule.queues == schedule.pending == (*A, *B)
    assert schedule.primary_of(B[0]) == "b"
    assert schedule.primary_of("c/x-servicebus-transfer/0") is None


def test_a_single_primary_owns_queues_of_any_name():
    schedule = Schedule(["a"])

    assert schedule.found(["any", *B]) == ("any", *B)
    assert schedule.primary_of("any") == "a"


PRIMARIES = {
    "each has its part of the room": (5, [("a", (each,)) for each in A] + [("b", (B[0],))]),
    "a task is of one primary": (2, [("a", tuple(A)), ("b", (B[0],))]),
}


@pytest.mark.parametrize(("slots", "groups"), PRIMARIES.values(), ids=PRIMARIES)
def test_tasks_are_dealt_out_to_primaries(slots, groups):
    dealt = of_two().tasks(slots, now=0)
    assert [(task.primary, task.queues) for task in dealt] == groups


def test_primaries_take_turns_if_there_are_too_few_slots():
    schedule = of_two()
    turns = []
    for now in range(1, 5):
        [task] = schedule.tasks(1, now=now)
        turns.append(task.primary)
        home = [receipt(ReceiptOutcome.BROUGHT_HOME, queue=queue) for queue in task.queues]
        looked_at = dict.fromkeys(task.queues, False)
        ended(schedule, looked_at, home, [], [], now=now, primary=task.primary)

    assert turns == ["a", "b", "a", "b"]


@pytest.mark.req("S-04")
def test_a_failing_primary_does_not_hold_up_another():
    schedule = of_two()
    waits = [receipt(ReceiptOutcome.WAITING, queue=queue) for queue in A]

    ended(schedule, dict.fromkeys(A, False), waits, [], [], now=100, primary="a")

    assert schedule.pause(now=100) == 0
    assert schedule.tasks(2, now=100) == [TaskPlan(primary="b", queues=(B[0],))]
    ended(
        schedule,
        {B[0]: False},
        [receipt(ReceiptOutcome.BROUGHT_HOME, queue=B[0])],
        [],
        B,
        now=100,
        primary="b",
    )
    assert schedule.pause(now=100) == REST_SECONDS_MIN
    assert schedule.tasks(2, now=100) == []


def test_destinations_of_the_same_name_on_two_primaries_are_distinct():
    schedule = of_two()
    one, other = Destination("orders"), Destination("orders")
    one.failed(Failure.UNAUTHORIZED, now=1)
    ended(schedule, {}, [], [one], [], now=1, primary="a")

    assert schedule.forbidden_everywhere == ("a", one)
    other.sent(now=1)
    ended(schedule, {}, [], [other], [], now=1, primary="b")
    assert schedule.destinations == (("a", one), ("b", other))
    assert schedule.forbidden_everywhere is None, "the other one is up"
