"""A call that neither namespace accepts, with an outbox: what is stored, and what is not. A script
answers the steps; the file is real."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from pairbus import Outbox
from pairbus.client.outbox_file import ROW_BYTES
from pairbus.client.pool import PoolExhausted
from pairbus.client.route.plans import Drain
from pairbus.client.sdk.encoded import decode
from pairbus.client.sdk.pairing_errors import BacklogExhausted, UnknownSequenceNumber
from pairbus.client.send import SendCall, SendRequest
from pairbus.client.steps import AcquireLock, CallPrimary, Step, StoreInOutbox, run
from pairbus.errors import OutboxError
from pairbus.events import SendFailed, StoredInOutbox
from tests.client.fakes import Clock, busy, outage, report_limits
from tests.client.test_send import LATER, PATH, Interrupted, World

pytestmark = pytest.mark.req("X-04")


class OutboxWorld(World):
    def __init__(self, clock: Clock, folder: Path, *, max_bytes: int = 10**6, **settings: Any):
        outbox = Outbox(folder / "outbox.db", max_bytes=max_bytes)
        super().__init__(clock, outbox=outbox, **settings)
        assert self.pairing.outbox is not None
        self.outbox = self.pairing.outbox

    def perform(self, call: SendCall, step: Step) -> Any:
        answer = super().perform(call, step)
        if isinstance(step, StoreInOutbox):
            self.outbox.file.put(step.path, step.messages)
        return answer

    def stored(self) -> list[str]:
        return [each.message_id for each in self.outbox.file.messages()] if self.is_open else []

    @property
    def is_open(self) -> bool:
        return self.outbox.file.is_open

    def lose_both(self) -> None:
        """The entity is failed over, and no backlog queue is left."""
        self.fail_over()
        while self.pairing.queues_left:
            plan: Any = self.pairing.plan(PATH)
            self.pairing.failed(PATH, plan, outage())
        self.events.clear()
        self.steps.clear()


@pytest.fixture
def world(clock: Clock, tmp_path: Path):
    made = OutboxWorld(clock, tmp_path)
    yield made
    made.outbox.close()


def test_a_healthy_send_opens_no_file(world, tmp_path):
    assert world.send(3) == "primary"

    assert world.steps == [AcquireLock(60.0), CallPrimary(60.0)]
    assert not world.is_open
    assert not list(tmp_path.iterdir())


def test_what_neither_namespace_accepts_is_stored_and_the_call_returns(world):
    world.script(CallPrimary=[outage()], Borrow=[outage(), outage(), outage()])

    assert world.send(2) is None

    [step] = world.of(StoreInOutbox)
    assert len(step.messages) == len(world.stored()) == 2
    [event] = [event for event in world.events if isinstance(event, StoredInOutbox)]
    assert (event.path, event.count, event.waiting) == (PATH, 2, 2)
    assert SendFailed not in world.event_kinds()
    status = world.pairing.status()
    assert status.outbox.waiting == 2
    assert status.outbox.entities == {PATH: 2}
    assert status.outbox.file_bytes > 0
    assert status.entity(PATH).refused == 0
    assert status.as_dict()["outbox"]["waiting"] == 2


def test_later_messages_of_the_entity_go_behind_without_an_attempt(world):
    world.lose_both()
    world.send()
    world.pairing.mark_path_healthy(PATH)
    world.steps.clear()

    world.send()

    assert world.kinds() == [StoreInOutbox]
    assert len(world.stored()) == 2


def test_another_entity_is_not_concerned(world):
    world.outbox.file.put("invoices", [("1", b"x")])

    assert world.send() == "primary"


def test_opening_a_link_stores_nothing(world):
    world.outbox.file.put(PATH, [("1", b"x")])

    assert world.open() == "primary"


def test_when_the_outbox_is_empty_messages_go_to_the_primary_again(world):
    world.lose_both()
    world.send()
    world.outbox.file.delete(world.outbox.file.oldest(PATH, count=9, bytes_max=10**6))
    world.pairing.mark_path_healthy(PATH)

    assert world.send() == "primary"


def test_of_a_call_that_is_partly_in_the_backlog_only_the_rest_is_stored(world):
    queue = world.fail_over()
    world.limit = 400
    world.script(SendBatch=[None, outage(), outage(), outage()])

    numbers = world.send(4, size=100, schedule=LATER)

    [step] = world.of(StoreInOutbox)
    stored = len(step.messages)
    assert 0 < stored < 4
    sent = world.pairing.status().entity(PATH).diverted
    assert sent + len(world.stored()) == 4
    queues = [number.backlog_queue for number in numbers]
    assert queues == [queue] * sent + [None] * stored


def test_a_schedule_is_stored_with_its_time(world):
    world.lose_both()

    numbers = world.send(2, schedule=LATER)

    assert numbers == [-1, -1]
    assert all(isinstance(each, UnknownSequenceNumber) for each in numbers)
    assert numbers[0].backlog_queue is None
    assert "was stored in the outbox" in repr(numbers[0])
    assert [each.message_id for each in numbers] == world.stored()
    [step] = world.of(StoreInOutbox)
    annotations = decode(step.messages[0][1]).annotations
    milliseconds = int(LATER.timestamp() * 1000)
    assert annotations == {
        b"x-opt-scheduled-enqueue-time": {"TYPE": "TIMESTAMP", "VALUE": milliseconds}
    }


def test_a_call_that_gets_no_connection_to_the_backlog_is_stored(world):
    queue = world.fail_over()
    world.script(Borrow=[PoolExhausted(queue, 5.0)])

    world.send()

    assert len(world.stored()) == 1


def test_a_call_whose_backlog_queues_are_all_busy_is_stored(clock, tmp_path):
    world = OutboxWorld(clock, tmp_path, queues=1)
    world.fail_over()
    world.script(SendBatch=[busy()] * 9)

    world.send(timeout=5)

    assert len(world.stored()) == 1
    world.outbox.close()


def test_a_full_outbox_is_an_error_that_says_so_and_nothing_is_stored(clock, tmp_path):
    world = OutboxWorld(clock, tmp_path, max_bytes=ROW_BYTES)
    world.lose_both()

    with pytest.raises(BacklogExhausted, match=r"is not in the outbox: .* is full") as caught:
        world.send()

    assert isinstance(caught.value.outbox_error, OutboxError)
    assert isinstance(caught.value.primary_error, ServiceBusConnectionError)
    assert caught.value.__cause__ is caught.value.outbox_error
    assert world.stored() == []
    assert world.event_kinds() == [SendFailed]
    assert world.pairing.status().entity(PATH).refused == 1
    world.outbox.close()


def test_the_part_in_the_backlog_is_counted_if_the_rest_does_not_fit(clock, tmp_path):
    world = OutboxWorld(clock, tmp_path, max_bytes=1)
    world.fail_over()
    world.limit = 300
    world.script(SendBatch=[None, outage(), outage(), outage()])

    with pytest.raises(BacklogExhausted) as caught:
        world.send(4, size=100)

    assert caught.value.diverted_count == world.pairing.status().entity(PATH).diverted > 0
    world.outbox.close()


def test_while_the_entity_is_suspect_the_caller_gets_the_error(clock, tmp_path):
    world = OutboxWorld(clock, tmp_path, failover_interval=timedelta(seconds=10))
    world.script(CallPrimary=[outage()])

    with pytest.raises(ServiceBusConnectionError):
        world.send()

    assert not world.is_open


@pytest.mark.parametrize(
    "error",
    [
        MessageSizeExceededError(message="too large"),
        ServiceBusAuthorizationError(message="no Send claim"),
        MessagingEntityNotFoundError(message="no such queue"),
    ],
)
def test_a_fault_of_the_message_or_of_the_setup_is_not_stored(world, error):
    world.script(CallPrimary=[error])

    with pytest.raises(type(error)):
        world.send()

    assert not world.is_open


def test_a_message_that_cannot_be_encoded_is_not_stored(world):
    world.lose_both()
    message = ServiceBusMessage("x", application_properties={"a": object()})  # type: ignore[dict-item]

    with pytest.raises(TypeError, match="Unable to encode"):
        send_one(world, message)

    assert world.stored() == []


def test_a_message_above_the_known_limit_of_the_primary_is_not_stored(world):
    world.lose_both()
    report_limits(world.sender, (1000, 1000))

    with pytest.raises(MessageSizeExceededError, match="the limit is 1000"):
        world.send(size=2000)

    assert world.stored() == []


def test_while_the_entity_refuses_what_waits_the_caller_learns_it(world):
    world.lose_both()
    world.send()
    missing = MessagingEntityNotFoundError(message="no such queue")
    world.outbox.drain_ended(Drain(PATH), missing)

    with pytest.raises(BacklogExhausted, match=r"the primary refuses them: Messaging.*no such"):
        world.send()

    assert len(world.stored()) == 1


def test_what_leaves_the_outbox_is_not_stored_again_and_is_no_failed_send(world):
    world.lose_both()
    world.send()
    world.events.clear()

    with pytest.raises(BacklogExhausted):
        send_one(world, ServiceBusMessage("x"), is_from_outbox=True)

    assert len(world.stored()) == 1
    assert world.events == []


def test_an_interrupt_while_it_is_stored_reaches_the_caller(world):
    world.lose_both()
    world.script(StoreInOutbox=[Interrupted()])

    with pytest.raises(Interrupted):
        world.send()


def send_one(world: OutboxWorld, message: ServiceBusMessage, **settings: Any) -> None:
    request = SendRequest(messages=message, count=1, on_primary=lambda seconds: None, **settings)
    call = SendCall(world.pairing, world.sender, request, None)
    run(call.steps(), lambda step: world.perform(call, step))
