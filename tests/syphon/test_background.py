"""`enable_syphon=True`: a whole outage, without anything else to run."""

import asyncio
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.broker import Broker
from pairbus.syphon.background import BackgroundSyphon

BODIES = [f"order {n}" for n in range(10)]
SETTINGS = {
    "backlog_queue_count": 2,
    "failover_interval": timedelta(0),
    "ping_primary_interval": timedelta(seconds=1),
    "primary_namespace_name": "contoso",
    "enable_syphon": True,
}


@pytest.fixture
def brokers():
    with Broker(queues=["orders"]) as primary, Broker() as secondary:
        yield primary, secondary


def arrived(broker, seconds=60):
    """The bodies of the messages brought home, in their order."""
    bodies = []
    deadline = time.monotonic() + seconds
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        while len(bodies) < len(BODIES) and time.monotonic() < deadline:
            for message in receiver.receive_messages(max_message_count=20, max_wait_time=1):
                bodies += [str(message)] if str(message) in BODIES else []  # pings come, too
                receiver.complete_message(message)
    return bodies


def of_the_syphon():
    return [thread.name for thread in threading.enumerate() if "syphon" in thread.name]


@pytest.mark.spark
@pytest.mark.req("A-06", "S-01", "C-02")
def test_messages_come_home_in_the_background(spark, brokers):
    first, second = brokers
    primary = pairbus.ServiceBusClient.from_connection_string(
        first.connection_string, retry_total=0
    )
    secondary = pairbus.ServiceBusClient.from_connection_string(second.connection_string)
    manager = ServiceBusAdministrationClient.from_connection_string(
        second.connection_string, connection_verify=str(second.ca_file)
    )
    with secondary, primary, manager:
        options = pairbus.SendAvailabilityPairedNamespaceOptions(
            manager, secondary, syphon=BackgroundSyphon(spark), **SETTINGS
        )
        primary.pair_namespace(options)
        assert of_the_syphon()
        with first.faults.unreachable(), primary.get_queue_sender("orders") as sender:
            for body in BODIES:
                sender.send_messages(ServiceBusMessage(body))
            assert primary.pairing.status().entity("orders").diverted == len(BODIES)

        assert arrived(first) == BODIES

        primary.close()
        assert not of_the_syphon()
    assert spark.sparkContext.parallelize([1, 2]).sum() == 3, "the session is not the syphon's"


@pytest.mark.spark
@pytest.mark.req("A-06", "S-01", "C-02")
def test_messages_come_home_in_the_background_of_asyncio(spark, brokers):
    first, second = brokers

    async def outage():
        primary = pairbus.aio.ServiceBusClient.from_connection_string(
            first.connection_string, retry_total=0
        )
        secondary = pairbus.aio.ServiceBusClient.from_connection_string(second.connection_string)
        manager = AsyncAdministrationClient.from_connection_string(
            second.connection_string, connection_verify=str(second.ca_file)
        )
        async with secondary, primary, manager:
            options = pairbus.aio.SendAvailabilityPairedNamespaceOptions(
                manager, secondary, syphon=BackgroundSyphon(spark), **SETTINGS
            )
            await primary.pair_namespace(options)
            assert of_the_syphon()
            with first.faults.unreachable():
                async with primary.get_queue_sender("orders") as sender:
                    for body in BODIES:
                        await sender.send_messages(ServiceBusMessage(body))

            assert await asyncio.to_thread(arrived, first) == BODIES

            await primary.close()
            assert not of_the_syphon()

    asyncio.run(outage())


ALONE = """
import os, sys
from pathlib import Path
from azure.servicebus.management import ServiceBusAdministrationClient
import pairbus

first, second, ca_file = sys.argv[1:]
primary = pairbus.ServiceBusClient.from_connection_string(first)
secondary = pairbus.ServiceBusClient.from_connection_string(second)
manager = ServiceBusAdministrationClient.from_connection_string(second, connection_verify=ca_file)
with secondary, primary, manager:
    primary.pair_namespace(
        pairbus.SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=2,
            primary_namespace_name="contoso",
            enable_syphon=True,
        )
    )
    print("paired", file=sys.stderr)
below = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
print(f"left: {below!r}")
"""


@pytest.mark.spark
@pytest.mark.req("C-02")
def test_a_client_that_is_closed_soon_ends_its_own_spark_quietly(brokers):
    first, second = brokers
    words = first.connection_string, second.connection_string, str(second.ca_file)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *words],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "left: ''\n"
    _, _, after = done.stderr.partition("paired\n")
    assert after == ""
