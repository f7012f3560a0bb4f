"""Client, syphon and brokers count the same operations, to the unit, through a whole outage."""

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)

from pairbus import SendAvailabilityPairedNamespaceOptions, aio
from pairbus.broker import Broker
from pairbus.cost.meter import Tally
from pairbus.fast.address import Address
from pairbus.syphon.job import Job
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.runner import InProcessRunner
from tests.cost.pair import paired
from tests.waiting import wait_until

SMALL, LARGE = 100, 70_000
SECONDS = 60.0


def message(size):
    return ServiceBusMessage(b"x" * size)


def send_all_kinds(sender):
    """One of each way to send: 11 messages, of which 3 have two units."""
    sender.send_messages(message(SMALL))
    sender.send_messages(message(LARGE))
    sender.send_messages([message(SMALL), message(LARGE), message(SMALL), message(SMALL)])
    batch = sender.create_message_batch()
    for size in (SMALL, LARGE, SMALL, SMALL):
        batch.add_message(message(size))
    sender.send_messages(batch)
    sender.send_messages(ServiceBusMessage("with properties", application_properties={"n": 1}))
    return 11


@pytest.fixture(scope="module")
def outage():
    """One day of a pair: before, during and after an outage, then the syphon, and an application
    that receives. Returns what each of them has counted.
    """
    with Broker(queues=["orders"], name="east") as east, Broker(name="west") as west:
        settings = {"backlog_queue_count": 2, "ping_primary_interval": timedelta(seconds=1)}
        with paired(east, west, **settings) as primary:
            queues = primary.pairing.status().backlog_queues
            with primary.get_queue_sender("orders") as sender:
                send_all_kinds(sender)
                with east.faults.cannot_send("orders"):
                    diverted = send_all_kinds(sender)
                    wait_until(lambda: primary.pairing.status().pings_sent > 0)
                wait_until(lambda: not primary.pairing.status().failed_over)
                send_all_kinds(sender)
            client = primary.pairing.spent()
        came_home = east.meter.read()
        addresses = [
            Address.from_connection_string(each.connection_string) for each in (east, west)
        ]
        job = Job(
            SyphonOptions(primaries={"contoso": addresses[0]}, secondary=addresses[1]),
            InProcessRunner(),
            lambda: queues,
        )
        job.run(once=True)
        receiver = addresses[0].client()
        take_all(receiver, 3 * diverted)
        yield {
            "client": client,
            "syphon": job.usage.readings(),
            "receiver": (receiver.usage(),),
            "brokers": (east.meter.read(), west.meter.read()),
            "before the syphon": came_home,
            "queues": queues,
            "diverted": diverted,
            "hosts": [each.host for each in addresses],
        }


def take_all(client, count):
    receiver, found = client.receiver("orders", credit=count), []
    while len(found) < count:
        found += receiver.receive(count, max_wait_seconds=SECONDS)
    receiver.complete(found)
    client.close()


def counted(outage, side, path):
    """The counts of everything except the brokers, on the primary (0) or the secondary (1)."""
    host = outage["hosts"][side]
    found = [outage["client"][side]]
    found += [one for who in ("syphon", "receiver") for one in outage[who] if one.namespace == host]
    return sum((one.of(path) for one in found), Tally())


@pytest.mark.req("M-01")
def test_the_primary_counts_what_client_syphon_and_receiver_count(outage):
    theirs = outage["brokers"][0].of("orders")

    assert counted(outage, 0, "orders") == theirs
    assert theirs.send == 3 * (11 + 3)
    assert theirs.receive == 3 * (11 + 3)
    assert theirs.settle == 3 * 11
    assert theirs.ping == 1  # those in the outage were refused


@pytest.mark.req("M-01")
def test_the_secondary_counts_what_client_and_syphon_count(outage):
    for queue in outage["queues"]:
        theirs = outage["brokers"][1].of(queue)
        theirs.manage = 0  # looking for the queues and making them, when it was paired
        assert counted(outage, 1, queue) == theirs
    assert sum(outage["brokers"][1].of(queue).send for queue in outage["queues"]) == 11 + 3


@pytest.mark.req("M-02")
def test_a_diverted_message_costs_four_operations(outage):
    """In units: one for each of the eleven, and one more for each of the three large ones."""
    east, west = outage["brokers"]
    into = sum(west.of(queue).send for queue in outage["queues"])
    out = sum(west.of(queue).receive for queue in outage["queues"])
    home = (east - outage["before the syphon"]).of("orders").send
    received = east.of("orders").receive // 3  # a third of all was diverted

    assert [into, home, received] == [11 + 3] * 3
    assert out >= 11 + 3  # the syphon may receive one twice when it is stopped
    assert out - into < 11


@pytest.mark.req("M-01")
def test_a_client_of_asyncio_counts_as_well():
    with Broker(queues=["orders"], name="east") as east, Broker(name="west") as west:
        primary, secondary = asyncio.run(sent_with_asyncio(east, west))
        theirs = east.meter.read().of("orders")
        [queue] = secondary.entities

        assert primary.of("orders") == Tally(send=2 + 1 + 2, ping=theirs.ping)
        assert primary.of("orders").send == theirs.send
        assert secondary.of(queue) == Tally(send=2 + 1 + 2)
        assert west.meter.read().of(queue).send == 2 + 1 + 2


async def sent_with_asyncio(east, west):
    primary = aio.ServiceBusClient.from_connection_string(east.connection_string, retry_total=0)
    secondary = aio.ServiceBusClient.from_connection_string(west.connection_string)
    manager = AsyncAdministrationClient.from_connection_string(
        west.connection_string, connection_verify=str(west.ca_file)
    )
    options = SendAvailabilityPairedNamespaceOptions(
        manager, secondary, backlog_queue_count=1, failover_interval=timedelta(0)
    )
    async with primary, secondary, manager:
        await primary.pair_namespace(options)
        async with primary.get_queue_sender("orders") as sender:
            await sender.send_messages(message(LARGE))
            await sender.send_messages([message(SMALL), message(LARGE)])
            with east.faults.cannot_send("orders"):
                await sender.send_messages(message(LARGE))
                await sender.send_messages([message(SMALL), message(LARGE)])
        return primary.pairing.spent()
