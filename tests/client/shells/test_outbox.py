"""Both namespaces are down, and the client has an outbox: nothing is refused, nothing is lost, and
the order of an entity is kept. In both shells, on real brokers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import BacklogExhausted, Outbox, PairingError
from pairbus.client.sender import SenderCore
from pairbus.errors import OutboxError
from pairbus.events import LeftOutbox, OutboxOpened, OutboxStalled, SendFailed, StoredInOutbox
from tests.client.shells.stage import Stage
from tests.pairing.shells import AsyncioShell, SyncShell, bare
from tests.pairing.world import aliases
from tests.waiting import wait_until

pytestmark = pytest.mark.req("X-04")

_numbers = itertools.count()


class World:
    """Queues of the test's own, a client with an outbox, and what arrived where."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage = stage
        self.path = path
        self.admin = ServiceBusAdministrationClient.from_connection_string(
            stage.primary_text, connection_verify=str(stage.broker.ca_file)
        )
        self.acknowledged: list[str] = []

    def queue(self, **settings: Any) -> str:
        name = f"outbox{next(_numbers)}"
        self.admin.create_queue(name, **settings)
        return name

    def pair(self, **limits: Any) -> Any:
        self.stage.secondary.faults.clear()
        return self.stage.pair(
            outbox=Outbox(self.path, **limits), ping_primary_interval=timedelta(seconds=1)
        )

    def send(self, sender: Any, *ids: str) -> None:
        for each in ids:
            sender.send_messages(ServiceBusMessage("x", message_id=each))
            self.acknowledged.append(each)

    def both_down(self) -> Any:
        """A context manager: at its end, the primary is back, and the secondary is not."""
        self.stage.secondary.faults.unreachable()
        return self.stage.primary.faults.unreachable()

    def found(self, text: str, queue: str) -> list[ServiceBusReceivedMessage]:
        with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_receiver(queue) as receiver,
        ):
            found: list[ServiceBusReceivedMessage] = []
            while page := receiver.peek_messages(
                250, sequence_number=(found[-1].sequence_number or 0) + 1 if found else 1
            ):
                found += page
            return found

    def in_order(self, queue: str) -> list[str]:
        """The message ids on the primary."""
        return [str(each.message_id) for each in self.found(self.stage.primary_text, queue)]

    def in_backlog(self) -> list[ServiceBusReceivedMessage]:
        queues = [f"{self.stage.name}/x-servicebus-transfer/{index}" for index in range(2)]
        return [each for queue in queues for each in self.found(self.stage.secondary_text, queue)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in list(self.stage.events) if isinstance(event, kind)]


@pytest.fixture
def world(stage: Stage, tmp_path: Path) -> Iterator[World]:
    world = World(stage, tmp_path / "outbox.db")
    yield world
    world.admin.close()


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch):
    """How long a backlog queue, or an entity that could not be drained, is left alone."""
    monkeypatch.setattr("pairbus.client.pairing.QUEUE_REST_SECONDS", 0.5)
    monkeypatch.setattr("pairbus.client.route.drains.REST_SECONDS", 0.5)


def waiting(client: Any) -> int:
    return int(client.pairing.status().outbox.waiting)


def wait_until_empty(client: Any) -> None:
    wait_until(lambda: not waiting(client), "the outbox is empty")


def test_messages_wait_in_the_file_and_reach_the_primary_in_their_order(world):
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)
    world.send(sender, "0")
    assert not world.path.exists(), "a healthy client opens no file"
    assert client.pairing.status().outbox.file_bytes == 0

    with world.both_down():
        world.send(sender, "1", "2")
        sender.send_messages([ServiceBusMessage("x", message_id=each) for each in ("3", "4")])
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("x", message_id="5"))
        sender.send_messages(batch)
        [number] = sender.schedule_messages(
            ServiceBusMessage("x", message_id="6"), datetime.now(UTC)
        )
        assert number == -1
        status = client.pairing.status().outbox
        assert (status.waiting, status.entities) == (6, {queue: 6})
        assert status.oldest <= datetime.now(UTC)
        assert status.file_bytes > 0
    # The file is not empty yet: these go behind.
    world.send(sender, "7", "8")
    wait_until_empty(client)
    world.send(sender, "9")

    assert world.in_order(queue) == list("0123456789")
    world.stage.secondary.faults.clear()
    assert world.in_backlog() == []
    assert sum(each.count for each in world.of(StoredInOutbox)) >= 6
    assert world.of(SendFailed) == []


def test_they_go_to_the_backlog_if_the_secondary_is_back_first(world):
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)

    with world.both_down():
        world.send(sender, "1", "2", "3")
        assert waiting(client) == 3
        world.stage.secondary.faults.clear()
        wait_until_empty(client)
        world.send(sender, "4")

        # Only one backlog queue is used at a time, so they are in their order there as well.
        diverted = wait_until(world.in_backlog, "messages in the backlog")
    assert [str(each.message_id) for each in diverted] == ["1", "2", "3", "4"]
    assert {aliases(each)["x-ms-path"] for each in diverted} == {queue}
    assert world.of(LeftOutbox)


def test_messages_of_every_kind_arrive_as_they_were_sent(world):
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)
    properties = {"n": 1, "f": 0.5, "t": datetime(2030, 1, 1, tzinfo=UTC), "s": "text"}
    plain = {
        "message_id": "a",
        "session_id": "s1",
        "application_properties": properties,
        "subject": "hello",
        "time_to_live": timedelta(hours=1),
    }
    with world.both_down():
        sender.send_messages(ServiceBusMessage(b"\x00\xff", **plain))
        sender.send_messages(
            AmqpAnnotatedMessage(
                value_body={"k": [1, "x", None]},
                properties={"message_id": "b", "group_id": "s2"},
            )
        )
    wait_until_empty(client)
    sender.send_messages(ServiceBusMessage(b"\x00\xff", **{**plain, "message_id": "c"}))

    stored, value, direct = world.found(world.stage.primary_text, queue)
    assert [each.message_id for each in (stored, value, direct)] == ["a", "b", "c"]
    for name in ("application_properties", "session_id", "subject", "time_to_live"):
        assert getattr(stored, name) == getattr(direct, name)
    assert b"".join(stored.body) == b"\x00\xff"
    assert value.body == {b"k": [1, b"x", None]}
    assert value.session_id == "s2"


def test_a_client_that_starts_with_messages_in_the_file_sends_them_first(world, caplog):
    queue = world.queue()
    first = world.pair()
    sender = world.stage.sender(first, queue)
    with world.both_down():
        world.send(sender, "1", "2")
        began = time.monotonic()
        first.close()
        assert time.monotonic() - began < 20
        assert "2 messages for" in caplog.text
        assert "are left in the outbox file" in caplog.text

    second = world.pair()
    sender = world.stage.sender(second, queue)
    world.send(sender, "3")
    wait_until_empty(second)
    world.send(sender, "4")

    assert world.in_order(queue) == ["1", "2", "3", "4"]
    [opened] = world.of(OutboxOpened)
    assert opened.waiting == 2


def test_an_entity_that_is_gone_does_not_delay_the_others_and_its_callers_learn_it(world):
    queue, gone = world.queue(), world.queue()
    client = world.pair()
    sender, lost = world.stage.sender(client, queue), world.stage.sender(client, gone)
    with world.both_down():
        world.send(sender, "1")
        lost.send_messages(ServiceBusMessage("x", message_id="lost"))
        client.close()
    world.admin.delete_queue(gone)
    client = world.pair()
    lost = world.stage.sender(client, gone)
    wait_until(lambda: client.pairing.status().outbox.entities == {gone: 1}, "one is left")
    [stalled] = wait_until(lambda: world.of(OutboxStalled), "it is reported")[:1]
    assert (stalled.path, stalled.waiting) == (gone, 1)

    with pytest.raises(BacklogExhausted, match="the primary refuses them: "):
        lost.send_messages(ServiceBusMessage("x"))

    assert world.in_order(queue) == ["1"]
    assert waiting(client) == 1


def test_a_client_of_one_entity_says_that_it_cannot_send_the_messages_of_another(world):
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)
    with world.both_down():
        world.send(sender, "1")
        client.close()
    world.stage.secondary.faults.clear()
    client = world.stage.client(f"{world.stage.primary_text};EntityPath=orders")

    client.pair_namespace(world.stage.options(outbox=Outbox(world.path)))

    [stalled] = wait_until(lambda: world.of(OutboxStalled), "it is reported")[:1]
    assert "does not match the EntityPath" in str(stalled.error)
    assert (stalled.path, waiting(client)) == (queue, 1)


def test_a_file_that_cannot_be_used_is_refused_when_pairing_and_the_client_stays_usable(world):
    queue = world.queue()
    world.path.write_bytes(b"something else " * 1000)
    client = world.stage.client()

    with pytest.raises(
        PairingError, match=r"outbox\.db is not the file of an outbox, .* give another path"
    ):
        client.pair_namespace(world.stage.options(outbox=Outbox(world.path)))

    world.send(world.stage.sender(client, queue), "1")
    assert world.in_order(queue) == ["1"]


def test_closing_while_messages_leave_returns_in_time_and_loses_none(world, caplog):
    caplog.set_level(logging.ERROR)
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)
    with world.both_down():
        for number in range(0, 500, 50):
            names = [f"{number + at:03}" for at in range(50)]
            sender.send_messages([ServiceBusMessage("x" * 3000, message_id=each) for each in names])
    wait_until(lambda: waiting(client) < 500, "some have left")

    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 20
    assert not [each for each in threading.enumerate() if each.name.startswith("pairbus-outbox")]

    again = world.pair()
    wait_until_empty(again)
    found = world.in_order(queue)
    assert set(found) == {f"{number:03}" for number in range(500)}
    assert not caplog.records


def test_what_is_in_the_backlog_when_the_client_faults_is_not_sent_again(world, monkeypatch):
    client = world.pair()
    sender = world.stage.sender(client, world.queue())
    with world.both_down():
        world.send(sender, "1", "2", "3")
        diverted = iter((2,))

        def fault(sender: Any, messages: Any) -> Any:
            sender.client_state.set_fault("its partner has ended")
            raise BacklogExhausted(entity="orders", diverted_count=next(diverted, 0))
            yield

        monkeypatch.setattr(SenderCore, "_sending_stored", fault)
    [stalled] = wait_until(lambda: world.of(OutboxStalled), "it is reported")[:1]

    assert isinstance(stalled.error, BacklogExhausted)
    assert stalled.waiting == waiting(client) == 1


def test_a_send_that_needs_the_outbox_when_the_client_is_closed_learns_that(world):
    client = world.pair()
    client.close()

    with pytest.raises(OutboxError, match="has been closed with its client"):
        client.pairing.on_disk(lambda file: file.put("orders", [("1", b"x")]))


def test_pairing_that_is_cancelled_while_the_outbox_is_opened_leaves_it_free(world, monkeypatch):
    if not isinstance(world.stage.shell, AsyncioShell):
        pytest.skip("a blocking call cannot be cancelled")
    client = world.stage.client()
    options = bare(world.stage.options(outbox=Outbox(world.path)))
    begun, may_end = threading.Event(), threading.Event()

    def slow(*_: Any) -> bool:
        begun.set()
        return may_end.wait(30)

    async def pair_and_cancel() -> None:
        pairing = asyncio.ensure_future(bare(client).pair_namespace(options))
        await asyncio.to_thread(begun.wait, 30)
        pairing.cancel()
        await asyncio.sleep(0.3)
        may_end.set()
        await asyncio.wait([pairing])

    with monkeypatch.context() as patched:
        patched.setattr("os.access", slow)  # a slow disk
        world.stage.run(pair_and_cancel)

    assert client.pairing is None
    world.pair()


def test_closing_that_was_cancelled_can_be_repeated(world):
    if not isinstance(world.stage.shell, AsyncioShell):
        pytest.skip("a blocking call cannot be cancelled")
    client = world.pair()
    pairing = bare(client).pairing
    busy = threading.Event()

    async def close_and_cancel() -> None:
        disk = asyncio.ensure_future(pairing.on_disk(lambda file: busy.wait(30)))
        await asyncio.sleep(0)  # the disk is slow
        closing = asyncio.ensure_future(pairing.close())
        await asyncio.sleep(0.5)
        closing.cancel()
        await asyncio.wait([closing])
        busy.set()
        await disk
        await pairing.close()

    world.stage.run(close_and_cancel)

    world.pair()  # the file is free


def test_a_cancelled_send_is_stored_or_not_but_never_half(world):
    """As with any send, its outcome is then unknown."""
    if not isinstance(world.stage.shell, AsyncioShell):
        pytest.skip("a blocking call cannot be cancelled")
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)

    async def send_and_cancel() -> int:
        cancelled = 0
        for number in range(30):
            message = ServiceBusMessage("x", message_id=f"{number:02}")
            task = asyncio.ensure_future(bare(sender).send_messages(message))
            await asyncio.sleep(0.0005 * (number % 10))
            task.cancel()
            try:
                await task
                world.acknowledged.append(f"{number:02}")
            except asyncio.CancelledError:
                cancelled += 1
        return cancelled

    with world.both_down():
        world.send(sender, "first")
        assert world.stage.run(send_and_cancel) > 0
    wait_until_empty(client)

    found = world.in_order(queue)
    assert found == ["first", *sorted(set(found) - {"first"})], "in order, and each once"
    assert set(world.acknowledged) <= set(found)


def test_many_threads_store_at_once(world):
    if not isinstance(world.stage.shell, SyncShell):
        pytest.skip("for threads")
    queue = world.queue()
    client = world.pair()
    sender = world.stage.sender(client, queue)

    def work(name: str) -> None:
        world.send(sender, *(f"{name}-{number}" for number in range(10)))

    with world.both_down():
        world.send(sender, "first")
        threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    wait_until_empty(client)

    found = world.in_order(queue)
    assert len(found) == 81
    for name in "abcdefgh":
        own = [each for each in found if each.startswith(f"{name}-")]
        assert own == [f"{name}-{number}" for number in range(10)]
