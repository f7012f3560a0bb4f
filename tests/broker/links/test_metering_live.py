"""What a broker counts while clients receive from it over its port."""

import time
import urllib.error
import urllib.request

import pytest

from pairbus.broker import Broker, QueueDescription
from pairbus.cost.meter import Tally
from pairbus.fast.address import Address
from tests.broker.world import encoded

LARGE = encoded(b"x" * (64 * 1024))
SECONDS = 30.0


@pytest.fixture(scope="module")
def broker():
    queues = ["moved", "idle", "deleted", "left", QueueDescription(name="s", requires_session=True)]
    with Broker(queues=queues) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Address.from_connection_string(broker.connection_string).client() as client:
        yield client


def expect(broker, queue, wanted):
    """The broker notices the end of a link a moment later."""
    until = time.monotonic() + SECONDS
    while (found := broker.meter.read().of(queue)) != wanted and time.monotonic() < until:
        time.sleep(0.005)
    assert found == wanted


@pytest.mark.req("M-01")
def test_what_is_sent_received_and_settled_is_counted_to_the_unit(broker, client):
    client.sender("moved").send([*[encoded()] * 300, LARGE])
    receiver = client.receiver("moved", credit=100)
    received = []
    while len(received) < 301:
        received += receiver.receive(301, max_wait_seconds=SECONDS)
    receiver.complete(received)
    receiver.close()

    expect(broker, "moved", Tally(send=302, receive=302, settle=301))


@pytest.mark.req("M-01", "S-02")
def test_a_poll_that_ends_without_a_message_is_one_receive(broker, client):
    receiver = client.receiver("idle", credit=10)
    for _ in range(4):
        assert receiver.receive(1, max_wait_seconds=0.01) == []
        receiver.stop()
    expect(broker, "idle", Tally(empty_receive=4))

    receiver.receive(1, max_wait_seconds=0.01)
    receiver.close()
    expect(broker, "idle", Tally(empty_receive=5))


def test_a_receiver_that_vanishes_has_asked_too(broker):
    with Address.from_connection_string(broker.connection_string).client() as client:
        client.receiver("left", credit=10).receive(1, max_wait_seconds=0.01)
        client.interrupt()

    expect(broker, "left", Tally(empty_receive=1))


def test_receive_and_delete_settles_nothing(broker, client):
    client.sender("deleted").send([encoded(), LARGE])
    receiver = client.receiver("deleted", credit=10, mode="receiveAndDelete")
    received = []
    while len(received) < 2:
        received += receiver.receive(2, max_wait_seconds=SECONDS)
    receiver.close()

    expect(broker, "deleted", Tally(send=3, receive=3))


@pytest.mark.parametrize("path", ["/metrics", "/$metrics"])
def test_on_this_machine_anybody_may_scrape(broker, path):
    broker.meter.of("scraped").send = 1
    with urllib.request.urlopen(f"http://localhost:{broker.port}{path}") as answer:
        text = answer.read().decode()

    wanted = 'pairbus_broker_operations_total{entity="scraped",namespace="local",operation="send"}'
    assert f"{wanted} 1.0\n" in text


def test_the_meter_needs_a_token_also_on_this_machine(broker):
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"http://localhost:{broker.port}/$meter")
    refused.value.close()
