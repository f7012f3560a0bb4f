"""Which queues a round takes, and when."""

import pytest

from pairbus.syphon.policy import Destination, Failure
from pairbus.syphon.queue_state import REST_SECONDS_MIN
from pairbus.syphon.receipts import Drained, Receipt, ReceiptOutcome
from pairbus.syphon.schedule import Schedule, TaskPlan


def receipt(outcome, count=1, queue="a", path="q"):
    return Receipt(run="r", round=1, queue=queue, path=path, outcome=outcome, count=count, at_ms=0)


WAITS, HOME = receipt(ReceiptOutcome.WAITING), receipt(ReceiptOutcome.BROUGHT_HOME)
NOTHING = Drained(receipts=(), destinations=(), emptied=(), errors=())


def ended(
    schedule,
    looked_at,
    receipts,
    destinations,
    emptied,
    *,
    failed=(),
    lost="",
    now,
    primary="contoso",
):
    """A round is over. `looked_at`: the plans of its tasks, or its queues."""
    plans = [
        one if isinstance(one, TaskPlan) else TaskPlan(primary=primary, queues=(one,))
        for one in looked_at
    ]
    first = Drained(
        receipts=tuple(receipts),
        destinations=tuple(destinations),
        emptied=tuple(emptied),
        errors=tuple((queue, "lost") for queue in failed),
        has_reached_primary=bool(receipts) and not lost,
        primary_error=lost,
    )
    plans = plans or [TaskPlan(primary=primary, queues=())]
    results = [first, *[NOTHING] * (len(plans) - 1)]
    schedule.round_ended(zip(plans, results, strict=True), now=now)


def plan(*queues, at_most=None, is_deep=False):
    return TaskPlan(primary="contoso", queues=queues, at_most=at_most, is_deep=is_deep)


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


def test_an_empty_queue_is_not_due_until_a_message_arrives():
    schedule = known("a", "b")

    ended(schedule, ["a", "b"], [HOME], [], ["a", "b"], now=0)
    assert schedule.pending == ()
    assert schedule.tasks(2, now=0) == []

    schedule.arrived(["b", "of somebody else"])
    assert schedule.pending == ("b",)


def test_a_queue_that_has_more_is_due_at_once():
    schedule = known("a", "b")

    ended(schedule, ["a", "b"], [HOME, WAITS], [], [], now=100)

    assert due(schedule, now=100) == ("a", "b"), "one had its turn, the other had none"
    assert schedule.pause(now=100) == 0


# --- what has to wait -------------------------------------------------------------------------


@pytest.mark.req("S-04")
@pytest.mark.parametrize(
    ("destination", "seconds"),
    [
        (down("q"), 10),
        (down("q", *[Failure.DISABLED] * 9), 300),
        (down("q", Failure.UNREACHABLE, now=99.9), pytest.approx(14.9)),
    ],
)
def test_a_queue_rests_until_a_destination_may_be_tried_again(destination, seconds):
    schedule = known("a", "b")
    now = destination.last_heard if destination.failures > 1 else 100

    ended(schedule, ["a"], [WAITS], [destination], [], now=now)

    assert due(schedule, now=now) == ("b",), "the other does not rest"
    assert schedule.pause(now=now) == 0
    ended(schedule, ["b"], [], [], ["b"], now=now)
    assert schedule.pause(now=now) == seconds
    assert schedule.tasks(2, now=now) == []


@pytest.mark.req("S-04")
def test_a_message_in_another_queue_does_not_end_a_rest():
    schedule = known("a", "b")
    ended(schedule, ["a", "b"], [WAITS], [down()], ["b"], now=100)

    schedule.arrived(["b"])

    assert schedule.tasks(2, now=101) == [plan("b")]


def test_rests_grow_if_no_destination_is_to_blame():
    schedule = known("a")
    rests = []
    for _ in range(8):
        ended(schedule, ["a"], [], [], [], failed=["a"], now=100)
        rests.append(schedule.pause(now=100))
    ended(schedule, ["a"], [HOME], [], [], now=100)
    assert schedule.pause(now=100) == 0
    ended(schedule, ["a"], [], [], [], failed=["a"], now=100)

    assert rests == [0.5, 1, 2, 4, 8, 16, 16, 16]
    assert schedule.pause(now=100) == REST_SECONDS_MIN


def test_after_a_rest_comes_a_probe_with_one_message():
    schedule = known("a", "b", "c")
    ended(schedule, ["a", "b"], [WAITS], [down()], ["b"], now=100)

    assert schedule.tasks(4, now=110) == [plan("c"), plan("a", at_most=1)]


def test_a_probe_takes_its_message_from_the_queue_where_the_fewest_are_ahead_of_it():
    schedule = known("a", "b")
    waits = [receipt(ReceiptOutcome.WAITING, queue=queue) for queue in ("a", "b")]
    ended(schedule, ["a", "b"], waits, [down(), down("other")], [], now=100)
    schedule.peeked("a", {"other": 0, "q": 700}, now=100)
    schedule.peeked("b", {"other": 0, "q": 30}, now=100)

    assert schedule.tasks(4, now=110) == [plan("b", at_most=31), plan("a", at_most=1)]
    waits = [receipt(ReceiptOutcome.WAITING, 31, queue="b")]
    ended(schedule, [plan("b", at_most=31)], waits, [down(now=110)], [], now=110)
    assert schedule.tasks(4, now=112) == [plan("a", at_most=1)], "rarely, as it costs so much"
    assert schedule.tasks(4, now=120) == [plan("b", at_most=31), plan("a", at_most=1)]


def test_the_result_of_a_probe_decides_what_is_next():
    schedule = known("a", "b")
    waits = [receipt(ReceiptOutcome.WAITING, queue=queue) for queue in ("a", "b")]
    ended(schedule, ["a", "b"], waits, [down(now=100)], [], now=100)
    probe = plan("a", at_most=1)
    assert schedule.tasks(4, now=110) == [probe]

    ended(schedule, [probe], [WAITS], [down(now=110)], [], now=110)
    assert schedule.pause(now=110) == 10, "still down"
    assert schedule.tasks(4, now=120) == [probe]

    up = down(now=120)
    up.sent(now=130)
    ended(schedule, [probe], [HOME], [up], [], now=130)
    assert schedule.tasks(4, now=130) == [plan("a", is_deep=True), plan("b", is_deep=True)]


@pytest.mark.req("S-04")
def test_a_link_that_was_attached_ends_the_rest_at_once():
    schedule = known("a")
    ended(schedule, ["a"], [WAITS], [down("q", Failure.UNREACHABLE)], [], now=100)
    assert schedule.to_probe(now=101) == {"contoso": ("q",)}
    assert schedule.tasks(4, now=102) == []

    schedule.answered("contoso", ["q"], now=102)

    assert schedule.tasks(4, now=102) == [plan("a", at_most=1)]
    assert schedule.to_probe(now=102) == {}


def test_no_link_is_attached_where_only_a_message_tells():
    schedule = known("a")
    ended(schedule, ["a"], [WAITS], [down("q", Failure.THROTTLED)], [], now=100)

    assert schedule.to_probe(now=101) == {}


@pytest.mark.req("S-04")
def test_messages_that_can_go_home_are_looked_for_behind_those_that_wait():
    schedule = known("a")
    ended(schedule, ["a"], [WAITS], [down()], [], now=100)
    assert schedule.to_peek(now=100) == {"a": False}
    schedule.peeked("a", {"q": 0}, now=100)
    assert schedule.tasks(1, now=101) == []
    assert schedule.to_peek(now=159) == {}
    assert schedule.to_peek(now=160) == {"a": True}, "only what is new"

    schedule.peeked("a", {"q": 0, "other": 5_000}, now=160)

    assert schedule.tasks(1, now=160) == [plan("a", is_deep=True)]
    ended(schedule, schedule.tasks(1, now=160), [WAITS], [], [], now=161)
    assert schedule.tasks(1, now=169) != [plan("a", is_deep=True)], "it was gone"


def test_a_queue_that_peeks_cannot_show_is_looked_at_every_quarter_of_an_hour():
    schedule = known("a")
    ended(schedule, ["a"], [WAITS], [down("q")], [], now=100)
    schedule.peeked("a", None, now=100)

    assert schedule.tasks(1, now=999) == [plan("a", at_most=1)]
    assert schedule.tasks(1, now=1000) == [plan("a", is_deep=True)]
    assert schedule.to_peek(now=2000) == {}


@pytest.mark.req("S-04")
def test_of_a_primary_that_does_not_answer_nothing_is_received_but_one_message():
    schedule = known("a", "b", "c")
    away = down("q", Failure.UNREACHABLE)
    ended(schedule, ["a", "b"], [WAITS], [away], [], lost="refused", now=100)

    assert schedule.tasks(4, now=101) == []
    assert schedule.to_peek(now=101) == {}
    assert schedule.to_probe(now=101) == {"contoso": ()}
    assert schedule.failing == ["the primary contoso is down: refused"]
    assert schedule.pause(now=101) == 14
    assert schedule.tasks(4, now=115) == [plan("c", at_most=1)], "without a link, by a message"

    schedule.answered("contoso", [], now=102)
    [probe] = schedule.tasks(4, now=102)
    assert probe == plan("c", at_most=1)
    assert [each.until for each in schedule.destinations_of("contoso")] == [0]
    other = Destination("other")
    other.sent(now=103)
    home = [receipt(ReceiptOutcome.BROUGHT_HOME, queue="c", path="other")]
    ended(schedule, [probe], home, [other], [], now=103)
    assert schedule.failing == ["q is unknown"]
    schedule.peeked("b", {"q": 0}, now=103)
    assert due(schedule, now=103) == ("a", "b", "c")


def test_a_probe_that_fails_at_the_secondary_is_repeated_later():
    schedule = known("a")
    schedule.primary_lost("contoso", "refused", now=100)
    for now, pause in ((115, 0.5), (116, 1)):
        ended(schedule, [plan("a", at_most=1)], [], [], [], failed=["a"], now=now)
        assert schedule.pause(now=now) == pause


def test_rests_grow_if_messages_wait_although_their_destination_is_open():
    """For example, if a round ends before anything was sent."""
    schedule = known("a")
    rests = []
    for _ in range(4):
        ended(schedule, ["a"], [WAITS], [], [], now=100)
        rests.append(schedule.pause(now=100))

    assert rests == [0.5, 1, 2, 4]


@pytest.mark.parametrize(("waiting", "seconds"), [(11, 0.5), (2_000, 10), (20_000, 60)])
def test_if_little_went_home_the_rest_is_in_proportion_to_what_waits(waiting, seconds):
    schedule = known("a")

    ended(
        schedule,
        ["a"],
        [HOME, receipt(ReceiptOutcome.WAITING, waiting)],
        [down("q", Failure.DISABLED)],
        [],
        now=100,
    )

    assert schedule.pause(now=100) == seconds
    assert schedule.tasks(1, now=100 + seconds) == [plan("a", is_deep=True)]


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
        ended(schedule, [task], home, [], [], now=now, primary=task.primary)

    assert turns == ["a", "b", "a", "b"]


@pytest.mark.req("S-04")
def test_a_failing_primary_does_not_hold_up_another():
    schedule = of_two()
    waits = [receipt(ReceiptOutcome.WAITING, queue=queue) for queue in A]

    ended(schedule, A, waits, [], [], now=100, primary="a")

    assert schedule.pause(now=100) == 0
    assert schedule.tasks(2, now=100) == [TaskPlan(primary="b", queues=(B[0],))]
    ended(
        schedule,
        B[:1],
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
    ended(schedule, [], [], [one], [], now=1, primary="a")

    assert schedule.forbidden_everywhere == ("a", one)
    other.sent(now=1)
    ended(schedule, [], [], [other], [], now=1, primary="b")
    assert schedule.destinations == (("a", one), ("b", other))
    assert schedule.forbidden_everywhere is None, "the other one is up"
