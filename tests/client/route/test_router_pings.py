"""Pings: of which entity, when, never two at once, and none after the failback or the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus import events
from pairbus.client.route.plans import Ping, Probe, ToBacklog, ToPrimary
from pairbus.errors import one_line
from tests.client.route.client import DOWN, FULL, QUEUES, Client

NOT_YET = TimeoutError("the ping was not answered")


def pings_between(client, start, end, *, answer_after=0.0):
    """Returns when each ping was handed out. Every ping fails."""
    moments = []
    client.at(start)
    for _ in range(10_000):
        moment = client.next_due()
        if moment is None or moment > end:
            return moments
        client.at(max(moment, client.now))
        for ping in client.due():
            moments.append(client.now)
            client.at(client.now + answer_after).refuse(ping)
    raise AssertionError("a ping that never ends")


@pytest.mark.req("G-01")
def test_a_failed_over_entity_is_pinged_once_per_interval_and_first_one_interval_later():
    client = Client()
    client.fail_over()

    assert client.next_due() == 70.0
    assert client.at(69.999).due() == []
    assert client.at(70).due() == [Ping("orders", 0)]
    assert client.due() == []
    assert pings_between(client, 70, 400) == []  # the first is still out

    client.refuse(Ping("orders", 0))

    assert pings_between(client, 400, 700) == [400.0, 430.0, 490.0, 550.0, 610.0, 670.0]


@pytest.mark.req("F-08", "G-03")
def test_a_ping_that_is_answered_brings_every_sender_back_and_ends_the_pings():
    client = Client()
    client.fail_over()
    (ping,) = client.at(70).due()

    assert client.at(71).answer(ping) is True
    assert [client.plan() for _ in range(3)] == [ToPrimary(1)] * 3
    assert client.next_due() is None
    assert client.at(1e6).due() == []
    assert client.events() == [
        events.PingSent(namespace="contoso", path="orders", answered=True, error=None),
        events.FailedBack(namespace="contoso", path="orders", reason="ping", after_seconds=61.0),
    ]


@pytest.mark.req("G-02")
def test_a_ping_that_fails_leaves_the_entity_failed_over():
    client = Client()
    client.fail_over()
    (ping,) = client.at(70).due()
    client.at(72).refuse(ping, NOT_YET)

    assert client.plan() == ToBacklog(QUEUES[0])
    assert client.events() == [
        events.PingSent(namespace="contoso", path="orders", answered=False, error=NOT_YET)
    ]
    entity = client.entity()
    assert (entity.last_error, entity.next_ping) == (one_line(NOT_YET), 130.0)
    assert (entity.pings_sent, entity.pings_answered) == (1, 0)


@pytest.mark.req("F-08")
@pytest.mark.parametrize("answered", [True, False])
def test_the_outcome_of_a_ping_is_reported_but_is_no_news_once_the_entity_is_back(answered):
    client = Client()
    client.fail_over()
    (ping,) = client.at(70).due()
    client.mark()
    client.events()

    if answered:
        assert client.answer(ping) is False
    else:
        client.refuse(ping, NOT_YET)

    assert client.state() == "healthy"
    assert client.entity().last_error == one_line(DOWN)
    assert [type(event) for event in client.events()] == [events.PingSent]
    assert client.entity().pings_sent == 1


def test_an_outcome_that_is_reported_twice_frees_nothing_else():
    client = Client()
    client.fail_over()
    (old,) = client.at(70).due()
    client.refuse(old)
    client.mark()
    client.fail_over()
    (new,) = client.at(140).due()
    client.refuse(old)

    assert client.at(1000).due() == []
    assert client.answer(new) is True


# the end


@pytest.mark.req("G-03", "C-02")
def test_a_closed_client_has_nothing_to_do_for_good():
    client = Client()
    client.fail_over("orders", "invoices")
    client.fail(error=FULL)  # of its backlog queue
    (out,) = client.at(40).due()
    client.at(65).fail("suspect")
    first, _ = client.at(70).due()
    client.events()

    client.router.close()
    client.router.close()

    assert client.events() == [events.Closed(namespace="contoso")]
    assert client.status().is_closed
    for now in (71, 100, 1e6):
        assert client.at(now).due() == []
        assert client.next_due() is None
    assert out == Probe(QUEUES[0])
    assert client.answer(first) is False
    client.router.probe_answered(out.queue)
    assert client.state(first.path) == "failed over"
    assert client.due() == []
    assert client.next_due() is None


# any rhythm


@pytest.mark.req("G-01")
@given(
    interval=st.floats(0.1, 1800.0),
    began=st.floats(0.0, 1e7),
    naps=st.lists(st.floats(0.0, 4000.0), max_size=40),
)
def test_in_no_interval_are_there_two_pings_and_in_none_is_one_forgotten(interval, began, naps):
    client = Client(failover=0, ping=interval)
    client.at(began).fail()
    last, expected = 0, 1
    for nap in naps:
        before = client.next_due()
        assert before == began + expected * interval
        tasks = client.at(client.now + nap).due()
        if client.now < before:
            assert tasks == []
            continue
        client.refuse(*tasks)
        last, expected = expected, round((client.next_due() - began) / interval)
        assert expected > last
        assert began + (expected - 1) * interval <= client.now < client.next_due()


@pytest.mark.req("G-01")
@given(
    interval=st.sampled_from([1.0, 60.0, 1800.0]),
    phase=st.floats(0.5, 1.0),
    late=st.floats(0.0, 3.0),
)
def test_the_first_ping_comes_after_a_random_part_of_the_interval_and_then_one_in_each(
    interval, phase, late
):
    client = Client(failover=0, ping=interval, phase=lambda: phase)
    client.at(100).fail()

    moments = pings_between(client, 100, 100 + 20 * interval, answer_after=late * interval)

    assert moments[0] == pytest.approx(100 + phase * interval)
    slots = [int((moment - moments[0]) / interval + 1e-6) for moment in moments]
    assert slots == sorted(set(slots))
    if late < 1:
        assert slots == [*range(len(slots))]
        assert len(slots) >= 19
