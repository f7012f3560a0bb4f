import dataclasses

import pytest

from pairbus.client.route.health import State
from pairbus.client.route.router import Router
from pairbus.client.route.status import EntityStatus, RotationStatus, RouterStatus, WithdrawnQueue
from tests.client.route.client import DOWN, FULL, QUEUES, Client


def test_an_unused_router_has_little_to_tell():
    router = Router("contoso", QUEUES, failover_seconds=10.0, ping_seconds=60.0, choose=max)

    assert router.status() == RouterStatus(
        namespace="contoso",
        entities=(),
        rotation=RotationStatus(in_rotation=QUEUES, withdrawn=()),
        pings_sent=0,
        pings_answered=0,
        pings_out=0,
        is_closed=False,
    )


def test_a_snapshot_tells_everything_of_every_entity():
    client = Client()
    client.at(1).ok("orders", count=5)
    client.ok("invoices", count=2)
    client.at(5).fail("orders")
    client.at(15).plan("orders")
    client.fail("orders", error=FULL)  # the backlog queue's
    client.at(16).ok("orders", count=7)
    client.at(75).due()

    orders, invoices = client.router.status().entities

    assert invoices == EntityStatus(
        path="invoices",
        state=State.HEALTHY,
        since=1.0,
        first_failure=None,
        last_error=None,
        backlog_queue=QUEUES[1],
        sent=2,
        diverted=0,
        failures=0,
        throttled=0,
        refused=0,
        pings_sent=0,
        pings_answered=0,
        next_ping=None,
    )
    assert orders == dataclasses.replace(
        invoices,
        path="orders",
        state=State.FAILED_OVER,
        since=15.0,
        first_failure=5.0,
        last_error=DOWN,
        sent=5,
        diverted=7,
        failures=1,
        next_ping=135.0,
    )
    assert client.router.status().rotation == RotationStatus(
        in_rotation=QUEUES[1:],
        withdrawn=(WithdrawnQueue(queue=QUEUES[0], error=FULL, since=15.0, retry_at=45.0),),
    )
    assert client.router.status().pings_out == 1


def test_pings_are_counted_when_their_outcome_is_known():
    client = Client()
    client.fail_over("orders", "invoices")
    invoices, orders = client.at(70).due()
    assert client.router.status().pings_out == 2
    client.refuse(orders)
    client.answer(invoices)

    status = client.router.status()

    assert (status.pings_sent, status.pings_answered, status.pings_out) == (2, 1, 0)
    assert [entity.pings_answered for entity in status.entities] == [0, 1]


def test_a_snapshot_does_not_change_afterwards():
    client = Client()
    client.ok()
    before = client.router.status()
    client.ok()

    assert before.entities[0].sent == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.entities[0].sent = 2
