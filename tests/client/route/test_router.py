"""Which namespace gets a message: the failover interval, the way back, and who learns of it."""

import pytest

from pairbus import events
from pairbus.client.route.plans import Nowhere, Ping, Probe, ToBacklog, ToPrimary
from tests.client.route.client import DOWN, QUEUES, TOO_BUSY, Client

SENT, FAILS, LOOK, BY_HAND, BUSY = "is sent", "fails", "look", "by hand", "busy"
PING_OK, PING_FAILS = "ping is answered", "ping fails"
PRIMARY, BACKLOG = ToPrimary, ToBacklog

# With a failover interval of 10 and pings every 60 seconds: what happens when, then the time at
# which one more message is planned, and where it goes. What each signal does to the health of an
# entity is in `test_health.py`; sends that end late are in `test_router_model.py`.
HISTORIES = {
    "a client starts on the primary": ([], 0, PRIMARY),
    "so does a message before the interval is over": ([(0, FAILS), (9, FAILS)], 9.999, PRIMARY),
    "when it is over, messages are diverted": ([(0, FAILS), (9, FAILS)], 10, BACKLOG),
    "without any further send": ([(0, FAILS)], 10, BACKLOG),
    "a success within it clears the timer": ([(0, FAILS), (9, SENT)], 10, PRIMARY),
    "while the service is busy, the entity stays on the primary": (
        [(0, BUSY), (10, BUSY), (3600, BUSY)],
        3600,
        PRIMARY,
    ),
    "busy is no success either: the timer runs on": ([(0, FAILS), (5, BUSY)], 10, BACKLOG),
    "a ping that fails changes nothing": ([(0, FAILS), (70, LOOK), (71, PING_FAILS)], 72, BACKLOG),
    "a ping that is answered ends it": ([(0, FAILS), (70, LOOK), (71, PING_OK)], 71, PRIMARY),
    "a word by hand ends it, too": ([(0, FAILS), (10, LOOK), (11, BY_HAND)], 11, PRIMARY),
    "a ping that is answered after that is no news": (
        [(0, FAILS), (70, LOOK), (71, BY_HAND), (72, FAILS), (82, LOOK), (83, PING_OK)],
        83,
        BACKLOG,
    ),
}


def live(client, history):
    pings = []
    for now, what in history:
        client.at(now)
        match what:
            case "is sent":
                client.ok()
            case "fails":
                client.fail()
            case "busy":
                client.router.throttled(
                    "orders", client.plan(), TOO_BUSY, wait_seconds=10.0, now=now
                )
            case "look":
                pings += [task for task in client.due() if isinstance(task, Ping)]
            case "by hand":
                client.mark()
            case "ping is answered":
                client.answer(pings.pop(0))
            case "ping fails":
                client.refuse(pings.pop(0))


@pytest.mark.req("A-05", "F-02", "F-03", "F-04", "F-08", "A-11")
@pytest.mark.parametrize(("history", "at", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_where_the_next_message_goes(history, at, expected):
    client = Client()

    live(client, history)

    assert type(client.at(at).plan()) is expected


# one entity at a time, one client at a time


@pytest.mark.req("F-05")
def test_the_spelling_of_a_path_makes_no_difference():
    client = Client(failover=0)
    client.router.register("Orders/EU", now=0.0)
    client.fail("orders/eu")

    assert client.plan("ORDERS/eu") == client.plan("Orders/EU") == ToBacklog(QUEUES[0])
    assert [entity.path for entity in client.status().entities] == ["Orders/EU"]
    assert [event.path for event in client.events()] == ["Orders/EU"]
    assert client.mark("oRDERS/eu") is True


def test_what_was_planned_under_one_spelling_may_be_reported_under_another():
    client = Client()
    plan = client.plan("orders")
    client.ok("Orders", plan)
    client.router.throttled("oRders", plan, TOO_BUSY, wait_seconds=10.0, now=0.0)
    client.router.send_failed("orDers", Nowhere(None, None), now=0.0)

    entity = client.entity()
    assert (entity.sent, entity.throttled, entity.refused) == (1, 1, 1)


# what was under way


# by hand


@pytest.mark.req("A-11")
def test_a_path_that_is_marked_healthy_goes_to_the_primary_at_once():
    client = Client()
    client.fail_over()
    client.at(30)

    assert client.mark() is True
    assert client.plan() == ToPrimary(1)
    assert client.events() == [
        events.FailedBack(namespace="contoso", path="orders", reason="by hand", after_seconds=20.0)
    ]
    assert client.mark() is False


@pytest.mark.req("A-11")
def test_an_unknown_path_cannot_be_marked():
    with pytest.raises(KeyError, match="no sender of this client has used 'orders'"):
        Client().mark()


def test_marking_after_the_interval_is_over_ends_the_failover_that_nobody_noticed():
    client = Client()
    client.fail()
    stuck = client.plan()
    client.at(100)

    assert client.mark() is True
    assert [type(event) for event in client.events()] == [
        events.PrimaryFailed,
        events.FailedOver,
        events.FailedBack,
    ]
    assert client.fail(plan=stuck) is True
    assert client.state() == "healthy"


# the backlog is out of order, too


def test_a_failover_with_no_backlog_queue_left_says_so():
    client = Client(failover=0, queues=[])
    client.fail()

    assert client.events()[-1].backlog_queue is None
    assert client.plan() == Nowhere(DOWN, None)


# events


def test_the_story_of_an_outage_is_reported_in_order():
    client = Client(choose=lambda queues: queues[-1])
    client.fail()
    client.at(4).fail()
    client.at(5).ok()
    client.at(6).fail()
    client.at(16).ok(count=3, seconds=0.25)
    client.at(76)
    client.answer(*client.due())

    common = {"namespace": "contoso", "path": "orders"}
    assert client.events() == [
        events.PrimaryFailed(**common, error=DOWN, since_seconds=0.0, failover_in_seconds=10.0),
        events.PrimaryFailed(**common, error=DOWN, since_seconds=4.0, failover_in_seconds=6.0),
        events.Recovered(**common),
        events.PrimaryFailed(**common, error=DOWN, since_seconds=0.0, failover_in_seconds=10.0),
        events.FailedOver(**common, backlog_queue=QUEUES[2], error=DOWN, after_seconds=10.0),
        events.Diverted(**common, backlog_queue=QUEUES[2], count=3, seconds=0.25),
        events.PingSent(**common, answered=True, error=None),
        events.FailedBack(**common, reason="ping", after_seconds=60.0),
    ]
    assert client.events() == []


def test_the_error_of_a_failover_is_the_latest():
    client = Client()
    slow = client.plan()
    client.fail()
    latest = TimeoutError()
    client.at(12).fail(plan=slow, error=latest)

    failed_over = client.events()[-1]
    assert (failed_over.error, failed_over.after_seconds) == (latest, 12.0)


def busy_backlog(client):
    plan = client.plan()
    client.router.throttled("orders", plan, TOO_BUSY, wait_seconds=10.0, now=client.now)
    return plan.queue


@pytest.mark.req("R-03", "F-06")
def test_a_busy_backlog_queue_leaves_the_rotation_for_its_wait():
    client = Client(failover=0)
    client.fail()
    client.events()

    assert busy_backlog(client) == QUEUES[0]

    throttled, withdrawn = client.events()
    assert (throttled.backlog_queue, throttled.wait_seconds) == (QUEUES[0], 10.0)
    assert (withdrawn.backlog_queue, withdrawn.error, withdrawn.left) == (QUEUES[0], TOO_BUSY, 2)
    assert client.plan() == ToBacklog(QUEUES[1])
    assert client.at(9).due() == []
    assert client.at(10).due() == [Probe(QUEUES[0])]
    client.router.probe_answered(QUEUES[0])
    assert client.status().backlog_queues == QUEUES


def test_threads_that_took_the_time_before_the_lock_make_no_negative_times():
    client = Client()
    early, late = 99.0, 100.0
    client.router.failed("orders", client.plan(), DOWN, now=late)
    client.router.failed("orders", client.plan(), DOWN, now=early)
    client.at(110).plan()
    client.router.mark_healthy("orders", now=109.0)

    first, second, _, back = client.events()
    assert (first.since_seconds, first.failover_in_seconds) == (0.0, 10.0)
    assert (second.since_seconds, second.failover_in_seconds) == (0.0, 10.0)
    assert back.after_seconds == 0.0


# --- one entity finds the namespace unreachable


def reset(client, path, *, is_unreachable=True):
    plan = client.plan(path)
    return client.router.failed(path, plan, DOWN, now=client.now, is_unreachable=is_unreachable)


def failed_over(client):
    return sorted(client.status().failed_over)


@pytest.mark.req("F-04")
def test_by_default_no_entity_fails_over_for_another():
    client = Client(failover=0)
    client.ok("stock")
    reset(client, "orders")

    assert failed_over(client) == ["orders"]


def test_with_the_scope_of_a_namespace_all_entities_fail_over_with_the_first():
    client = Client(failover=10, together=True)
    client.ok("stock")
    client.ok("orders")
    reset(client.at(5), "orders")
    assert failed_over(client) == []
    client.events()

    client.at(15).due()

    assert failed_over(client) == ["orders", "stock"]
    over = client.events()
    assert [type(event) for event in over] == [events.FailedOver] * 2
    assert [event.error for event in over] == [DOWN, DOWN]
    assert isinstance(client.plan("stock"), ToBacklog)
    assert {task.path for task in client.at(75).due()} == {"orders", "stock"}


def test_an_entity_that_is_first_used_then_is_failed_over_too():
    client = Client(failover=0, together=True)
    reset(client, "orders")

    assert isinstance(client.plan("stock"), ToBacklog)
    assert client.mark("orders")
    assert isinstance(client.plan("invoices"), ToPrimary)
    assert failed_over(client) == ["stock"]


def test_an_entity_that_fails_for_another_reason_fails_over_alone():
    client = Client(failover=0, together=True)
    client.ok("stock")
    reset(client, "orders", is_unreachable=False)

    assert failed_over(client) == ["orders"]


def test_if_another_entity_was_reached_meanwhile_the_namespace_is_not_unreachable():
    client = Client(failover=10, together=True)
    reset(client, "orders")
    client.at(3).ok("stock")
    client.at(10).due()

    assert failed_over(client) == ["orders"]


def test_each_entity_comes_back_by_its_own_ping():
    client = Client(failover=0, ping=60, together=True)
    client.ok("stock")
    reset(client.at(1), "orders")
    pings = {ping.path: ping for ping in client.at(61).due()}
    client.answer(pings["orders"])

    assert failed_over(client) == ["stock"]


def test_a_thousand_entities_fail_over_at_once():
    client = Client(failover=10, together=True)
    paths = [f"queue-{number}" for number in range(1000)]
    for path in paths:
        client.ok(path)
    for path in paths:
        reset(client.at(5), path)

    client.at(15).due()

    assert failed_over(client) == sorted(paths)
    assert len(client.at(75).due()) == 1000
