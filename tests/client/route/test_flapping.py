"""A primary that flaps, for an hour: up for two seconds in every ten."""

from pathlib import Path

import pytest

from pairbus import events
from pairbus.client.route.plans import ToBacklog
from tests.client.route.client import Client

PAGE = Path(__file__).parents[3] / "docs" / "failover.md"
HOUR = 3600
SENDS_A_SECOND = 4


def failovers_in_an_hour(*, pings, failover=0.0, ping=1.0):
    client = Client(failover=failover, ping=ping, pings=pings)
    count = 0
    for tick in range(HOUR * SENDS_A_SECOND):
        client.at(tick / SENDS_A_SECOND)
        is_up = client.now % 10 < 2
        for task in client.due():
            if is_up:
                client.answer(task)
            else:
                client.refuse(task)
        if is_up or isinstance(client.plan(), ToBacklog):
            client.ok()
        else:
            client.fail()
        count += sum(isinstance(event, events.FailedOver) for event in client.events())
    return count


@pytest.mark.req("X-11")
def test_the_failovers_of_a_flapping_primary_fall_as_the_documentation_says():
    by_default = failovers_in_an_hour(pings=1)
    with_two = failovers_in_an_hour(pings=2)

    assert f"from {by_default} an hour to {with_two}." in " ".join(PAGE.read_text("utf-8").split())
    # Two pings in a row fit into two seconds, four do not: it came home once, and no more.
    assert (by_default, with_two) == (HOUR // 10, 2)


@pytest.mark.req("X-11")
def test_a_primary_that_stays_up_after_it_flapped_gets_its_messages_and_is_calm_in_the_end():
    client = Client(failover=0.0, ping=1.0, pings=2)
    for _ in range(2):
        client.fail()
        client.mark()
        client.at(client.now + 1)
    client.fail()
    assert client.entity().pings_needed == 8
    for second in range(1, 9):
        assert client.state() == "failed over"
        (ping,) = client.at(1 + second + 1).due()
        client.answer(ping)
    assert client.state() == "healthy"
    client.events()

    client.at(client.next_due()).due()
    assert (client.entity().pings_needed, client.events()) == (4, [])
    client.at(client.next_due()).due()
    assert client.entity().pings_needed == 2
    assert client.events() == [events.Calmed(namespace="contoso", path="orders")]
    assert client.next_due() is None
