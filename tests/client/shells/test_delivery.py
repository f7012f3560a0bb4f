"""A call on its way, in both shells: which attempts it makes, on what, and with how much time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from pairbus.client.errand import Done, Errand, FirstFailure, TurnTaken
from pairbus.client.pool import LANES_PER_QUEUE_MAX, AllBusy
from pairbus.client.sdk.errors import BacklogExhausted
from pairbus.client.sdk.messages import diverted, diverted_all
from pairbus.events import BacklogWithdrawn, Diverted, Event, FailedOver, Throttled
from tests.client.fakes import busy, outage
from tests.client.sdk.wire import encoded
from tests.client.shells.both import (
    AsyncioSide,
    Others,
    Scripted,
    Side,
    SyncSide,
    is_waiting,
    until,
)

PATH = "orders"


class Turn:
    """As the test says: it comes at once, after a while, or never."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.meanwhile: Callable[[], Any] | None = None
        """What happens while it is waited for."""
        self.timeouts: list[float] = []
        self.is_taken = False

    def take(self, timeout: float) -> bool:
        self.timeouts.append(timeout)
        if self.error is not None:
            raise self.error
        assert not self.is_taken
        self.is_taken = True
        if self.meanwhile is not None:
            self.meanwhile()
        return self.meanwhile is not None

    def release(self) -> None:
        assert self.is_taken
        self.is_taken = False


class AsyncTurn(Turn):
    async def take(self, timeout: float) -> bool:  # type: ignore[override]
        return super().take(timeout)


class Sender:
    """The paired sender, as far as a delivery needs it."""

    entity_name = PATH
    fully_qualified_namespace = "contoso.servicebus.windows.net"
    _running = True
    _handler = None
    turn: Turn

    def __init__(self) -> None:
        self.turn = Turn()
        self.epoch = 0
        self.renewals: list[int] = []
        self.is_trusted = True

    def distrust(self) -> None:
        self.is_trusted = False

    def renew(self, epoch: int) -> None:
        self.renewals.append(epoch)
        self.epoch = epoch


class AsyncSender(Sender):
    def __init__(self) -> None:
        super().__init__()
        self.turn = AsyncTurn()

    async def renew(self, epoch: int) -> None:  # type: ignore[override]
        super().renew(epoch)


class World:
    """One paired sender whose attempts go as the test says."""

    def __init__(self, side: Side, *, at_once: bool = False, **settings: Any) -> None:
        """`at_once`: one message is first tried without a course, as a sender does."""
        self.side = side
        self.at_once = at_once
        self.told: list[Event] = []
        settings = {
            "failover_interval": timedelta(0),
            "observers": [self.told.append],
            **settings,
        }
        self.pairing = side.pairing(**settings)
        # Waits are short here; how long they are is decided elsewhere.
        self.pairing.throttle_seconds = 0.01
        self.sender: Any = Sender() if side.name == "sync" else AsyncSender()
        self.lanes: list[Scripted] = []
        self.lane_scripts: list[list[Any]] = []
        """Of the sends on each new lane, in the order in which they are made."""
        self.limits = (100_000, 100_000)
        self.pairing.lanes._shelves._make = self._make
        self.primary: list[Any] = []
        """What each attempt on the primary does: raise, answer, or be called."""
        self.attempts: list[float] = []

    def _make(self, queue: str) -> Scripted:
        sender = self.side.scripted(queue, limits=self.limits)
        sender.sends = self.lane_scripts.pop(0) if self.lane_scripts else []
        self.lanes.append(sender)
        return sender

    def _attempt(self, timeout: float) -> Any:
        assert self.sender.turn.is_taken, "without its turn"
        self.attempts.append(timeout)
        step = self.primary.pop(0) if self.primary else "primary"
        if isinstance(step, BaseException):
            raise step
        return step() if callable(step) else step

    def errand(
        self, count: int = 1, size: int = 10, messages: list[ServiceBusMessage] | None = None
    ) -> Errand[Any, Any]:
        messages = messages or [ServiceBusMessage(b"x" * size) for _ in range(count)]
        return Errand(
            count=len(messages),
            on_primary=self.side.on_primary(self._attempt),
            diverted=lambda: diverted_all(messages, PATH),
            when_diverted=lambda queue: f"diverted to {queue}",
        )

    def deliver(self, count: int = 1, *, size: int = 10, timeout: float | None = None) -> Any:
        messages = [ServiceBusMessage(b"x" * size) for _ in range(count)]
        failed = None
        if self.at_once and count == 1:
            first = self.side.divert_at_once(self.pairing, PATH, messages[0], timeout)
            if isinstance(first, Done):
                return f"diverted to {self.queue}"
            failed = first
        errand = self.errand(messages=messages)
        return self.side.deliver(self.pairing, self.sender, errand, timeout, failed)

    def fail_over(self) -> str:
        self.pairing.failed(PATH, self.pairing.plan(PATH), outage())
        self.pairing.plan(PATH)
        self.told.clear()
        return self.queue

    @property
    def queue(self) -> str:
        """The backlog queue in use."""
        return str(self.pairing.status().entity(PATH).backlog_queue)

    def keep_lane(self, *script: Any) -> Scripted:
        """An open lane to the queue in use, that has been used before."""
        lane = self.side.call(self.pairing.lanes.borrow, self.queue, timeout=1.0)
        lane.sender.open(self.limits)
        self.side.call(self.pairing.lanes.give_back, lane, is_usable=True)
        lane.sender.sends = list(script)
        sender: Scripted = lane.sender
        return sender

    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.told]


@pytest.fixture(params=[False, True], ids=["on its course", "at once"])
def world(side: Side, request: pytest.FixtureRequest) -> World:
    return World(side, at_once=request.param)


# --- a healthy primary


@pytest.mark.req("A-10")
def test_a_healthy_primary_gets_one_attempt_and_nobody_else_does(world: World) -> None:
    assert world.deliver(3) == "primary"

    assert world.attempts == [pytest.approx(60.0)]
    assert world.lanes == []
    assert world.told == []
    assert world.pairing.status().entity(PATH).sent == 3


def test_the_callers_timeout_is_that_of_the_attempt_and_of_the_turn(world: World) -> None:
    world.deliver(timeout=5.0)

    assert world.sender.turn.timeouts == [pytest.approx(5.0, abs=0.5)]
    assert world.attempts == [pytest.approx(5.0, abs=0.5)]


def test_a_link_is_renewed_once_for_each_way_back_of_its_entity(world: World) -> None:
    world.deliver()
    world.fail_over()
    world.pairing.mark_path_healthy(PATH)
    world.deliver()
    world.deliver()

    assert world.sender.renewals == [1]


@pytest.mark.req("A-10")
@pytest.mark.req("F-02")
def test_an_error_that_does_not_count_is_the_callers(world: World) -> None:
    error = MessageSizeExceededError(message="too large")
    world.primary = [error]

    with pytest.raises(MessageSizeExceededError) as caught:
        world.deliver()

    assert caught.value is error
    assert not world.sender.turn.is_taken
    assert world.lanes == []


# --- failing over


@pytest.mark.req("A-05")
def test_the_call_that_fails_over_is_diverted_itself(world: World) -> None:
    world.primary = [outage()]

    assert world.deliver(2) == f"diverted to {world.queue}"

    [lane] = world.lanes
    assert (lane.entity_name, lane.opened, len(lane.sent)) == (world.queue, 1, 1)
    assert world.kinds() == [FailedOver, Diverted]
    assert not world.sender.turn.is_taken


@pytest.mark.req("F-03")
def test_while_failed_over_the_primary_is_not_tried(world: World) -> None:
    world.fail_over()

    for _ in range(3):
        world.deliver()

    assert world.attempts == []
    assert world.sender.turn.timeouts == []
    [lane] = world.lanes
    assert len(lane.sent) == 3, "all on one link"


@pytest.mark.req("F-05")
def test_a_call_whose_entity_failed_over_while_it_waited_for_its_turn_is_diverted(
    world: World,
) -> None:
    world.sender.turn.meanwhile = world.fail_over

    assert world.deliver() == f"diverted to {world.queue}"
    assert world.attempts == []


def test_a_call_that_never_got_its_turn_is_diverted_if_one_call_was_stuck(world: World) -> None:
    world.sender.turn.error = TurnTaken(PATH, 1.0, is_stuck=True)

    assert world.deliver() == f"diverted to {world.queue}"


def test_a_call_that_never_got_its_turn_among_many_is_told_so(world: World) -> None:
    world.sender.turn.error = TurnTaken(PATH, 1.0, is_stuck=False)

    with pytest.raises(TurnTaken):
        world.deliver()
    assert world.lanes == []


@pytest.mark.req("F-05")
def test_a_failure_from_before_the_way_back_is_tried_again_on_the_primary(world: World) -> None:
    def fail_late() -> None:
        world.fail_over()
        world.pairing.mark_path_healthy(PATH)
        raise outage()

    world.primary = [fail_late]

    assert world.deliver() == "primary"
    assert len(world.attempts) == 2


# --- a busy service


@pytest.mark.req("R-03")
@pytest.mark.req("F-02")
def test_a_busy_primary_is_tried_again_after_the_wait_without_holding_the_turn(
    world: World,
) -> None:
    waits: list[bool] = []
    world.pairing.observe(lambda event: waits.append(world.sender.turn.is_taken))
    world.primary = [busy(), busy()]

    assert world.deliver() == "primary"

    assert len(world.attempts) == 3
    assert world.kinds() == [Throttled, Throttled]
    assert waits == [False, False]


@pytest.mark.req("C-02")
def test_a_client_that_closes_does_not_leave_a_throttled_call_waiting(
    world: World, others: Others
) -> None:
    world.pairing.throttle_seconds = 60.0
    world.primary = [busy()]
    call = others.begin(world.deliver)
    until(lambda: Throttled in world.kinds(), "it is throttled")
    assert is_waiting(call)

    world.side.call(world.pairing.closing.set)

    with pytest.raises(ServiceBusServerBusyError):
        call.result(5)


@pytest.mark.req("R-03")
def test_a_busy_backlog_queue_is_tried_again_on_the_same_link(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane(busy())

    assert world.deliver() == f"diverted to {world.queue}"

    assert len(lane.sent) == 2
    assert world.lanes == [lane]
    assert world.kinds() == [Throttled, Diverted]


# --- links to the backlog


def test_a_kept_link_that_has_gone_stale_is_replaced_and_the_queue_stays(world: World) -> None:
    world.fail_over()
    stale = world.keep_lane(outage())

    assert world.deliver() == f"diverted to {world.queue}"

    until(lambda: stale.is_closed, "the stale link is closed")
    [_, fresh] = world.lanes
    assert (fresh.entity_name, fresh.opened, len(fresh.sent)) == (world.queue, 1, 1)
    assert BacklogWithdrawn not in world.kinds()


def test_where_one_kept_link_was_stale_no_other_is_tried(world: World) -> None:
    queue, side, lanes = world.fail_over(), world.side, world.pairing.lanes
    borrowed = [side.call(lanes.borrow, queue, timeout=1.0) for _ in range(3)]
    for lane in borrowed:
        lane.sender.open(world.limits)
        lane.sender.sends = [outage()]
        side.call(lanes.give_back, lane, is_usable=True)

    assert world.deliver() == f"diverted to {queue}"

    assert sum(len(lane.sender.sent) for lane in borrowed) == 1
    assert len(world.lanes) == 4
    for lane in borrowed:
        until(lambda lane=lane: lane.sender.is_closed, "all of them are closed")


def test_a_kept_link_that_its_client_closed_is_replaced(world: World) -> None:
    world.fail_over()
    world.side.call(world.keep_lane().close)

    assert world.deliver() == f"diverted to {world.queue}"
    assert len(world.lanes) == 2


@pytest.mark.req("F-06")
def test_a_queue_that_fails_on_a_new_link_is_left_for_another(world: World) -> None:
    failing = world.fail_over()
    world.lane_scripts = [[outage()]]

    result = world.deliver()

    assert result == f"diverted to {world.queue}"
    assert world.queue != failing
    assert [lane.entity_name for lane in world.lanes] == [failing, world.queue]
    assert world.kinds() == [BacklogWithdrawn, Diverted]
    until(lambda: world.lanes[0].is_closed, "the link to it is closed")


@pytest.mark.req("F-06")
def test_a_queue_that_does_not_answer_in_time_is_not_asked_twice(world: World) -> None:
    failing = world.fail_over()
    silent = world.keep_lane(OperationTimeoutError(message="too slow"))

    world.deliver()

    assert len(silent.sent) == 1
    assert [lane.entity_name for lane in world.lanes] == [failing, world.queue]


@pytest.mark.req("F-06")
def test_a_queue_whose_link_does_not_open_is_left_for_another(world: World) -> None:
    failing = world.fail_over()
    make, first = world.pairing.lanes._shelves._make, True

    def refuse(queue: str) -> Scripted:
        nonlocal first
        sender = make(queue)
        sender.opens = [ServiceBusConnectionError(message="refused")] if first else []
        first = False
        return sender

    world.pairing.lanes._shelves._make = refuse

    world.deliver()

    assert [lane.entity_name for lane in world.lanes] == [failing, world.queue]


@pytest.mark.req("F-07")
def test_when_no_namespace_takes_it_the_caller_gets_both_causes(side: Side) -> None:
    world = World(side, queues=2)
    world.primary = [primary_error := outage()]
    world.lane_scripts = [[outage()], [backlog_error := outage()]]

    with pytest.raises(BacklogExhausted) as caught:
        world.deliver()

    assert caught.value.primary_error is primary_error
    assert caught.value.backlog_error is backlog_error
    assert len(world.lanes) == 2


def test_the_sdk_does_not_retry_on_a_queue_while_there_is_another(side: Side) -> None:
    world = World(side, queues=2)
    world.fail_over()
    world.lane_scripts = [[outage()]]

    world.deliver()

    assert [lane._config.retry_total for lane in world.lanes] == [0, 3]


def test_a_backlog_queue_has_a_moment_however_short_the_callers_timeout(world: World) -> None:
    world.fail_over()

    world.deliver(timeout=0.001)

    [(_, timeout)] = world.lanes[0].sent
    assert timeout == pytest.approx(1.0)


def test_a_message_at_fault_leaves_the_link_to_the_next_one(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane(MessageSizeExceededError(message="too large"))

    with pytest.raises(MessageSizeExceededError):
        world.deliver()

    assert world.deliver() == f"diverted to {world.queue}"
    assert world.lanes == [lane]
    assert not lane.is_closed


def test_that_all_links_are_lent_says_nothing_of_the_queue(world: World) -> None:
    queue = world.fail_over()
    for _ in range(LANES_PER_QUEUE_MAX):
        world.side.call(world.pairing.lanes.borrow, queue, timeout=1.0)
    borrow = world.pairing.lanes.borrow
    # At least five seconds are given to the opening of a link; here that is too long.
    world.pairing.lanes.borrow = lambda queue, *, timeout, fresh: borrow(
        queue, timeout=0.01, fresh=fresh
    )

    with pytest.raises(AllBusy):
        world.deliver(timeout=0.01)
    assert world.queue == queue


# --- calls in parts


def test_a_call_too_large_for_one_batch_goes_in_parts_on_one_link(world: World) -> None:
    world.limits = (3_000, 3_000)
    world.fail_over()

    assert world.deliver(10, size=300) == f"diverted to {world.queue}"

    [lane] = world.lanes
    assert len(lane.sent) > 1
    assert sum(event.count for event in world.told if isinstance(event, Diverted)) == 10


@pytest.mark.req("F-06")
@pytest.mark.req("X-02")
@pytest.mark.parametrize("is_back", [False, True])
def test_parts_that_are_safe_are_not_sent_again(world: World, is_back: bool) -> None:
    world.limits = (3_000, 3_000)
    failing = world.fail_over()

    def break_down() -> None:
        if is_back:
            world.pairing.mark_path_healthy(PATH)
        raise outage()

    world.lane_scripts = [[None, break_down]]

    result = world.deliver(10, size=300)

    first, second = world.lanes
    assert (first.entity_name, len(first.sent)) == (failing, 2)
    assert result == f"diverted to {second.entity_name}"
    assert second.entity_name != failing
    assert first.sent[1][0] is second.sent[0][0], "the part that failed, and no other"
    assert sum(event.count for event in world.told if isinstance(event, Diverted)) == 10
    assert world.attempts == [], "none of it went to the primary"


@pytest.mark.req("F-07")
def test_a_call_that_ends_in_its_middle_tells_what_is_safe(side: Side) -> None:
    world = World(side, queues=1)
    world.limits = (3_000, 3_000)
    world.fail_over()
    world.lane_scripts = [[None, busy(), busy(), busy(), busy()]]

    with pytest.raises(BacklogExhausted) as caught:
        world.deliver(10, size=300)

    [diverted] = [event for event in world.told if isinstance(event, Diverted)]
    assert caught.value.diverted_count == diverted.count
    assert isinstance(caught.value.__cause__, ServiceBusServerBusyError)


# --- opening a link


def test_opening_a_link_counts_its_failure_but_no_success(world: World) -> None:
    opening = world.errand(0)

    assert world.side.deliver(world.pairing, world.sender, opening, None) == "primary"
    assert world.pairing.status().entity(PATH).sent == 0

    world.primary = [outage()]
    assert world.side.deliver(world.pairing, world.sender, opening, None) == "diverted to "
    assert world.pairing.status().failed_over == (PATH,)
    assert world.lanes == []


def test_nothing_is_opened_while_failed_over_even_if_no_queue_is_left(side: Side) -> None:
    world = World(side, queues=1)
    world.fail_over()
    way = world.pairing.plan(PATH)
    world.pairing.failed(PATH, way, outage())

    opening = world.errand(0)

    assert side.deliver(world.pairing, world.sender, opening, None) == "diverted to "
    assert world.attempts == []


# --- who is interrupted


class Interrupted(BaseException):
    """As a KeyboardInterrupt, or a task's cancellation."""


def test_an_interrupted_attempt_on_the_primary_gives_its_turn_back(world: World) -> None:
    world.primary = [Interrupted()]

    with pytest.raises(Interrupted):
        world.deliver()

    assert not world.sender.turn.is_taken
    assert not world.sender.is_trusted, "an answer may still come on its link"
    assert world.deliver() == "primary"


def test_who_is_interrupted_while_it_waits_leaves_the_link_of_another_alone(world: World) -> None:
    world.sender.turn.error = Interrupted()

    with pytest.raises(Interrupted):
        world.deliver()

    assert world.sender.is_trusted


def test_a_turn_is_given_back_whatever_happens_after_it_was_taken(world: World) -> None:
    def exit_now(event: Event) -> None:
        raise Interrupted

    world.pairing.observe(exit_now)
    # While it waits, the interval ends: so who has its turn next tells of the failover.
    world.pairing._router._failover_seconds = 0.0
    world.sender.turn.meanwhile = lambda: world.pairing._router.failed(
        PATH, world.pairing.plan(PATH), outage(), now=world.pairing.clock()
    )

    with pytest.raises(Interrupted):
        world.deliver()

    assert not world.sender.turn.is_taken


def test_a_first_attempt_that_failed_is_taken_up_where_it_was(world: World) -> None:
    way = world.pairing.direct(PATH) or world.pairing.plan(PATH)
    began = world.pairing.clock()
    failed = FirstFailure(way, busy(), began - 100.0)

    # The wait is too long for what was left of its time when it failed.
    with pytest.raises(ServiceBusServerBusyError):
        world.side.deliver(world.pairing, world.sender, world.errand(), 50.0, failed)
    assert world.attempts == []

    failed = FirstFailure(way, outage(), began)
    result = world.side.deliver(world.pairing, world.sender, world.errand(), 50.0, failed)
    assert result == f"diverted to {world.queue}"
    assert world.attempts == []


def test_an_interrupted_attempt_in_the_backlog_gives_its_link_back_to_be_closed(
    world: World,
) -> None:
    world.fail_over()
    lane = world.keep_lane(Interrupted())

    with pytest.raises(Interrupted):
        world.deliver()

    until(lambda: lane.is_closed, "its link is closed")
    assert world.deliver() == f"diverted to {world.queue}"
    assert world.lanes[-1] is not lane


@pytest.mark.req("C-02")
def test_a_call_that_begins_when_the_client_is_closed_is_refused(world: World) -> None:
    world.fail_over()
    world.side.call(world.pairing.lanes.close)

    with pytest.raises(ValueError, match="the paired client has been closed"):
        world.deliver()


# --- one message, at once


def at_once(world: World, size: int = 10, timeout: float | None = None) -> Any:
    message = ServiceBusMessage(b"x" * size)
    return world.side.divert_at_once(world.pairing, PATH, message, timeout)


def test_a_message_goes_to_the_backlog_at_once_on_a_link_that_is_kept(world: World) -> None:
    queue = world.fail_over()
    lane = world.keep_lane()
    lent: list[int] = []
    world.pairing.observe(lambda event: lent.append(len(shelf(world).lent)))

    message = ServiceBusMessage("a")
    assert isinstance(world.side.divert_at_once(world.pairing, PATH, message, None), Done)

    [(content, timeout)] = lane.sent
    assert encoded(content) == encoded(diverted(message, PATH))
    assert timeout == 20.0
    assert lane._config.retry_total == 0
    assert world.lanes == [lane]
    assert [lane.sender for lane in shelf(world).idle] == [lane]
    [event] = world.told
    assert isinstance(event, Diverted)
    assert (event.path, event.backlog_queue, event.count) == (PATH, queue, 1)
    assert event.seconds < 1
    assert world.pairing.status().entity(PATH).diverted == 1
    assert lent == [0], "an observer may send as well"


def shelf(world: World) -> Any:
    return world.pairing.lanes._shelves._shelves[world.queue]


def test_nothing_is_tried_at_once_without_a_link_that_is_open(world: World) -> None:
    world.fail_over()
    assert at_once(world) is None

    lane = world.keep_lane()
    lane._running = False
    assert at_once(world) is None

    lane._running = True
    lane._shutdown.set()
    assert at_once(world) is None
    assert world.lanes == [lane]
    assert shelf(world).lent == set()


def test_nothing_is_tried_at_once_while_the_primary_takes_messages(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane()
    world.pairing.mark_path_healthy(PATH)

    assert at_once(world) is None
    assert lane.sent == []


def test_nothing_is_tried_at_once_on_a_queue_that_left_the_rotation(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane()
    world.pairing.failed(PATH, world.pairing.plan(PATH), outage())

    assert at_once(world) is None
    assert lane.sent == []


def test_a_message_that_may_be_too_large_is_measured_first(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane()

    assert at_once(world, size=50_001) is None
    assert lane.sent == []
    assert not lane.is_closed
    assert isinstance(at_once(world, size=50_000), Done)


def test_what_fails_at_once_tells_what_and_when(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane(error := outage())
    began = world.pairing.clock()

    failed = at_once(world, timeout=3.0)

    assert isinstance(failed, FirstFailure)
    assert failed.way == world.pairing.plan(PATH)
    assert failed.error is error
    assert began <= failed.began <= world.pairing.clock()
    until(lambda: lane.is_closed, "its link is closed")


def test_the_time_of_a_failure_at_once_counts(world: World) -> None:
    world.fail_over()
    lane = world.keep_lane()
    way, began = world.pairing.plan(PATH), world.pairing.clock() - 40.0

    failed = FirstFailure(way, busy(), began)
    world.side.deliver(world.pairing, world.sender, world.errand(), 50.0, failed)

    [(_, timeout)] = lane.sent
    assert timeout == pytest.approx(10.0, abs=1.0)


def test_an_attempt_at_once_is_guarded_in_the_blocking_shell() -> None:
    world = World(SyncSide())
    world.fail_over()
    guarded: list[Any] = []
    lane = world.keep_lane(lambda: guarded.extend(world.pairing.keeper._guards.values()))

    assert isinstance(at_once(world), Done)

    assert [guard.sender for guard in guarded] == [lane]
    assert world.pairing.keeper._guards == {}


# --- the shells' own


def test_an_attempt_of_the_blocking_shell_is_guarded() -> None:
    world = World(SyncSide())
    guarded: list[Any] = []
    world.primary = [lambda: guarded.extend(world.pairing.keeper._guards.values())]

    world.deliver()

    assert [guard.sender for guard in guarded] == [world.sender]
    assert world.pairing.keeper._guards == {}


def test_opening_has_an_end_in_the_asyncio_shell(
    asyncio_side: AsyncioSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.aio.bounds.GRACE_SECONDS", 0.0)
    world = World(asyncio_side)
    world.pairing.send_seconds = 0.05
    ended = threading.Event()

    async def never(timeout: float) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    opening: Errand[Any, str] = Errand(count=0, on_primary=never, when_diverted=str)

    assert asyncio_side.deliver(world.pairing, world.sender, opening, None) == ""
    assert ended.is_set()
    error = world.pairing.causes(PATH).primary_error
    assert isinstance(error, OperationTimeoutError)
    assert str(error) == "opening a link to 'orders' took longer than 0.05 seconds"
