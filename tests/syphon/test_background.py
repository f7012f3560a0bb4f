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

import pairbus
import pairbus.aio
from pairbus.broker import Broker
from pairbus.syphon.background import BackgroundSyphon

MINUTE = timedelta(minutes=1)
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


def arrived(broker, seconds=200):
    """The bodies of the messages brought home, in their order, and their times to live."""
    bodies, lives = [], []
    deadline = time.monotonic() + seconds
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        while len(bodies) < len(BODIES) and time.monotonic() < deadline:
            for message in receiver.receive_messages(max_message_count=20, max_wait_time=1):
                if str(message) in BODIES:  # pings come, too
                    bodies.append(str(message))
                    lives.append(message.time_to_live)
                receiver.complete_message(message)
    return bodies, lives


def of_the_syphon():
    return [thread.name for thread in threading.enumerate() if "syphon" in thread.name]


@pytest.mark.spark
@pytest.mark.req("A-06", "S-01", "C-02", "X-06")
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
                manager,
                secondary,
                syphon=BackgroundSyphon(spark, ttl_keeps_running=True),
                **SETTINGS,
            )
            await primary.pair_namespace(options)
            assert of_the_syphon()
            with first.faults.unreachable():
                async with primary.get_queue_sender("orders") as sender:
                    for body in BODIES:
                        await sender.send_messages(ServiceBusMessage(body, time_to_live=MINUTE))
                await asyncio.sleep(1)

            bodies, lives = await asyncio.to_thread(arrived, first)
            assert bodies == BODIES
            assert max(lives) <= MINUTE - timedelta(seconds=1), "it has kept running"

            await primary.close()
            assert not of_the_syphon()

    asyncio.run(outage())
    assert spark.sparkContext.parallelize([1, 2]).sum() == 3, "the session is not the syphon's"


ALONE = """
import os, signal, sys, threading, time
from datetime import timedelta
from pathlib import Path
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
import pairbus

first, second, ca_file = sys.argv[1:]
seen = []


def below():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def left():
    # PySpark's own threads end when they notice the end of Java.
    return [each.name for each in threading.enumerate() if "pairbus" in each.name] + below()


def pair():
    primary = pairbus.ServiceBusClient.from_connection_string(first, retry_total=0)
    secondary = pairbus.ServiceBusClient.from_connection_string(second)
    manager = ServiceBusAdministrationClient.from_connection_string(
        second, connection_verify=ca_file
    )
    primary.pair_namespace(
        pairbus.SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=2,
            failover_interval=timedelta(0),
            primary_namespace_name="contoso",
            enable_syphon=True,
            observers=[observe],
        )
    )
    return primary, secondary, manager


def observe(event):
    say(type(event).__name__)
    seen.append(type(event).__name__)


def say(what):
    print(what, flush=True)


primary, secondary, manager = pair()
with secondary, primary, manager, primary.get_queue_sender("orders") as sender:
    [java] = below()
    os.kill(int(java), signal.SIGKILL)
    say("killed")
    while "SyphonFailed" not in seen:
        sender.send_messages(ServiceBusMessage("to the primary"))
        time.sleep(0.1)
    say(primary.pairing.status().syphon.last_error)
    sys.stdin.readline()  # the primary goes down
    for n in range(10):
        sender.send_messages(ServiceBusMessage(f"order {n}"))
    say("sent")
    sys.stdin.readline()  # it is back, and the messages are home
    say(primary.pairing.status().syphon.state)
say(f"left: {left()}")

primary, secondary, manager = pair()
print("paired again", file=sys.stderr)
with secondary, primary, manager:
    pass
say(f"left: {left()}")
"""


@pytest.fixture
def alone(brokers):
    """A process with clients, a syphon and Spark of its own. Its lines come one by one."""
    first, second = brokers
    words = first.connection_string, second.connection_string, str(second.ca_file)
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.spark
@pytest.mark.req("A-06", "C-02", "S-01", "X-16")
def test_a_client_survives_its_spark_whose_successor_brings_messages_home(brokers, alone):
    """As users have it: `enable_syphon=True` and nothing else. `kill -9` ends the Java process."""

    def until(line):
        lines = []
        for text in alone.stdout:
            lines.append(text.rstrip())
            if lines[-1] == line:
                return lines
        raise AssertionError(f"{lines}\n{alone.communicate()[1]}")

    def go_on():
        print(file=alone.stdin, flush=True)

    first, _ = brokers
    until("killed")
    assert until("SyphonFailed") == ["SyphonFailed"]
    assert "the Spark session was stopped, or its Java process has ended" in alone.stdout.readline()
    with first.faults.unreachable():
        go_on()
        lines = until("sent")
    assert lines.count("Diverted") == len(BODIES)
    assert arrived(first)[0] == BODIES
    go_on()

    assert "SyphonRestarted" in lines + until("running")
    until("Closed")
    out, errors = alone.communicate(timeout=120)
    assert alone.returncode == 0, errors
    assert out.splitlines() == ["left: []", "Paired", "Closed", "left: []"]
    assert errors.partition("paired again\n")[2] == "", "it ends quietly"
