"""Which backlog queue takes an entity's messages, and what happens when it fails."""

import random
from collections import Counter

import pytest

from pairbus import events
from pairbus.client.route.plans import Nowhere, Probe, ToBacklog, ToPrimary
from pairbus.errors import one_line
from tests.client.route.client import DOWN, FULL, QUEUES, Client

NOT_YET = ConnectionError("probe: not yet")


class Dice:
    """Say in advance what they will show, as the index among those that are left."""

    def __init__(self, *throws):
        self.throws = list(throws)

    def __call__(self, queues):
        return queues[self.throws.pop(0)]


def lose(client, queue, path="orders"):
    assert client.router.failed(path, ToBacklog(queue), FULL, now=client.now) is True


# picking


@pytest.mark.req("Q-05")
def test_each_entity_of_each_client_picks_at_random():
    picks = Counter()
    for seed in range(50):
        client = Client(choose=random.Random(seed).choice)
        picks.update(client.router.register(f"entity-{n}", now=0.0) for n in range(60))

    assert set(picks) == set(QUEUES)
    assert all(900 < times < 1100 for times in picks.values())


@pytest.mark.req("Q-05")
def test_an_entity_picks_once_and_keeps_to_it():
    client = Client(choose=Dice(2))

    assert client.router.register("orders", now=0.0) == QUEUES[2]
    assert client.router.register("Orders", now=5.0) == QUEUES[2]

    client.fail_over()

    assert [client.plan() for _ in range(5)] == [ToBacklog(QUEUES[2])] * 5
    assert client.entity().backlog_queue == QUEUES[2]


@pytest.mark.req("Q-05", "F-08")
def test_after_the_way_back_it_picks_anew():
    client = Client(choose=Dice(2, 1))
    client.fail_over()
    client.mark()

    assert client.router.register("orders", now=10.0) == QUEUES[1]

    client.fail_over()

    assert client.plan() == ToBacklog(QUEUES[1])


# failing


@pytest.mark.req("F-06")
def test_when_a_backlog_queue_fails_the_message_goes_to_another():
    client = Client(failover=0)

    plan = client.send(primary=DOWN, backlog={QUEUES[0]: FULL, QUEUES[1]: FULL})

    assert plan == ToBacklog(QUEUES[2])
    assert client.events()[1:] == [
        events.BacklogWithdrawn(namespace="contoso", backlog_queue=QUEUES[0], error=FULL, left=2),
        events.BacklogWithdrawn(namespace="contoso", backlog_queue=QUEUES[1], error=FULL, left=1),
        events.Diverted(
            namespace="contoso", path="orders", backlog_queue=QUEUES[2], count=1, seconds=0.0
        ),
    ]


@pytest.mark.req("F-06")
def test_a_queue_lost_by_two_senders_at_once_is_withdrawn_once():
    client = Client()
    client.fail_over()
    ours, theirs = client.plan(), client.plan()

    assert client.fail(plan=ours, error=FULL) is True
    assert client.fail(plan=theirs, error=NOT_YET) is True
    assert len(client.events()) == 1
    (withdrawn,) = client.status().withdrawn
    assert (withdrawn.queue, withdrawn.error, withdrawn.since) == (
        QUEUES[0],
        one_line(NOT_YET),
        10.0,
    )


def test_the_failure_of_a_backlog_queue_says_nothing_of_the_primary():
    client = Client()
    client.plan("invoices")
    client.fail_over("orders")
    lose(client, QUEUES[0])

    assert client.state("invoices") == "healthy"
    assert client.entity("orders").failures == 1
    assert client.entity("orders").last_error == one_line(DOWN)


def test_a_healthy_entity_whose_queue_was_withdrawn_has_another_before_it_needs_it():
    client = Client()
    client.router.register("invoices", now=0.0)
    client.fail_over("orders")
    lose(client, QUEUES[0])

    assert client.router.register("invoices", now=10.0) == QUEUES[1]
    assert client.entity("invoices").backlog_queue == QUEUES[1]
    assert client.router.wanted_queues() == (QUEUES[1],)


def test_a_message_that_a_withdrawn_queue_took_after_all_is_counted_and_no_more():
    client = Client()
    client.fail_over()
    slow = client.plan()
    lose(client, QUEUES[0])
    client.ok(plan=slow)

    assert client.entity().diverted == 1
    assert client.plan() == ToBacklog(QUEUES[1])


@pytest.mark.req("F-07")
def test_an_entity_that_had_nowhere_to_go_takes_the_first_queue_that_is_back():
    client = Client(failover=0)
    client.send(primary=DOWN, backlog=dict.fromkeys(QUEUES, FULL))
    assert client.plan() == Nowhere(DOWN, FULL)

    client.router.probe_answered(QUEUES[1])

    assert client.at(30).plan() == ToBacklog(QUEUES[1])


def test_the_rest_of_a_call_stays_in_the_backlog_though_the_entity_is_back():
    client = Client(choose=Dice(2, 1))
    client.fail_over()
    client.mark()

    assert client.plan() == ToPrimary(1)
    assert client.router.plan_backlog("orders", now=10.0) == ToBacklog(QUEUES[1])
    assert client.state() == "healthy"


@pytest.mark.req("F-07")
def test_the_rest_of_a_call_may_find_no_queue_left():
    client = Client(queues=QUEUES[:1])
    client.fail_over()
    client.mark()
    lose(client, QUEUES[0])

    assert client.router.plan_backlog("orders", now=10.0) == Nowhere(DOWN, FULL)


def test_the_causes_are_the_latest_of_each_namespace():
    client = Client()
    assert client.router.causes("orders", now=0.0) == Nowhere(None, None)

    client.fail_over()
    lose(client, QUEUES[0])

    assert client.router.causes("Orders", now=10.0) == Nowhere(DOWN, FULL)


# coming back


@pytest.mark.req("F-06")
def test_a_withdrawn_queue_is_probed_after_its_rest_until_it_answers():
    client = Client(ping=1000)
    client.fail_over()
    lose(client, QUEUES[0])

    assert client.next_due() == 40.0
    assert client.at(39.999).due() == []
    assert client.at(40).due() == [Probe(QUEUES[0])]
    assert client.at(50).due() == []

    client.router.probe_failed(QUEUES[0], NOT_YET, now=50.0)

    assert client.status().withdrawn[0].error == one_line(NOT_YET)
    assert client.next_due() == 80.0
    assert client.at(81).due() == [Probe(QUEUES[0])]

    client.events()
    client.router.probe_answered(QUEUES[0])
    client.router.probe_answered(QUEUES[0])

    assert client.events() == [
        events.BacklogReadmitted(namespace="contoso", backlog_queue=QUEUES[0], left=3)
    ]
    assert client.status().backlog_queues == QUEUES


def test_a_probe_that_fails_after_the_queue_is_back_means_nothing():
    client = Client()
    client.fail_over()
    lose(client, QUEUES[0])
    client.router.probe_answered(QUEUES[0])

    client.router.probe_failed(QUEUES[0], NOT_YET, now=50.0)

    assert client.status().backlog_queues == QUEUES
    assert client.router.causes("orders", now=50.0) == Nowhere(DOWN, FULL)


def test_an_entity_that_moved_on_stays_where_it_is():
    client = Client()
    client.fail_over()
    lose(client, QUEUES[0])
    assert client.plan() == ToBacklog(QUEUES[1])

    client.router.probe_answered(QUEUES[0])

    assert client.plan() == ToBacklog(QUEUES[1])


def test_a_failure_that_began_before_a_queue_was_back_does_not_withdraw_it_again():
    client = Client(queues=QUEUES[:1])
    client.fail_over()
    ours, stuck = client.plan(), client.plan()
    client.fail(plan=ours, error=FULL)
    client.router.probe_answered(QUEUES[0])

    assert client.at(41).fail(plan=stuck, error=FULL) is True
    assert client.plan() == ToBacklog(QUEUES[0])

    client.fail(error=FULL)

    assert client.plan() == Nowhere(DOWN, FULL)


# connections


def test_the_queues_to_be_kept_ready_are_those_that_some_entity_would_use():
    client = Client(choose=Dice(2, 0, 2, 1))
    assert client.router.wanted_queues() == ()

    for path in ("a", "b", "c"):
        client.router.register(path, now=0.0)

    assert client.router.wanted_queues() == (QUEUES[0], QUEUES[2])

    lose(client, QUEUES[0], "a")  # b had it, and throws again

    assert client.router.wanted_queues() == (QUEUES[2],)


def test_with_no_queue_left_none_is_wanted():
    client = Client(queues=QUEUES[:1])
    assert client.plan() == ToPrimary(0)
    lose(client, QUEUES[0])

    assert client.router.register("orders", now=0.0) is None
    assert client.router.wanted_queues() == ()
