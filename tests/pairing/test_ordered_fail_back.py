"""Ordered failback on real brokers, with the syphon's own tasks: what one client sends to a
session arrives in the order in which it was sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus import Outbox, PairingError
from pairbus.events import Diverted, FailBackDelayed, FailedBack, FailedOver, Returning
from pairbus.fast.address import Address
from pairbus.syphon.drain import DrainTask, drain
from tests.pairing.world import QUEUES, SECOND
from tests.waiting import wait_until

pytestmark = pytest.mark.req("X-03")


@contextmanager
def syphon(world: Any) -> Iterator[None]:
    """Rounds of the syphon's task over all backlog queues, without Spark."""
    stopping = threading.Event()
    primary, secondary = (
        Address.from_connection_string(namespace.connection_string(), ca_file=namespace.ca_file)
        for namespace in (world.primary, world.secondary)
    )

    def run() -> None:
        while not stopping.wait(0.2):
            drain(
                DrainTask(
                    run="run",
                    round=1,
                    queues=tuple(world.backlog_path(n) for n in range(QUEUES)),
                    primary=primary,
                    secondary=secondary,
                    seconds=1.0,
                    chunk=100,
                )
            )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def arrived(world: Any, queue: str, session: str, count: int) -> list[str]:
    client = ServiceBusClient.from_connection_string(world.primary.connection_string())
    with client, client.get_queue_receiver(queue, session_id=session) as receiver:
        found: list[str] = []
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            for message in receiver.receive_messages(50, max_wait_time=2):
                found.append(str(message))
                receiver.complete_message(message)
        return found


def test_a_session_keeps_its_order_over_three_outages_while_messages_are_sent(world):
    queue = world.queue(requires_session=True)
    client = world.pair(ping_primary_interval=SECOND, fail_back="ordered")
    sender = world.sender(client, queue)
    sent: list[str] = []

    def send() -> None:
        sent.append(f"{len(sent)}")
        sender.send_messages(ServiceBusMessage(sent[-1], session_id="s", message_id=sent[-1]))

    with syphon(world):
        for outage in range(1, 4):
            send()
            with world.primary.fault("cannot_send", queue):
                for _ in range(5):
                    send()
                wait_until(lambda n=outage: len(world.events_of(FailedOver)) == n, "the failover")
            # Somebody sends all the time, so there is no pause in which the backlog is empty.
            deadline = time.monotonic() + 180
            while len(world.events_of(FailedBack)) < outage and time.monotonic() < deadline:
                send()
                time.sleep(0.02)
            assert [each.reason for each in world.events_of(FailedBack)] == [
                "backlog home"
            ] * outage
            send()
        assert arrived(world, queue, "s", len(sent)) == sent
    assert sum(each.count for each in world.events_of(Diverted)) >= 15
    assert len(world.events_of(Returning)) >= 3
    spent = client.pairing.spent()[1].total
    assert spent.peek >= 3
    assert spent.receive == 0


def test_without_a_syphon_it_keeps_diverting_and_gives_up_when_it_is_told_to(world, monkeypatch):
    monkeypatch.setattr("pairbus.client.route.own_backlog.STALL_SECONDS", 1.0)
    # The backlog is never nearly home, so no send waits for it.
    monkeypatch.setattr("pairbus.client.route.own_backlog.NEAR_SECONDS", -1.0)
    queue = world.queue()
    client = world.pair(
        ping_primary_interval=SECOND,
        fail_back="ordered",
        fail_back_wait_max=timedelta(seconds=6),
    )
    sender = world.sender(client, queue)
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "1")
    world.wait_for(Returning)
    assert client.pairing.status().failed_over == (queue,)
    world.send(sender, "2")
    delayed = world.wait_for(FailBackDelayed)[0]
    assert (delayed.path, delayed.error) == (queue, None)
    assert delayed.seconds >= 1.0
    [failed_back] = world.wait_for(FailedBack)
    assert failed_back.reason == "wait over"
    world.send(sender, "3")
    assert [str(message) for message in world.primary.peek(queue)] == ["3"]
    assert [str(message) for message in world.backlog()] == ["1", "2"]


@pytest.mark.req("X-12")
def test_a_policy_without_listen_is_refused_when_pairing(world):
    text = world.secondary.connection_string("sender")
    client = world.client()
    with pytest.raises(PairingError, match=r"could not peek at backlog queue .*Listen claim"):
        world.pair(client, factory=world.factory(text), fail_back="ordered")
    world.pair(client, factory=world.factory(text))


@pytest.mark.req("X-04")
def test_messages_from_an_outbox_keep_their_place_behind_those_in_the_backlog(world, tmp_path):
    queue = world.queue(requires_session=True)
    client = world.pair(
        ping_primary_interval=SECOND, fail_back="ordered", outbox=Outbox(tmp_path / "outbox.db")
    )
    sender = world.sender(client, queue)

    def send(*bodies: str) -> None:
        world.send(sender, *bodies, session_id="s", timeout=3)

    send("1")
    with world.primary.fault("cannot_send", queue):
        send("2", "3")
        with world.secondary.fault("cannot_send"):
            send("4", "5")
            assert client.pairing.status().outbox.waiting == 2
        wait_until(lambda: not client.pairing.status().outbox.waiting, "an empty outbox")
        assert [str(message) for message in world.backlog()] == ["2", "3", "4", "5"]
    with syphon(world):
        world.wait_for(FailedBack)
        send("6")
        assert arrived(world, queue, "s", 6) == ["1", "2", "3", "4", "5", "6"]
