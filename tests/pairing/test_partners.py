"""A client that hosts a syphon: the two clients of the pair, and the syphon, end together.

The syphon here does nothing but record its calls.
"""

from __future__ import annotations

import threading
import time

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.sdk.errors import ClientFaulted, PairingError
from pairbus.errors import PairbusError
from tests.pairing.namespaces import wait_until
from tests.pairing.shells import bare

GRACE_SECONDS = 5


class Syphon:
    def __init__(self, error: Exception | None = None) -> None:
        self.context = None
        self.stops = 0
        self._error = error

    def start(self, context) -> None:
        if self._error is not None:
            raise self._error
        self.context = context

    def stop(self, *, timeout_seconds: float) -> None:
        assert timeout_seconds > 0
        self.stops += 1


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


@pytest.mark.req("A-06")
def test_a_syphon_is_started_with_what_it_needs(world):
    client, factory, syphon = world.client(), world.factory(), Syphon()
    world.pair(client, factory=factory, enable_syphon=True, syphon=syphon, backlog_queue_count=2)
    context = syphon.context
    assert context.namespace == world.name
    assert context.primary is bare(client)
    assert context.secondary is bare(factory)
    assert context.backlog_queues == (world.backlog_path(0), world.backlog_path(1))
    assert syphon.stops == 0


@pytest.mark.req("A-06", "A-07")
def test_a_syphon_that_does_not_start_leaves_the_client_unpaired(world):
    queue = world.queue()
    client = world.client()
    broken = Syphon(RuntimeError("no Java here"))
    with pytest.raises((PairingError, RuntimeError), match="no Java here"):
        world.pair(client, enable_syphon=True, syphon=broken)
    assert client.pairing is None
    with client.get_queue_sender(queue) as sender:
        world.send(sender, "unpaired")
    world.pair(client)
    world.check(queue, primary=["unpaired"])


@pytest.mark.req("C-01", "C-02")
@pytest.mark.parametrize("first", ["primary", "secondary"])
def test_a_client_whose_partner_has_ended_is_faulted_after_five_seconds(world, first):
    queue = world.queue()
    client, factory, syphon = world.client(), world.factory(), Syphon()
    world.pair(client, factory=factory, enable_syphon=True, syphon=syphon)
    ended, partner = (client, factory) if first == "primary" else (factory, client)
    began = time.monotonic()
    ended.close()
    wait_until(lambda: syphon.stops, "the syphon is stopped with the first of them", seconds=3)
    assert not is_faulted(partner, queue)
    wait_until(lambda: is_faulted(partner, queue), "the partner is faulted")
    assert GRACE_SECONDS - 0.2 <= time.monotonic() - began < GRACE_SECONDS + 5
    assert not is_faulted(ended, queue), "that one was closed, as it should be"
    assert syphon.stops == 1


@pytest.mark.req("C-01", "C-02")
def test_clients_that_are_closed_together_are_not_faulted(world):
    queue = world.queue()
    client, factory, syphon = world.client(), world.factory(), Syphon()
    world.pair(client, factory=factory, enable_syphon=True, syphon=syphon)
    client.close()
    factory.close()
    assert syphon.stops == 1
    assert not is_faulted(client, queue)
    assert not is_faulted(factory, queue)
    wait_until(
        lambda: not any(t.name.startswith("pairbus-partner") for t in threading.enumerate()),
        "nobody watches any more",
    )


@pytest.mark.req("C-01")
def test_a_syphon_that_cannot_go_on_faults_both(world):
    queue = world.queue()
    client, factory, syphon = world.client(), world.factory(), Syphon()
    world.pair(client, factory=factory, enable_syphon=True, syphon=syphon)
    sender = client.get_queue_sender(queue)
    world.send(sender, "before")
    threading.Thread(target=syphon.context.fault, args=["the cluster is gone"]).start()
    wait_until(lambda: is_faulted(client, queue) and is_faulted(factory, queue), "both faulted")
    with pytest.raises(ClientFaulted, match="the cluster is gone"):
        sender.send_messages(ServiceBusMessage("x"))
    wait_until(lambda: syphon.stops, "the syphon is stopped")
    world.check(queue, primary=["before"])


@pytest.mark.req("C-02")
def test_without_a_syphon_each_client_is_the_applications_own(world):
    queue = world.queue()
    client, factory = world.client(), world.factory()
    world.pair(client, factory=factory)
    factory.close()
    time.sleep(GRACE_SECONDS + 0.5)  # what is not to come cannot be waited for
    with client.get_queue_sender(queue) as sender:
        world.send(sender, "as before")
    world.check(queue, primary=["as before"])


@pytest.mark.req("C-01")
def test_a_syphon_needs_a_secondarys_client_that_can_be_faulted(world):
    client, syphon = world.client(), Syphon()
    factory = world.enter(
        world.shell.plain_client(world.secondary.connection_string(), retry_total=0)
    )
    with pytest.raises(PairingError, match="pairbus"):
        world.pair(client, factory=factory, enable_syphon=True, syphon=syphon)
    assert client.pairing is None
    assert syphon.context is None
