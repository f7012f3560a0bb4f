"""Which backlog queue takes an entity's messages, and what happens when it fails."""

import random
from collections import Counter

import pytest

from pairbus import events
from pairbus.client.route.plans import Nowhere, Probe, ToBacklog
from pairbus.errors import one_line
from tests.client.route.client import DOWN, FULL, QUEUES, Client

NOT_YET = ConnectionError("probe: not yet")


class Dice:
    """The test sets in advance what they show: the index among the queues that are left."""

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


def test_a_healthy_entity_whose_queue_was_withdrawn_has_another_before_it_needs_it():
    client = Client()
    client.router.register("invoices", now=0.0)
    client.fail_over("orders")
    lose(client, QUEUES[0])

    assert client.router.register("invoices", now=10.0) == QUEUES[1]
    assert client.entity("invoices").backlog_queue == QUEUES[1]
    assert client.router.wanted_queues() == (QUEUES[1],)


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


# connections


def test_the_queues_to_be_kept_ready_are_those_that_some_entity_would_use():
    client = Client(choose=Dice(2, 0, 2, 1))
    assert client.router.wanted_queues() == ()

    for path in ("a", "b", "c"):
        client.router.register(path, now=0.0)

    assert client.router.wanted_queues() == (QUEUES[0], QUEUES[2])

    lose(client, QUEUES[0], "a")  # b had it, and throws again

    assert client.router.wanted_queues() == (QUEUES[2],)
