"""How messages leave the outbox, step by step, and the events of it. A script answers the steps
that send; the file is real."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
)

from pairbus.client import outbox as outbox_module
from pairbus.client.outbox import ClientOutbox, drain
from pairbus.client.outbox_file import OutboxFile
from pairbus.client.route.plans import Drain
from pairbus.client.sdk.encoded import encode
from pairbus.client.sdk.pairing_errors import BacklogExhausted, EnvelopeTooLarge
from pairbus.client.steps import run
from pairbus.errors import OutboxError
from pairbus.events import Event, HeldInOutbox, LeftOutbox, OutboxOpened, OutboxStalled
from pairbus.options import Outbox
from tests.client.fakes import Clock, plain_client

pytestmark = pytest.mark.req("X-04")

SENDER = plain_client().get_queue_sender("q")


class World:
    def __init__(self, path: Any, **settings: Any) -> None:
        self.clock = Clock()
        self.events: list[Event] = []
        self.outbox = ClientOutbox(
            Outbox(path, **settings),
            namespace="contoso",
            clock=self.clock,
            notify=self.events.append,
        )
        self.outbox.open_existing()
        self.sent: list[list[str]] = []
        self.answers: list[Exception | None] = []

    def put(self, *ids: str, entity: str = "orders", **fields: Any) -> None:
        messages = [ServiceBusMessage("x", message_id=each, **fields) for each in ids]
        self.outbox.file.put(entity, [(str(m.message_id), encode(SENDER, m)) for m in messages])

    def drain(self, path: str = "orders") -> None:
        def on_disk(work: Callable[[OutboxFile], Any]) -> Any:
            return work(self.outbox.file)

        run(drain(self.outbox, Drain(path), on_disk=on_disk, send=self._send))

    def _send(self, messages: Sequence[Any]) -> None:
        self.sent.append([str(message.properties.message_id) for message in messages])
        self.clock.advance(0.1)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def left(self) -> list[str]:
        return [each.message_id for each in self.outbox.file.messages()]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def made(tmp_path):
    worlds: list[World] = []

    def make(name: str = "outbox.db", **settings: Any) -> World:
        worlds.append(World(tmp_path / name, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.outbox.close()


@pytest.fixture
def world(made):
    return made()


def test_messages_leave_in_their_order_and_are_deleted_after_the_acknowledgement(world):
    world.put("1", "2")
    world.put("3")

    world.drain()

    assert world.sent == [["1", "2", "3"]]
    assert world.left() == []
    [event] = world.of(LeftOutbox)
    assert (event.path, event.count, event.waiting) == ("orders", 3, 0)
    assert (event.oldest_seconds, event.file_bytes) == (0, world.outbox.status().file_bytes)


def test_a_failure_ends_the_drain_and_everything_waits(world):
    world.put("1", "2")
    world.answers = [ServiceBusConnectionError(message="gone")]

    with pytest.raises(ServiceBusConnectionError):
        world.drain()

    assert world.left() == ["1", "2"]
    assert world.of(LeftOutbox) == []


def test_the_part_that_the_backlog_has_is_deleted(world):
    world.put("1", "2", "3")
    world.answers = [BacklogExhausted(entity="orders", diverted_count=2)]

    with pytest.raises(BacklogExhausted):
        world.drain()

    assert world.left() == ["3"]
    [event] = world.of(LeftOutbox)
    assert event.count == 2


def test_a_message_that_is_refused_for_good_is_held_and_the_others_leave(world):
    world.put("1", "large", "3", "4")
    refused = MessageSizeExceededError(message="too large")
    world.answers = [refused, None, refused]

    world.drain()

    assert world.sent == [["1", "large", "3", "4"], ["1"], ["large"], ["3", "4"]]
    assert world.left() == ["large"]
    [event] = world.of(HeldInOutbox)
    assert (event.message_id, event.path) == ("large", "orders")
    assert event.reason == "MessageSizeExceededError: too large"
    assert world.outbox.status().held == 1


def test_a_message_that_fits_the_primary_only_waits_for_the_primary(world):
    world.put("1")
    world.answers = [EnvelopeTooLarge(entity="orders", backlog_queue="b")]

    with pytest.raises(EnvelopeTooLarge):
        world.drain()

    assert world.left() == ["1"]
    assert world.of(HeldInOutbox) == []


def test_what_was_sent_and_could_not_be_deleted_is_deleted_later_and_not_sent_again(
    world, full_disk
):
    world.put("1")

    with full_disk():
        for _ in range(2):
            with pytest.raises(OutboxError):
                world.drain()
    world.drain()

    assert world.sent == [["1"]]
    assert world.left() == []
    assert world.outbox.waiting == 0


def test_bytes_that_cannot_be_read_are_held(world):
    world.outbox.file.put("orders", [("broken", b"\xff\xff")])
    world.put("2")

    world.drain()

    assert world.sent == [["2"]]
    assert world.left() == ["broken"]


def test_a_message_that_waited_too_long_is_held_and_not_sent(made):
    world = made(max_age=timedelta(hours=1))
    world.outbox.file.clock = lambda: 1_000_000.0
    world.put("old")
    world.outbox.file.clock = lambda: 1_000_000.0 + 3600
    world.put("young")
    world.outbox.file.clock = lambda: 1_000_000.0 + 3601

    world.drain()

    assert world.sent == [["young"]]
    assert world.left() == ["old"]
    [event] = world.of(HeldInOutbox)
    assert event.reason == "it waited longer than max_age (1:00:00)"


def test_a_batch_has_messages_of_one_session_or_partition_key(world):
    world.put("1", "2", session_id="a")
    world.put("3", session_id="b")
    world.put("4", "5")
    world.put("6", partition_key="p")

    world.drain()

    assert world.sent == [["1", "2"], ["3"], ["4", "5"], ["6"]]


def test_a_drain_ends_after_a_while_so_that_others_get_their_turn(world, monkeypatch):
    world.put(*map(str, range(100)))
    monkeypatch.setattr(outbox_module, "BATCH_COUNT", 1)

    world.drain()

    assert len(world.sent) == outbox_module.DRAIN_SECONDS_MAX / 0.1
    assert len(world.left()) == 100 - len(world.sent)


def test_an_entity_that_refuses_its_messages_is_reported(world):
    world.put("1", entity="Orders")
    error = MessagingEntityNotFoundError(message="no such queue")

    world.outbox.drain_ended(Drain("orders"), error)

    with pytest.raises(OutboxError, match="no such queue; they are sent when") as caught:
        world.outbox.check_accepts("ORDERS")
    assert caught.value.__cause__ is error
    [event] = world.of(OutboxStalled)
    assert (event.path, event.error, event.waiting) == ("Orders", error, 1)


def test_a_send_does_not_wait_for_a_look_at_what_is_due(world):
    """That one is taken under the lock of the pairing, and a signal handler may send."""
    world.put("1")
    looking, release = threading.Event(), threading.Event()

    def can_send(path: str) -> bool:
        looking.set()
        return release.wait(30)

    look = partial(world.outbox.take_due, now=world.clock(), can_send=can_send)
    send = threading.Thread(target=world.outbox.check_accepts, args=("orders",), daemon=True)
    background = threading.Thread(target=look, daemon=True)
    background.start()
    assert looking.wait(30)
    send.start()
    send.join(20)
    is_waiting = send.is_alive()
    release.set()
    background.join()

    assert not is_waiting


def test_a_file_with_messages_is_announced(made):
    first = made()
    first.put("1", "2")
    first.outbox.close()

    second = made()
    second.outbox.announce()

    [event] = second.of(OutboxOpened)
    assert (event.waiting, event.held) == (2, 0)
    assert event.file.endswith("outbox.db")
    assert event.oldest_seconds >= 0
    assert event.file_bytes == second.outbox.status().file_bytes > 0


def test_closing_with_messages_warns_once_and_leaves_them(world, caplog):
    world.put("1")

    world.outbox.close()
    world.outbox.close()

    [record] = caplog.records
    assert (record.name, record.levelno) == ("pairbus.outbox", logging.WARNING)
    assert "1 messages for contoso are left in the outbox file" in record.message


def test_two_clients_of_a_process_are_refused_before_the_file_exists(made, world):
    with pytest.raises(OutboxError, match="in use by another client of this process"):
        made()

    world.outbox.close()
    made()


@pytest.mark.parametrize(
    ("name", "text"),
    [("missing/outbox.db", "does not exist: create it"), (".", "is a folder: name a file in it")],
)
def test_a_path_that_cannot_be_used_is_refused_before_it_is_needed(made, name, text):
    with pytest.raises(OutboxError, match=text):
        made(name)


def test_a_folder_that_is_not_writable_is_refused_before_it_is_needed(made, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # these tests may run as root

    with pytest.raises(OutboxError, match="may not write to its folder"):
        made()
