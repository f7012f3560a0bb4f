"""Threads and tasks that share one connection of the official SDK.

Then the SDK repeats and skips delivery-ids. Azure accepts that, and so does the broker: every send
is answered, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage
from azure.servicebus import aio as sdk_aio

from pairbus.broker import Broker, QueueDescription

PEEKS = 10
MESSAGES = 100


@pytest.fixture
def bus() -> Iterator[Broker]:
    with Broker(queues=[QueueDescription(name="q", lock_duration=timedelta(seconds=10))]) as broker:
        yield broker


def _fill(bus: Broker, count: int) -> None:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(count)])


@pytest.mark.req("B-03")
def test_ten_peeks_at_once_on_one_asyncio_receiver_all_answer(bus: Broker) -> None:
    _fill(bus, PEEKS)

    async def peek() -> list[list[str]]:
        async with (
            sdk_aio.ServiceBusClient.from_connection_string(bus.connection_string) as client,
            client.get_queue_receiver("q") as receiver,
        ):
            peeks = [receiver.peek_messages(1, sequence_number=n + 1) for n in range(PEEKS)]
            found = await asyncio.wait_for(asyncio.gather(*peeks), 30)
            return [[str(message) for message in messages] for messages in found]

    assert asyncio.run(peek()) == [[str(number)] for number in range(PEEKS)]


@pytest.mark.req("B-03")
def test_ten_peeks_at_once_by_threads_on_one_blocking_receiver_all_answer(bus: Broker) -> None:
    _fill(bus, PEEKS)
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver("q") as receiver,
        ThreadPoolExecutor(PEEKS) as threads,
    ):

        def peek(number: int) -> list[str]:
            messages = receiver.peek_messages(1, sequence_number=number + 1, timeout=30)
            return [str(message) for message in messages]

        found = list(threads.map(peek, range(PEEKS)))

    assert found == [[str(number)] for number in range(PEEKS)]


@pytest.mark.req("B-04")
def test_a_lock_renewer_over_a_hundred_messages_lets_all_of_them_be_settled(bus: Broker) -> None:
    _fill(bus, MESSAGES)
    settled = 0
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver("q") as receiver,
        AutoLockRenewer(max_workers=10) as renewer,
    ):
        messages: list = []
        while len(messages) < MESSAGES:
            messages += receiver.receive_messages(MESSAGES - len(messages), max_wait_time=5)
        for message in messages:
            renewer.register(receiver, message, max_lock_renewal_duration=60)
        for message in messages:
            receiver.complete_message(message)
            settled += 1
        left = receiver.peek_messages(1)

    assert settled == MESSAGES
    assert left == []
