"""The paired sender itself, with its links: in both shells."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.client.aio import background as aio_background
from pairbus.client.sdk import private
from pairbus.events import FailedOver
from tests.client.shells.both import Others, is_waiting
from tests.client.shells.stage import Stage, link_of
from tests.pairing.shells import bare
from tests.waiting import wait_until

LATER = datetime.now(UTC) + timedelta(hours=1)


def messages(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(str(number)) for number in range(count)]


def fail_over(stage: Stage, sender: Any) -> None:
    with stage.outage:
        sender.send_messages(ServiceBusMessage("the one that fails over"))
    assert "FailedOver" in stage.kinds()


def is_collected(reference: weakref.ref[Any]) -> bool:
    gc.collect()
    return reference() is None


# --- links


@pytest.mark.req("F-08")
def test_the_first_send_after_the_way_back_takes_a_new_link(stage: Stage) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    sender.send_messages(ServiceBusMessage("a"))
    old = link_of(sender)
    # Failed over by another sender: this one's link knows nothing of it.
    with stage.outage:
        stage.sender(client).send_messages(ServiceBusMessage("b"))
    client.pairing.mark_path_healthy("orders")

    sender.send_messages(ServiceBusMessage("c"))
    renewed = link_of(sender)
    sender.send_messages(ServiceBusMessage("d"))

    assert renewed is not old
    assert link_of(sender) is renewed, "and the second has it still"
    assert stage.kinds().count("FailedOver") == 1


class Interrupted(BaseException):
    """Like a KeyboardInterrupt, or the cancellation of a task."""


@pytest.mark.req("A-10")
@pytest.mark.parametrize("is_failed_over", [False, True])
def test_a_link_on_which_a_send_was_interrupted_is_not_used_again(
    stage: Stage, is_failed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late answer may come on it. The next send gets the sender's lock, and another link."""
    sender = stage.sender(stage.pair(backlog_queue_count=1))
    if is_failed_over:
        fail_over(stage, sender)
    module: Any = azure.servicebus if stage.shell.name == "sync" else azure.servicebus.aio
    send, links = module.ServiceBusSender.send_messages, []

    def recorded(sender: Any, *args: Any, **settings: Any) -> Any:
        links.append(link_of(sender))
        if len(links) == 2:
            raise Interrupted
        return send(sender, *args, **settings)

    sender.send_messages(ServiceBusMessage("its link is open then"))
    monkeypatch.setattr(module.ServiceBusSender, "send_messages", recorded)

    sender.send_messages(ServiceBusMessage("a"))
    with pytest.raises(Interrupted):
        sender.send_messages(ServiceBusMessage("b"))
    sender.send_messages(ServiceBusMessage("c"))

    used, interrupted, new = links
    assert used is interrupted is not new


@pytest.mark.req("A-10")
def test_a_link_on_which_a_cancellation_was_interrupted_is_not_used_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = stage.sender(stage.pair())
    module: Any = azure.servicebus if stage.shell.name == "sync" else azure.servicebus.aio

    def interrupted(*args: Any, **settings: Any) -> Any:
        raise Interrupted

    monkeypatch.setattr(module.ServiceBusSender, "cancel_scheduled_messages", interrupted)
    sender.send_messages(ServiceBusMessage("a"))
    link = link_of(sender)

    with pytest.raises(Interrupted):
        sender.cancel_scheduled_messages([1])
    sender.send_messages(ServiceBusMessage("b"))

    assert link_of(sender) is not link


@pytest.mark.req("F-08")
def test_an_interrupt_in_the_moment_in_which_the_lock_is_acquired_leaves_it_free(
    blocking_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C, which only a thread gets: a task is cancelled where it awaits."""
    sender = blocking_stage.sender(blocking_stage.pair(secondary_connections="lazy"))
    acquire = sender.lock.acquire

    def acquire_and_be_interrupted(*args: Any) -> None:
        acquire(*args)
        raise Interrupted

    monkeypatch.setattr(sender.lock, "acquire", acquire_and_be_interrupted)

    with pytest.raises(Interrupted):
        sender.send_messages(ServiceBusMessage("a"))

    assert sender.lock.try_acquire()
    sender.lock.release()


def test_a_sender_that_is_closed_while_its_link_opens_is_free_even_if_the_link_cannot_be_closed(
    blocking_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = blocking_stage.pair(secondary_connections="lazy")
    sender = blocking_stage.sender(client)

    def be_closed(sender: Any, seconds: float) -> None:
        sender.is_closed = True  # what `close` does first

    def refuse(sender: Any) -> None:
        raise OSError("the connection is gone")

    with monkeypatch.context() as patched:
        patched.setattr(private, "open_link", be_closed)
        patched.setattr(private, "close_link", refuse)
        with suppress(OSError):
            sender.open_early(1, client.pairing)

    assert sender.lock.try_acquire()
    sender.lock.release()
    assert not sender.is_opening, "closing it would wait"


def test_after_an_outage_nothing_keeps_the_dead_connections(stage: Stage) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    sender.send_messages(ServiceBusMessage("a"))
    dead = weakref.ref(link_of(sender))

    fail_over(stage, sender)

    wait_until(partial(is_collected, dead), "the dead connection is freed")


# --- schedules


@pytest.mark.req("A-10")
@pytest.mark.parametrize("is_paired", [True, False])
def test_while_healthy_schedules_have_numbers_and_can_be_cancelled(
    stage: Stage, is_paired: bool
) -> None:
    client = stage.pair() if is_paired else stage.client()
    sender = stage.sender(client)

    numbers = sender.schedule_messages(messages(2), LATER)
    sender.cancel_scheduled_messages(numbers)

    assert len(numbers) == 2
    assert all(number > 0 for number in numbers)
    with pytest.raises(ServiceBusError):
        sender.cancel_scheduled_messages(numbers, timeout=5)


# --- batches


@pytest.mark.parametrize("is_paired", [True, False])
def test_batches_are_the_sdks(
    stage: Stage, is_paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.pair() if is_paired else stage.client()
    sender = stage.sender(client)
    module: Any = azure.servicebus if stage.shell.name == "sync" else azure.servicebus.aio
    create, made = module.ServiceBusSender.create_message_batch, []

    def counted(sender: Any, size: int | None = None) -> Any:
        made.append(size)
        return create(sender, size)

    monkeypatch.setattr(module.ServiceBusSender, "create_message_batch", counted)

    batch = sender.create_message_batch(1_000)

    assert type(batch) is ServiceBusMessageBatch
    assert batch.max_size_in_bytes == 1_000
    assert made == [1_000], "once, although an empty batch is falsy"
    with pytest.raises(ValueError, match="size"):
        sender.create_message_batch(10**9)


def test_a_batch_made_while_failed_over_is_a_plain_one_on_a_primary_that_is_back(
    stage: Stage,
) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    fail_over(stage, sender)
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("a"))
    assert batch.path == "orders"
    client.pairing.mark_path_healthy("orders")

    sender.send_messages(batch)

    assert batch.path is None
    assert client.pairing.status().entity("orders").sent == 1


def test_a_sender_that_never_had_a_link_makes_batches_in_an_outage(stage: Stage) -> None:
    client = stage.pair()
    used, sender = stage.sender(client), stage.sender(client)
    expected = used.create_message_batch().max_size_in_bytes
    fail_over(stage, used)

    batches = [sender.create_message_batch(), sender.create_message_batch(1_000)]

    assert [each.max_size_in_bytes for each in batches] == [expected, 1_000]
    assert link_of(sender) is None
    with pytest.raises(ValueError, match=f"size is: {expected} bytes"):
        sender.create_message_batch(expected + 1)
    for batch in batches:
        batch.add_message(ServiceBusMessage("a"))
        sender.send_messages(batch)
    assert client.pairing.status().entity("orders").diverted == 1 + len(batches)


@pytest.mark.req("A-10")
def test_a_healthy_list_is_sent_without_a_copy_of_its_messages(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.pair()
    sender = stage.sender(client)
    sender.send_messages(messages(1))

    def copied(*arguments: Any) -> Any:
        raise AssertionError("a copy was made")

    monkeypatch.setattr("pairbus.client.sdk.encoded.decode", copied)
    monkeypatch.setattr("pairbus.client.sdk.batches.diverted", copied)

    sender.send_messages(messages(3))

    assert client.pairing.status().entity("orders").sent == 4


def test_nothing_is_sent_for_nothing(stage: Stage) -> None:
    client = stage.pair()
    sender = stage.sender(client)

    for is_failed_over in (False, True):
        if is_failed_over:
            fail_over(stage, sender)
        for nothing in ([], iter([]), {}):
            sender.send_messages(nothing)
        assert sender.schedule_messages([], LATER) == []
        assert link_of(sender) is None
    sender.send_messages(sender.create_message_batch())
    client.pairing.mark_path_healthy("orders")
    sender.send_messages(sender.create_message_batch())

    entity = client.pairing.status().entity("orders")
    assert (entity.sent, entity.diverted) == (0, 1)


# --- arguments


@pytest.mark.req("A-10")
@pytest.mark.parametrize("is_failed_over", [False, True])
def test_mistakes_are_reported_in_the_words_of_the_sdk_wherever_the_message_would_go(
    stage: Stage, is_failed_over: bool
) -> None:
    plain = stage.shell.plain_client(stage.primary_text)
    expected = plain.get_queue_sender("orders")
    sender = stage.sender(stage.pair())
    if is_failed_over:
        fail_over(stage, sender)

    odd = ServiceBusMessage("x", application_properties={"what": object()})
    for mistake in (
        lambda s: s.send_messages("text"),
        lambda s: s.send_messages(["text"]),
        lambda s: s.send_messages(object()),
        lambda s: s.send_messages(None),
        lambda s: s.send_messages([ServiceBusMessage("a"), 3]),
        lambda s: s.send_messages({"no": "body"}),
        lambda s: s.send_messages(odd),
        lambda s: s.send_messages([odd]),
        lambda s: s.send_messages(ServiceBusMessage("a"), timeout=0),
        lambda s: s.send_messages(ServiceBusMessage("a"), timeout=-1),
        lambda s: s.schedule_messages("text", LATER),
        lambda s: s.schedule_messages(ServiceBusMessage("a"), LATER, timeout=0),
        lambda s: s.schedule_messages(ServiceBusMessage("a"), LATER, timeout=-1),
        lambda s: s.cancel_scheduled_messages(1, timeout=-1),
    ):
        with pytest.raises(Exception) as right:  # noqa: PT011 - whatever it is
            mistake(expected)
        with pytest.raises(type(right.value)) as ours:
            mistake(sender)
        assert (type(ours.value), str(ours.value)) == (type(right.value), str(right.value))
    assert stage.kinds().count("Diverted") == is_failed_over
    entity = bare(sender).client_state.pairing.status().entity("orders")
    assert (entity.sent, entity.failures) == (0, is_failed_over), "none of them counts"
    plain.close()


# --- time limits


def test_every_call_of_the_blocking_shell_has_a_deadline(
    blocking_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = blocking_stage.pair(secondary_connections="lazy", backlog_queue_count=1)
    sender, worker = blocking_stage.sender(client), client.pairing.worker
    [queue] = client.pairing.backlog_queues
    client.pairing.pool.drop()
    deadline, bound = worker.deadline, []

    def watched(sender: Any, seconds: float) -> Any:
        bound.append(sender.entity_name)
        return deadline(sender, seconds)

    monkeypatch.setattr(worker, "deadline", watched)
    fail_over(blocking_stage, sender)

    assert bound == ["orders", queue, queue], "a send; opening a link, and a send on it"


def test_a_task_that_waits_while_its_sender_is_closed_sends_nothing(asyncio_stage: Stage) -> None:
    """It would open the link again, and nothing would close that."""
    sender = bare(asyncio_stage.sender(asyncio_stage.pair()))

    async def run() -> None:
        await sender.lock.acquire(1.0)
        waiting = asyncio.create_task(sender.send_messages(ServiceBusMessage("a")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(sender.close())
        await asyncio.sleep(0)
        sender.lock.release()
        with pytest.raises(ValueError, match="already been shutdown"):
            await waiting
        await closing

    asyncio_stage.run(run)

    assert link_of(sender) is None


def test_opening_has_an_end_in_the_asyncio_shell(
    asyncio_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK opens a link without a time limit."""
    client = asyncio_stage.pair(send_timeout=timedelta(seconds=1))
    sender = bare(asyncio_stage.sender(client))
    ended = threading.Event()

    async def never(sender: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    monkeypatch.setattr(aio_background, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(azure.servicebus.aio.ServiceBusSender, "__aenter__", never)
    asyncio_stage.run(sender.__aenter__)

    assert ended.is_set()
    [failed_over] = [each for each in asyncio_stage.events if isinstance(each, FailedOver)]
    assert isinstance(failed_over.error, OperationTimeoutError)
    assert str(failed_over.error) == "opening a link to 'orders' took longer than 1 seconds"


def test_the_first_send_of_a_list_has_an_end_in_the_asyncio_shell(
    asyncio_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio_background, "GRACE_SECONDS", 0.0)
    client = asyncio_stage.pair(send_timeout=timedelta(seconds=1))
    sender = asyncio_stage.sender(client)

    with asyncio_stage.primary.faults.hang():
        sender.send_messages(messages(2))

    assert client.pairing.status().entity("orders").diverted == 2


# --- many at once


@pytest.mark.req("A-10")
def test_a_send_that_waits_behind_a_stuck_one_ends_in_its_time(
    stage: Stage, others: Others
) -> None:
    client = stage.pair(failover_interval=timedelta(minutes=1))
    sender = stage.sender(client)
    sender.send_messages(ServiceBusMessage("a"))
    with stage.primary.faults.hang():
        stuck = others.begin(sender.send_messages, ServiceBusMessage("b"), timeout=60)
        assert is_waiting(stuck)

        with pytest.raises(OperationTimeoutError, match="this sender of 'orders'"):
            sender.send_messages(ServiceBusMessage("c"), timeout=0.3)

        assert client.pairing.status().entity("orders").state == "healthy", (
            "so little tells nothing"
        )
    assert stuck.exception(30) is None
