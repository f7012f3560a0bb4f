"""A snapshot of a pairing for people and programs: counts, dates, texts, and JSON."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from pairbus.client.route.plans import ToBacklog, ToPrimary
from pairbus.client.route.router import Router
from pairbus.client.route.status import EntityStatus, PairingStatus
from tests.client.route.client import DOWN, FULL, QUEUES, Client

# The router's clock stood at 0 then.
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def router() -> Router:
    return Router(
        "contoso",
        ("a", "b"),
        failover_seconds=10.0,
        ping_seconds=5.0,
        rest_seconds=30.0,
        choose=lambda some: some[0],
    )


def seen(router: Router) -> PairingStatus:
    return router.status(secondary="backup", date=after)


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def in_trouble() -> Router:
    """`Orders` failed over at 30 s with a queue withdrawn, `invoices` has sent three."""
    routing = router()
    plan = routing.plan("Orders", now=0.0)
    assert isinstance(plan, ToPrimary)
    routing.failed("Orders", plan, OSError("gone"), now=20.0)
    diverted = routing.plan("Orders", now=30.0)
    assert isinstance(diverted, ToBacklog)
    routing.failed("Orders", diverted, OSError("full"), now=31.0)
    again = routing.plan("Orders", now=31.0)
    assert isinstance(again, ToBacklog)
    routing.sent("Orders", again, count=2, now=32.0)
    plan = routing.plan("invoices", now=32.0)
    assert isinstance(plan, ToPrimary)
    routing.sent("invoices", plan, count=3, now=33.0)
    return routing


def test_moments_are_dates_in_utc() -> None:
    orders = seen(in_trouble()).entity("orders")

    assert orders.state == "failed over"
    assert orders.since == after(30)
    assert orders.first_failure == after(20)
    assert orders.next_ping == after(35)
    assert orders.since.tzinfo is UTC


def test_errors_are_texts_with_their_kind() -> None:
    status = seen(in_trouble())

    assert status.entity("orders").last_error == "OSError: gone"
    [withdrawn] = status.withdrawn
    assert (withdrawn.queue, withdrawn.error) == ("a", "OSError: full")
    assert (withdrawn.since, withdrawn.retry_at) == (after(31), after(61))


def test_an_entity_is_found_whatever_its_case() -> None:
    status = seen(in_trouble())

    assert status.entity("oRDERS").path == "Orders"
    with pytest.raises(KeyError, match="payments"):
        status.entity("payments")


def test_it_can_be_written_as_json() -> None:
    status = seen(in_trouble())

    read = json.loads(json.dumps(status.as_dict()))

    assert read["entities"][0]["since"] == after(30).isoformat()
    assert read["entities"][1]["first_failure"] is None
    assert read["backlog_queues"] == ["b"]
    assert read["withdrawn"][0]["error"] == "OSError: full"
    assert read["is_closed"] is False


# --- with the router's own seconds in place of dates


def test_a_snapshot_has_everything_about_every_entity() -> None:
    client = Client()
    client.at(1).ok("orders", count=5)
    client.ok("invoices", count=2)
    client.at(5).fail("orders")
    client.at(15).plan("orders")
    client.fail("orders", error=FULL)  # on the backlog queue
    client.at(16).ok("orders", count=7)
    client.at(75).due()

    orders, invoices = client.status().entities

    assert invoices == EntityStatus(
        path="invoices",
        state="healthy",
        since=1.0,  # type: ignore[arg-type]
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
        pings_needed=1,
    )
    assert orders == dataclasses.replace(
        invoices,
        path="orders",
        state="failed over",
        since=15.0,  # type: ignore[arg-type]
        first_failure=5.0,  # type: ignore[arg-type]
        last_error=f"ConnectionError: {DOWN}",
        sent=5,
        diverted=7,
        failures=1,
        next_ping=135.0,  # type: ignore[arg-type]
    )


def test_pings_are_counted_when_their_outcome_is_known() -> None:
    client = Client()
    client.fail_over("orders", "invoices")
    invoices, orders = client.at(70).due()
    assert client.status().pings_sent == 0
    client.refuse(orders)
    client.answer(invoices)

    status = client.status()

    assert (status.pings_sent, status.pings_answered) == (2, 1)
    assert [entity.pings_answered for entity in status.entities] == [0, 1]
