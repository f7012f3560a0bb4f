"""A client that hosts a syphon: the two clients of the pair, and the syphon, end together.

The syphon here only records its calls.
"""

from __future__ import annotations

import threading
import time

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.sdk.pairing_errors import ClientFaulted
from pairbus.errors import PairbusError
from pairbus.events import Paired, SyphonFailed, SyphonRestarted
from tests.client.fakes import RecordedSyphon
from tests.pairing.shells import bare
from tests.waiting import wait_until


def is_faulted(client, queue: str) -> bool:
    """Using it afterwards raises an error."""
    try:
        client.get_queue_sender(queue)
    except ClientFaulted as error:
        assert isinstance(error, ServiceBusError)  # noqa: PT017
        assert isinstance(error, PairbusError)  # noqa: PT017
        return True
    except ValueError:  # it was closed
        return False
    return False


def no_partner_waits() -> None:
    """The five seconds that a partner has are over, or it has ended."""
    wait_until(
        lambda: not any(t.name.startswith("pairbus-partner") for t in threading.enumerate()),
        "nobody waits for a partner",
    )


@pytest.mark.req("A-06")
def test_a_syphon_is_started_with_what_it_needs(world):
    client, factory, manager = world.client(), world.factory(), world.manager()
    syphon = RecordedSyphon()
    world.pair(
        client,
        factory=factory,
        manager=manager,
        enable_syphon=True,
        syphon=syphon,
        backlog_queue_count=2,
    )
    context = syphon.context
    assert context.namespace == world.name
    assert context.primary is bare(client)
    assert context.secondary is bare(factory)
    assert context.manager is bare(manager)
    assert context.backlog_queues == (world.backlog_path(0), world.backlog_path(1))
    assert syphon.stops == []


@pytest.mark.req("Q-04", "S-01")
def test_a_syphon_that_does_not_read_all_queues_is_warned_about(world, caplog):
    world.pair(backlog_queue_count=4)
    world.pair(enable_syphon=True, syphon=RecordedSyphon(), backlog_queue_count=2)
    world.pair(backlog_queue_count=2)
    warnings = [event.warnings for event in world.events_of(Paired)]
    [warning] = warnings[1]
    assert warnings == [(), (warning,), ()]
    assert f"{world.backlog_path(2)!r} to {world.backlog_path(3)!r} exists" in warning
    assert "Set backlog_queue_count to 4" in warning
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        warning
    ]


@pytest.mark.req("C-01", "C-02")
@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_a_client_whose_partner_has_ended_is_faulted_after_its_time(world, first, monkeypatch):
    """Five seconds, as `shells/test_syphon.py` says."""
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 1.0)
    queue = world.queue()
    client, factory, syphon = world.client(), world.factory(), RecordedSyphon()
    world.pair(client, factory=factory, enable_syphon=True, syphon=syphon)
    ended, partner = (client, factory) if first == "primary" else (factory, client)
    began = time.monotonic()
    ended.close()
    wait_until(lambda: syphon.stops, "the syphon is stopped with the first of them")
    assert not is_faulted(partner, queue)
    wait_until(lambda: is_faulted(partner, queue), "the partner is faulted")
    assert 0.9 <= time.monotonic() - began < 40
    assert not is_faulted(ended, queue), "that one was closed, as it should be"
    assert len(syphon.stops) == 1


@pytest.mark.req("C-01", "X-16")
def test_a_syphon_that_fails_is_restarted_while_the_clients_go_on(world):
    queue = world.queue()
    client, factory, syphon = world.client(), world.factory(), RecordedSyphon()
    world.pair(client, factory=factory, enable_syphon=True, syphon=syphon)
    sender = world.sender(client, queue)
    world.send(sender, "before")
    began = time.monotonic()
    syphon.context.failed(RuntimeError("the cluster is gone"))
    world.wait_for(SyphonFailed)
    status = client.pairing.status().syphon
    assert (status.state, status.last_error) == ("restarting", "RuntimeError: the cluster is gone")
    world.send(sender, "meanwhile")
    world.wait_for(SyphonRestarted)
    assert 1 <= time.monotonic() - began < 10, "after one second"
    assert client.pairing.status().syphon.state == "running"
    assert client.pairing.status().as_dict()["syphon"]["failures"] == 1
    assert (syphon.starts, len(syphon.stops)) == (2, 1)
    with client.get_queue_receiver(queue) as receiver:
        [first, *_] = receiver.receive_messages(max_wait_time=10)
        assert first.message_id == "before"
        receiver.abandon_message(first)
    assert not is_faulted(client, queue)
    assert not is_faulted(factory, queue)
    client.close()
    assert (syphon.starts, len(syphon.stops)) == (2, 2)
    assert client.pairing.status().syphon.state == "stopped"
    world.check(queue, primary=["before", "meanwhile"])


@pytest.mark.req("C-01", "C-02")
def test_closing_a_pair_does_not_touch_another_with_the_same_secondary(world, monkeypatch):
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 0.3)
    queue = world.queue()
    factory, syphons = world.factory(), [RecordedSyphon(), RecordedSyphon()]
    first, second = (
        world.pair(factory=factory, enable_syphon=True, syphon=syphon) for syphon in syphons
    )
    third = world.pair(factory=factory)  # without a syphon
    senders = [world.sender(client, queue) for client in (second, third)]
    first.close()
    assert [len(syphon.stops) for syphon in syphons] == [1, 0]
    no_partner_waits()
    with world.primary.fault("cannot_send", queue):
        for number, sender in enumerate(senders):
            world.send(sender, f"diverted {number}")
    second.close()
    no_partner_waits()
    world.send(senders[1], "diverted 2")
    assert not is_faulted(factory, queue), "the third still uses it"
    third.close()
    world.check(queue, backlog=["diverted 0", "diverted 1", "diverted 2"])


@pytest.mark.req("C-02")
def test_without_a_syphon_each_client_is_the_applications_own(world, monkeypatch):
    monkeypatch.setattr("pairbus.client.syphon.PARTNER_SECONDS_MAX", 0.2)
    queue = world.queue()
    client, factory = world.client(), world.factory()
    world.pair(client, factory=factory)
    factory.close()
    time.sleep(0.7)  # what is not to come cannot be waited for
    with client.get_queue_sender(queue) as sender:
        world.send(sender, "as before")
    world.check(queue, primary=["as before"])
