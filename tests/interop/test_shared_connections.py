"""Threads and tasks that share one connection of the official SDK.

Then the SDK repeats and skips delivery-ids. Azure accepts that, and so does the broker: every send
is answered, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage
from azure.servicebus import aio as sdk_aio

from pairbus.broker import Broker, QueueDescription

PEEKS = 10
MESSAGES = 100


@pytest.fixture
def bus() -> Iterator[Broker]:
    lock = timedelta(seconds=10)
    queue = QueueDescription(name="q", lock_duration=lock)
    sessions = QueueDescription(name="sessions", lock_duration=lock, requires_session=True)
    with Broker(queues=[queue, sessions]) as broker:
        yield broker


def _fill(bus: Broker, count: int) -> None:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(count)])


@pytest.mark.req("X-14")
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


@pytest.mark.req("X-14")
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


@pytest.mark.req("X-14")
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


@pytest.mark.req("X-14")
def test_an_asyncio_lock_renewer_keeps_messages_and_sessions(bus: Broker) -> None:
    sessions = [str(number) for number in range(5)]
    _fill(bus, MESSAGES)

    async def settle() -> tuple[int, int]:
        settled = 0
        async with (
            sdk_aio.ServiceBusClient.from_connection_string(bus.connection_string) as client,
            sdk_aio.AutoLockRenewer() as renewer,
            client.get_queue_receiver("q") as receiver,
            client.get_queue_sender("sessions") as sender,
        ):
            await asyncio.gather(
                *(
                    sender.send_messages(ServiceBusMessage(session, session_id=session))
                    for session in sessions
                )
            )
            messages: list = []
            while len(messages) < MESSAGES:
                messages += await receiver.receive_messages(MESSAGES, max_wait_time=30)
            for message in messages:
                renewer.register(receiver, message, max_lock_renewal_duration=60)
            for session in sessions:
                async with client.get_queue_receiver("sessions", session_id=session) as held:
                    renewer.register(held, held.session, max_lock_renewal_duration=60)
                    [message] = await held.receive_messages(1, max_wait_time=30)
                    await held.session.renew_lock()
                    await held.complete_message(message)
                    settled += 1
            await asyncio.gather(*(receiver.complete_message(message) for message in messages))
            left = await receiver.peek_messages(1)
            return settled, len(left)

    assert asyncio.run(settle()) == (len(sessions), 0)


@pytest.mark.req("X-14")
def test_a_blocking_lock_renewer_keeps_ten_sessions_while_ten_threads_use_them() -> None:
    sessions = [f"s{number}" for number in range(10)]
    bodies = [str(number) for number in range(5)]
    # The renewer looks once a second, and when half of it is over: so late may a busy machine be.
    lock = timedelta(seconds=20)
    queue = QueueDescription(name="q", lock_duration=lock, requires_session=True)
    with (
        Broker(queues=[queue]) as bus,
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        AutoLockRenewer(max_workers=10) as renewer,
        ThreadPoolExecutor(10) as threads,
    ):
        with client.get_queue_sender("q") as sender:
            for session in sessions:
                sender.send_messages([ServiceBusMessage(n, session_id=session) for n in bodies])

        def use(session: str) -> tuple[list[str], object, object]:
            with client.get_queue_receiver(
                "q", session_id=session, auto_lock_renewer=renewer
            ) as held:
                messages: list = []
                while len(messages) < len(bodies):
                    messages += held.receive_messages(len(bodies), max_wait_time=30)
                # On the renewer's connection, and longer than the lock.
                assert held.receive_messages(1, max_wait_time=21) == []
                for message in messages:
                    held.session.set_state(str(message), timeout=60)
                    held.complete_message(message)
                state = held.session.get_state(timeout=60)
                return [str(message) for message in messages], state, held.session.auto_renew_error

        found = list(threads.map(use, sessions))
        used = bus.meter.read().of("q")

    assert found == [(bodies, bodies[-1].encode(), None)] * len(sessions)
    assert used.receive == used.settle == len(sessions) * len(bodies)
    assert used.renew >= len(sessions)


@pytest.mark.req("X-14")
def test_everything_at_once_on_one_asyncio_receiver_and_sender(bus: Broker) -> None:
    """Peeks, renewals, settlements, deferred receives, sends and schedules, all concurrent."""
    _fill(bus, 40)

    async def run() -> list[str]:
        later = datetime.now(UTC) + timedelta(hours=1)
        async with (
            sdk_aio.ServiceBusClient.from_connection_string(bus.connection_string) as client,
            client.get_queue_receiver("q") as receiver,
            client.get_queue_sender("q") as sender,
        ):
            messages: list = []
            while len(messages) < 40:
                messages += await receiver.receive_messages(40, max_wait_time=30)
            deferred, completed, renewed = messages[:10], messages[10:20], messages[20:]
            await asyncio.gather(*(receiver.defer_message(message) for message in deferred))
            numbers = [message.sequence_number for message in deferred]
            await asyncio.wait_for(
                asyncio.gather(
                    *(receiver.complete_message(message) for message in completed),
                    *(receiver.renew_message_lock(message) for message in renewed),
                    *(receiver.receive_deferred_messages(number) for number in numbers),
                    *(receiver.peek_messages(1) for _ in range(10)),
                    *(sender.send_messages(ServiceBusMessage(f"s{n}")) for n in range(10)),
                    *(
                        sender.schedule_messages(ServiceBusMessage(f"l{n}"), later)
                        for n in range(10)
                    ),
                ),
                60,
            )
            await asyncio.gather(*(receiver.complete_message(message) for message in renewed))
            return sorted(
                str(message) for message in await receiver.peek_messages(250, sequence_number=1)
            )

    expected = [*map(str, range(10)), *(f"s{n}" for n in range(10)), *(f"l{n}" for n in range(10))]

    assert asyncio.run(run()) == sorted(expected)


@pytest.mark.req("X-14")
def test_everything_at_once_by_threads_on_one_blocking_receiver_and_sender(bus: Broker) -> None:
    """The same by ten threads. Only sends take turns, as the SDK's README asks for.

    Without the lock, a send now and then waits for ever, and its message never leaves the client:
    the SDK's `send_transfer` appends to the list of pending deliveries, and at the same moment
    another thread's `update_pending_deliveries` replaces that list by a copy without it.
    """
    _fill(bus, 40)
    later = datetime.now(UTC) + timedelta(hours=1)
    sends = Lock()
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver("q") as receiver,
        client.get_queue_sender("q") as sender,
        ThreadPoolExecutor(10) as threads,
    ):

        def send(text: str) -> None:
            with sends:
                sender.send_messages(ServiceBusMessage(text), timeout=60)

        def schedule(text: str) -> None:
            sender.schedule_messages(ServiceBusMessage(text), later, timeout=60)

        messages: list = []
        while len(messages) < 40:
            messages += receiver.receive_messages(40, max_wait_time=5)
        deferred, completed, renewed = messages[:10], messages[10:20], messages[20:]
        for message in deferred:
            receiver.defer_message(message)
        calls: list[Callable[[], object]] = []
        for n in range(10):
            number = deferred[n].sequence_number
            calls += [
                partial(receiver.complete_message, completed[n]),
                partial(receiver.renew_message_lock, renewed[n], timeout=60),
                partial(receiver.receive_deferred_messages, number, timeout=60),
                partial(receiver.peek_messages, 1, timeout=60),
                partial(send, f"s{n}"),
                partial(schedule, f"l{n}"),
            ]
        for future in [threads.submit(call) for call in calls]:
            future.result(timeout=90)
        list(threads.map(receiver.complete_message, renewed))
        left = sorted(str(one) for one in receiver.peek_messages(250, sequence_number=1))

    expected = [*map(str, range(10)), *(f"s{n}" for n in range(10)), *(f"l{n}" for n in range(10))]
    assert left == sorted(expected)
