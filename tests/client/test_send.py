"""One call, step by step: where its messages go, how long it waits, and which error its caller
gets. Pure: a script answers the steps, and nothing waits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus.client.pool import BacklogConnection, PoolExhausted
from pairbus.client.route.envelope import PATH as ENVELOPE_PATH
from pairbus.client.route.plans import PeekBacklog, Ping
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import DivertedBatch
from pairbus.client.sdk.pairing_errors import BacklogExhausted, EnvelopeTooLarge
from pairbus.client.send import SendCall, SenderBusy, SendRequest, is_stale, leaves_usable
from pairbus.client.state import ClientState
from pairbus.client.steps import (
    AcquireLock,
    Borrow,
    CallPrimary,
    OpenLink,
    ResetLink,
    SendBatch,
    Step,
    Wait,
    run,
)
from pairbus.events import (
    BacklogWithdrawn,
    Diverted,
    Event,
    FailedOver,
    PrimaryFailed,
    Recovered,
    SendFailed,
    Throttled,
)
from tests.client.fakes import (
    Clock,
    as_if_open,
    busy,
    outage,
    pairing_of,
    plain_client,
    refusal,
    sender_with,
)

PATH = "orders"
LATER = datetime(2030, 1, 1, tzinfo=UTC)


class Interrupted(BaseException):
    """Like a KeyboardInterrupt, or the cancellation of a task."""


class Lock:
    holder: object = None

    @property
    def is_held(self) -> bool:
        return self.holder is not None

    def release(self, holder: object) -> None:
        if self.holder is holder:
            self.holder = None


class Sender(ServiceBusSender):
    """A paired sender, as far as a call needs it."""

    epoch = 0
    has_called = False
    is_closed = False
    needs_new_link = False

    def bind(self, state: ClientState[Any]) -> None:
        self.client_state = state
        self.lock = Lock()

    def require_new_link(self) -> None:
        self.needs_new_link = True


class World:
    """A pairing. The test answers steps with a value, an error, or a function that is called."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.pairing, self.events = pairing_of(clock, **settings)
        self.pairing.pool = self
        client = plain_client()
        self.sender = private.adopt(client.get_queue_sender(PATH), Sender)
        self.sender.bind(ClientState(client))
        self.limit = 100_000
        self.kept: list[str] = []
        """Queues to which an open connection is kept."""
        self.answers: dict[type, list[Any]] = {}
        self.steps: list[Step] = []
        self.given_back: list[tuple[str, bool]] = []
        self.lent: list[BacklogConnection[Any]] = []

    # --- the shell

    def give_back(self, connection: BacklogConnection[Any], *, is_usable: bool) -> None:
        self.lent.remove(connection)
        self.given_back.append((connection.queue, is_usable))
        if is_usable:
            self.kept.append(connection.queue)

    def send(
        self,
        count: int = 1,
        *,
        size: int = 10,
        batch: ServiceBusMessageBatch | None = None,
        timeout: float | None = None,
        schedule: datetime | None = None,
    ) -> Any:
        messages = [ServiceBusMessage(b"x" * size) for _ in range(count)] or None
        request = SendRequest(
            messages=batch or messages,
            count=count,
            on_primary=lambda seconds: None,
            schedule=schedule,
            returns_numbers=schedule is not None,
        )
        call = SendCall(self.pairing, self.sender, request, timeout)
        try:
            return run(call.steps(), lambda step: self.perform(call, step))
        finally:
            assert not self.sender.lock.is_held, "the lock is released"
            assert not self.lent, "the connection is given back"

    def open(self) -> Any:
        return self.send(0)

    def perform(self, call: SendCall, step: Step) -> Any:
        self.steps.append(step)
        script = self.answers.get(type(step), [])
        answer = script.pop(0) if script else None
        if callable(answer):
            answer = answer()
        if isinstance(answer, BaseException):
            raise answer
        match step:
            case AcquireLock():
                assert not self.sender.lock.is_held
                self.sender.lock.holder = call
                return bool(answer)
            case ResetLink(epoch):
                self.sender.epoch = epoch
            case CallPrimary():
                assert self.sender.lock.is_held
                return "primary" if answer is None else answer
            case Borrow(queue, _, is_fresh):
                is_kept = queue in self.kept and not is_fresh
                self.kept = [each for each in self.kept if each != queue]
                call.connection = self._connection(queue, is_kept=is_kept)
                return call.connection
            case OpenLink(connection):
                as_if_open(connection.sender)
            case Wait(seconds):
                assert not self.sender.lock.is_held
                assert not self.lent
                self.clock.advance(seconds)
                return bool(answer)
        return None

    def _connection(self, queue: str, *, is_kept: bool) -> BacklogConnection[Any]:
        sender = sender_with((self.limit, self.limit), queue)
        if is_kept:
            as_if_open(sender)
        connection = BacklogConnection(queue, sender, is_fresh=not is_kept)
        self.lent.append(connection)
        return connection

    # --- what a test asks for

    def script(self, **answers: Any) -> None:
        """By name of the step, in the order in which they occur."""
        kinds = {kind.__name__: kind for kind in Step.__args__}
        self.answers = {kinds[name]: list(script) for name, script in answers.items()}

    def fail_over(self) -> str:
        self.pairing.failed(PATH, self.pairing.plan(PATH), outage())  # type: ignore[arg-type]
        self.pairing.plan(PATH)
        self.events.clear()
        return self.queue

    @property
    def queue(self) -> str:
        """The backlog queue in use."""
        return str(self.pairing.status().entity(PATH).backlog_queue)

    @property
    def state(self) -> str:
        return self.pairing.status().entity(PATH).state

    def kinds(self) -> list[type[Step]]:
        return [type(step) for step in self.steps]

    def event_kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]

    def of(self, kind: type[Any]) -> list[Any]:
        return [step for step in self.steps if isinstance(step, kind)]


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock)


@pytest.fixture
def patient(clock: Clock) -> World:
    """With a failover interval of ten seconds."""
    return World(clock, failover_interval=timedelta(seconds=10))


# --- a healthy primary


@pytest.mark.req("A-10")
def test_a_healthy_send_acquires_the_lock_and_calls_the_sdk_once(world: World) -> None:
    assert world.send(3) == "primary"

    assert world.steps == [AcquireLock(60.0), CallPrimary(60.0)]
    assert world.events == []
    assert world.pairing.status().entity(PATH).sent == 3
    assert world.sender.has_called


def test_the_callers_timeout_is_that_of_the_lock_and_of_the_attempt(world: World) -> None:
    def take_two_seconds() -> bool:
        world.clock.advance(2)
        return True

    world.script(AcquireLock=[take_two_seconds])

    world.send(timeout=5.0)

    assert world.steps == [AcquireLock(5.0), CallPrimary(3.0)]


@pytest.mark.req("F-08")
def test_the_link_is_reset_once_after_each_failback(world: World) -> None:
    world.send()
    world.fail_over()
    world.pairing.mark_path_healthy(PATH)
    world.steps.clear()

    world.send()
    world.send()

    assert world.kinds() == [AcquireLock, ResetLink, CallPrimary, AcquireLock, CallPrimary]
    assert world.of(ResetLink) == [ResetLink(1)]


@pytest.mark.req("F-02")
@pytest.mark.parametrize(
    "error",
    [
        ServiceBusAuthorizationError(message="no Send claim"),
        MessageSizeExceededError(message="too large"),
        ValueError("a mistake of the caller"),
        TypeError("no message"),
    ],
)
def test_an_error_that_is_not_the_namespaces_fault_is_the_callers(
    world: World, error: Exception
) -> None:
    world.script(CallPrimary=[error])

    with pytest.raises(type(error)) as caught:
        world.send()

    assert caught.value is error
    assert world.state == "healthy"
    assert world.kinds() == [AcquireLock, CallPrimary]


# --- failing over


@pytest.mark.req("A-05", "F-01", "F-05")
@pytest.mark.parametrize(
    ("step", "answer"),
    [
        pytest.param("CallPrimary", outage(), id="the connection is lost"),
        pytest.param("CallPrimary", OperationTimeoutError(message="too slow"), id="no answer"),
        pytest.param(
            "CallPrimary", MessagingEntityDisabledError(message="disabled"), id="disabled"
        ),
        pytest.param("CallPrimary", ServiceBusError("internal"), id="an error of the service"),
        pytest.param("AcquireLock", SenderBusy(PATH, 60.0, calls=0), id="behind a stuck call"),
        pytest.param("AcquireLock", None, id="failed over while it waited for the lock"),
    ],
)
def test_with_an_interval_of_zero_the_call_that_fails_is_diverted_itself(
    world: World, step: str, answer: Exception | None
) -> None:
    world.script(**{step: [answer or (lambda: bool(world.fail_over()))]})

    assert world.send(2) is None

    on_primary = [AcquireLock] if step == "AcquireLock" else [AcquireLock, CallPrimary]
    assert world.kinds() == [*on_primary, Borrow, OpenLink, SendBatch]
    assert world.event_kinds() == ([FailedOver, Diverted] if answer else [Diverted])
    assert world.given_back == [(world.queue, True)]


@pytest.mark.req("A-05")
@pytest.mark.req("A-10")
def test_within_the_interval_the_caller_gets_the_sdks_own_error(patient: World) -> None:
    patient.script(CallPrimary=[error := outage()])

    with pytest.raises(ServiceBusConnectionError) as caught:
        patient.send()

    assert caught.value is error
    assert patient.state == "suspect"
    assert patient.event_kinds() == [PrimaryFailed]


@pytest.mark.req("F-03")
def test_when_the_interval_is_over_a_failing_call_is_diverted(patient: World) -> None:
    def fail_late() -> Exception:
        patient.clock.advance(10)
        return outage()

    patient.script(CallPrimary=[outage(), fail_late])
    with pytest.raises(ServiceBusConnectionError):
        patient.send()

    patient.send()

    assert patient.state == "failed over"
    assert patient.of(SendBatch)


@pytest.mark.req("F-03")
def test_while_failed_over_the_primary_is_not_tried(world: World) -> None:
    world.fail_over()

    for _ in range(3):
        world.send()

    assert world.kinds() == [Borrow, OpenLink, SendBatch, Borrow, SendBatch, Borrow, SendBatch]


@pytest.mark.req("F-05")
def test_a_failure_from_before_the_failback_is_tried_again_on_the_primary(world: World) -> None:
    def fail_late() -> Exception:
        world.fail_over()
        world.pairing.mark_path_healthy(PATH)
        return outage()

    world.script(CallPrimary=[fail_late])

    assert world.send() == "primary"
    assert len(world.of(CallPrimary)) == 2


def test_a_diverted_call_that_comes_back_to_the_primary_has_its_time_again(world: World) -> None:
    def fail_late() -> Exception:
        world.clock.advance(5)
        return outage()

    def come_back() -> Exception:
        world.pairing.mark_path_healthy(PATH)
        return outage()

    world.script(CallPrimary=[fail_late], SendBatch=[come_back])

    assert world.send(timeout=5.0) == "primary"
    assert world.of(CallPrimary) == [CallPrimary(5.0), CallPrimary(5.0)]


# --- a lock that others hold


@pytest.mark.parametrize(("calls", "state"), [(0, "suspect"), (3, "healthy")])
def test_a_lock_that_never_came_counts_only_if_one_call_was_stuck(
    patient: World, calls: int, state: str
) -> None:
    patient.script(AcquireLock=[SenderBusy(PATH, 60.0, calls=calls)])

    with pytest.raises(SenderBusy):
        patient.send()

    assert patient.state == state


@pytest.mark.parametrize(
    ("calls", "seconds", "is_stuck"),
    [
        pytest.param(0, 60.0, True, id="one call had it for a minute"),
        pytest.param(0, 5.0, True, id="one call had it for longer than opening a link takes"),
        pytest.param(0, 4.9, False, id="one call had it, and may have opened its link"),
        pytest.param(1, 60.0, False, id="several calls had it"),
    ],
)
def test_one_call_that_held_the_lock_all_the_time_is_stuck(
    calls: int, seconds: float, is_stuck: bool
) -> None:
    error = SenderBusy("orders", seconds, calls=calls)

    assert error.is_stuck is is_stuck
    assert isinstance(error, OperationTimeoutError)
    assert str(error).startswith(f"timed out after {seconds:g} s waiting for another thread or ")
    assert "this sender of 'orders'; give each" in str(error)


def test_observers_are_notified_when_the_lock_is_free(patient: World) -> None:
    """An observer may send on the same sender: under the lock, it would wait for itself."""
    held: list[tuple[type[Event], bool]] = []
    patient.pairing.observe(lambda event: held.append((type(event), patient.sender.lock.is_held)))
    patient.script(CallPrimary=[outage()])
    with pytest.raises(ServiceBusConnectionError):
        patient.send()

    def let_the_interval_end() -> bool:
        patient.clock.advance(10)
        return True

    patient.script(AcquireLock=[let_the_interval_end])
    patient.send()

    assert held == [(PrimaryFailed, False), (FailedOver, False), (Diverted, False)]


def test_a_success_after_a_failure_is_notified_when_the_lock_is_free(patient: World) -> None:
    patient.script(CallPrimary=[outage()])
    with pytest.raises(ServiceBusConnectionError):
        patient.send()
    held: list[bool] = []
    patient.pairing.observe(lambda event: held.append(patient.sender.lock.is_held))

    patient.send()

    assert patient.event_kinds() == [PrimaryFailed, Recovered]
    assert held == [False]


# --- a busy service


@pytest.mark.req("R-03")
@pytest.mark.req("F-02")
def test_a_busy_primary_is_waited_for_and_nothing_is_diverted(world: World) -> None:
    world.script(CallPrimary=[busy(), busy()])

    assert world.send() == "primary"

    assert world.of(Wait) == [Wait(10.0), Wait(10.0)]
    assert world.event_kinds() == [Throttled, Throttled]
    assert world.state == "healthy"


@pytest.mark.req("R-03")
@pytest.mark.parametrize(
    ("retry_total", "timeout", "waits"),
    [
        pytest.param(0, None, 1, id="at least once"),
        pytest.param(1, None, 1, id="as often as the SDK would retry"),
        pytest.param(3, None, 3, id="as often as the SDK would retry, three times"),
        pytest.param(3, 10.0, 0, id="not without the time to wait"),
        pytest.param(3, 15.0, 1, id="as long as the call's own time allows"),
    ],
)
def test_a_busy_primary_is_waited_for(
    clock: Clock, retry_total: int, timeout: float | None, waits: int
) -> None:
    world = World(clock, retry_total=retry_total)
    world.script(CallPrimary=[busy() for _ in range(waits + 1)])

    with pytest.raises(ServiceBusServerBusyError):
        world.send(timeout=timeout)

    assert world.of(Wait) == [Wait(10.0)] * waits
    assert world.event_kinds() == [Throttled] * waits


@pytest.mark.req("C-02")
def test_a_client_that_closes_does_not_leave_a_throttled_call_waiting(world: World) -> None:
    world.script(CallPrimary=[error := busy()], Wait=[True])

    with pytest.raises(ServiceBusServerBusyError) as caught:
        world.send()

    assert caught.value is error


@pytest.mark.req("F-06")
def test_a_busy_backlog_queue_is_left_for_another_at_once(world: World) -> None:
    busy_queue = world.fail_over()
    world.script(SendBatch=[busy()])

    world.send()

    assert world.of(Wait) == []
    assert [step.queue for step in world.of(Borrow)] == [busy_queue, world.queue]
    assert [(type(each), each.backlog_queue) for each in world.events] == [  # type: ignore[attr-defined]
        (Throttled, busy_queue),
        (BacklogWithdrawn, busy_queue),
        (Diverted, world.queue),
    ]
    assert busy_queue not in world.pairing.status().backlog_queues


@pytest.mark.req("R-03", "F-06")
def test_if_all_backlog_queues_are_busy_the_last_one_is_waited_for(clock: Clock) -> None:
    world = World(clock, queues=2)
    world.fail_over()
    world.script(SendBatch=[busy(), busy()])

    world.send()

    assert world.of(Wait) == [Wait(10.0)]
    queues = [step.queue for step in world.of(Borrow)]
    assert len(set(queues)) == 2
    assert queues[2] == queues[1]
    assert world.pairing.status().entity(PATH).throttled == 2


@pytest.mark.req("R-03")
def test_a_busy_backlog_queue_does_not_get_the_message_again_before_its_wait(clock: Clock) -> None:
    """It is back in the rotation because the other one failed."""
    world = World(clock, queues=2)
    world.fail_over()
    world.script(SendBatch=[busy(), outage()])

    world.send()

    assert world.of(Wait) == [Wait(10.0)]
    queues = [step.queue for step in world.of(Borrow)]
    assert queues == [queues[0], queues[1], queues[0]]


@pytest.mark.req("F-07", "R-03")
@pytest.mark.parametrize("timeout", [5.0, None])
def test_if_all_queues_stay_busy_the_caller_gets_both_causes(
    clock: Clock, timeout: float | None
) -> None:
    world = World(clock, queues=1, retry_total=1)
    world.script(CallPrimary=[outage()], SendBatch=[busy(), error := busy()])
    if timeout is not None:
        error = world.answers[SendBatch][0]

    with pytest.raises(BacklogExhausted) as caught:
        world.send(timeout=timeout)

    assert caught.value.backlog_error is error
    assert isinstance(world.events[-1], SendFailed)
    assert world.pairing.status().entity(PATH).refused == 1


@pytest.mark.req("F-06")
def test_a_queue_that_does_not_answer_leaves_the_others_their_part_of_the_time(
    clock: Clock,
) -> None:
    """Each attempt here uses up all the time that it gets."""
    world = World(clock, queues=4)
    world.fail_over()
    world.kept = list(world.pairing.backlog_queues)

    def be_silent() -> Exception:
        clock.advance(world.steps[-1].seconds)  # type: ignore[union-attr]
        return OperationTimeoutError(message="too slow")

    world.script(SendBatch=[be_silent] * 3)

    world.send(timeout=9.0)

    seconds = [step.seconds for step in world.of(SendBatch)]
    assert seconds == pytest.approx([3.0, 2.0, 2.0, 2.0])
    assert len({step.queue for step in world.of(Borrow)}) == 4
    assert clock() - 1000.0 == pytest.approx(7.0)


@pytest.mark.req("F-06")
def test_a_queue_whose_connection_does_not_open_leaves_the_others_time(clock: Clock) -> None:
    world = World(clock, queues=2)
    world.fail_over()

    def be_silent() -> Exception:
        clock.advance(world.steps[-1].seconds)  # type: ignore[union-attr]
        return ServiceBusConnectionError(message="did not open")

    world.script(OpenLink=[be_silent])

    world.send(timeout=3.0)

    assert [step.seconds for step in world.of(OpenLink)] == [2.0, 5.0]
    assert world.event_kinds() == [BacklogWithdrawn, Diverted]


# --- connections to the backlog


def test_a_stale_connection_is_replaced_and_the_queue_stays(world: World) -> None:
    queue = world.fail_over()
    world.kept = [queue]
    world.script(SendBatch=[outage()])

    world.send()

    assert [step.is_fresh for step in world.of(Borrow)] == [False, True]
    assert world.given_back == [(queue, False), (queue, True)]
    assert world.event_kinds() == [Diverted]


@pytest.mark.req("F-06")
@pytest.mark.parametrize(
    ("step", "error", "is_kept"),
    [
        pytest.param("Borrow", outage(), False, id="it cannot be connected to"),
        pytest.param("OpenLink", outage(), False, id="its link does not open"),
        pytest.param("SendBatch", outage(), False, id="a new connection is lost"),
        pytest.param("SendBatch", ServiceBusAuthorizationError(message="no"), False, id="no claim"),
        pytest.param(
            "SendBatch",
            refusal(ServiceBusError, "amqp:not-allowed"),
            False,
            id="it requires sessions",
        ),
        # A new connection would take as long.
        pytest.param(
            "SendBatch", OperationTimeoutError(message="too slow"), True, id="it does not answer"
        ),
    ],
)
def test_a_queue_is_left_for_another_if(
    world: World, step: str, error: Exception, is_kept: bool
) -> None:
    failing = world.fail_over()
    world.kept = [failing] if is_kept else []
    world.script(**{step: [error]})

    world.send()

    assert [each.queue for each in world.of(Borrow)] == [failing, world.queue]
    assert world.queue != failing
    assert world.event_kinds() == [BacklogWithdrawn, Diverted]


@pytest.mark.req("F-07")
def test_when_no_queue_is_left_the_caller_gets_both_causes(clock: Clock) -> None:
    world = World(clock, queues=2)
    on_primary, on_queue = OSError("the primary is gone"), OSError("the queue is gone")
    world.script(CallPrimary=[on_primary], SendBatch=[outage(), on_queue])

    with pytest.raises(BacklogExhausted) as caught:
        world.send()

    error = caught.value
    assert (error.entity, error.diverted_count, error.queue_count) == (PATH, 0, 2)
    assert repr(error.primary_error) == repr(on_primary)
    assert repr(error.backlog_error) == repr(on_queue)
    assert error.__cause__ is error.backlog_error
    failed = world.events[-1]
    assert isinstance(failed, SendFailed)
    assert (failed.primary_error, failed.backlog_error) == (
        error.primary_error,
        error.backlog_error,
    )
    assert world.pairing.status().entity(PATH).refused == 1


@pytest.mark.req("F-07")
def test_when_the_time_is_over_no_further_queue_is_tried(clock: Clock) -> None:
    world = World(clock, queues=5)
    world.fail_over()

    def be_slow() -> Exception:
        clock.advance(2)
        return OperationTimeoutError(message="too slow")

    world.script(SendBatch=[be_slow])

    with pytest.raises(BacklogExhausted) as caught:
        world.send(timeout=2.0)

    assert isinstance(caught.value.backlog_error, OperationTimeoutError)
    assert isinstance(world.events[-1], SendFailed)
    assert len(world.of(SendBatch)) == 1


def test_the_sdk_does_not_retry_on_a_queue_while_there_is_another(clock: Clock) -> None:
    world = World(clock, queues=2)
    world.fail_over()
    world.script(SendBatch=[outage()])

    world.send()

    retries = [private.retries_of(step.connection.sender) for step in world.of(SendBatch)]
    assert retries == [0, 3]


@pytest.mark.parametrize(("queues", "opening_seconds"), [(1, 5.0), (2, 2.0)])
def test_a_backlog_queue_has_a_moment_however_short_the_callers_timeout(
    clock: Clock, queues: int, opening_seconds: float
) -> None:
    world = World(clock, queues=queues)
    world.fail_over()

    world.send(timeout=0.001)

    borrow, opening, sending = world.steps
    assert isinstance(borrow, Borrow)
    assert isinstance(opening, OpenLink)
    assert isinstance(sending, SendBatch)
    assert borrow.seconds == opening.seconds == opening_seconds
    assert sending.seconds == 1.0


def test_a_message_at_fault_leaves_the_connection_to_the_next_one(world: World) -> None:
    queue = world.fail_over()
    world.script(SendBatch=[MessageSizeExceededError(message="too large")])

    with pytest.raises(MessageSizeExceededError):
        world.send()
    world.send()

    assert world.given_back == [(queue, True), (queue, True)]
    assert len(world.of(OpenLink)) == 1


def test_an_exhausted_pool_says_nothing_about_the_queue(world: World) -> None:
    queue = world.fail_over()
    world.script(Borrow=[PoolExhausted(queue, 1.0)])

    with pytest.raises(PoolExhausted):
        world.send()

    assert world.queue == queue
    assert world.events == []


@pytest.mark.req("E-05")
def test_a_message_that_the_backlog_finds_too_large_is_reported_with_the_reason(
    world: World,
) -> None:
    queue = world.fail_over()
    error = refusal(MessageSizeExceededError, "amqp:link:message-size-exceeded")
    world.script(SendBatch=[error])

    with pytest.raises(EnvelopeTooLarge, match="'orders', which is failed over") as caught:
        world.send()

    assert caught.value.backlog_queue == queue
    assert caught.value.__cause__ is error


@pytest.mark.req("E-05")
def test_a_message_that_does_not_fit_is_refused_before_anything_is_sent(world: World) -> None:
    world.limit = 1_000
    world.fail_over()

    with pytest.raises(EnvelopeTooLarge):
        world.send(3, size=2_000)

    assert world.of(SendBatch) == []


@pytest.mark.parametrize(
    ("error", "stale", "usable"),
    [
        pytest.param(outage(), True, False, id="a lost connection"),
        pytest.param(OperationTimeoutError(message="late"), False, False, id="a time-out"),
        pytest.param(busy(), False, True, id="a busy service"),
        pytest.param(MessageSizeExceededError(message="large"), False, True, id="a large message"),
        pytest.param(ServiceBusAuthorizationError(message="no"), False, False, id="no claim"),
        pytest.param(ValueError("a mistake"), False, False, id="a mistake"),
    ],
)
def test_a_kept_connection_is_judged_by_how_it_failed(
    error: Exception, stale: bool, usable: bool
) -> None:
    assert is_stale(error) is stale
    assert leaves_usable(error) is usable


# --- calls in parts


@pytest.fixture
def small(clock: Clock) -> World:
    """Ten messages of 300 bytes take more than one batch."""
    world = World(clock)
    world.limit = 3_000
    return world


def diverted_counts(world: World) -> list[int]:
    return [event.count for event in world.events if isinstance(event, Diverted)]


def test_a_call_too_large_for_one_batch_goes_in_parts_on_one_connection(small: World) -> None:
    small.fail_over()

    small.send(10, size=300)

    assert len(small.of(SendBatch)) > 1
    assert len(small.of(Borrow)) == 1
    assert sum(diverted_counts(small)) == 10


@pytest.mark.req("F-06")
@pytest.mark.req("X-02")
@pytest.mark.parametrize("is_back", [False, True])
def test_parts_that_are_safe_are_not_sent_again(small: World, is_back: bool) -> None:
    failing = small.fail_over()

    def break_down() -> Exception:
        if is_back:
            small.pairing.mark_path_healthy(PATH)
        return outage()

    small.script(SendBatch=[None, break_down])

    small.send(10, size=300)

    first, second, third, *_ = small.of(SendBatch)
    assert first.connection.queue == second.connection.queue == failing
    assert third.connection.queue != failing
    assert third.content is second.content, "the part that failed, and no other"
    assert sum(diverted_counts(small)) == 10
    assert small.of(CallPrimary) == [], "no part of it went to the primary"


def test_a_call_of_which_nothing_was_diverted_goes_to_a_primary_that_is_back(small: World) -> None:
    small.fail_over()

    def come_back() -> Exception:
        small.pairing.mark_path_healthy(PATH)
        return outage()

    small.script(SendBatch=[come_back])

    assert small.send(10, size=300) == "primary"


@pytest.mark.req("E-02")
def test_a_batch_that_went_to_the_primary_in_between_has_its_envelopes_again(world: World) -> None:
    """The primary gets the messages as the application added them."""
    world.fail_over()
    batch = DivertedBatch.of(ServiceBusMessageBatch(), PATH)
    batch.add_message(ServiceBusMessage(b"x"))

    def come_back() -> Exception:
        world.pairing.mark_path_healthy(PATH)
        return outage()

    def fail_again() -> Exception:
        batch.make_plain()
        return outage()

    world.script(SendBatch=[come_back], CallPrimary=[fail_again])
    world.send(batch=batch)

    _, again = world.of(SendBatch)
    assert again.content.application_properties[ENVELOPE_PATH][private.VALUE] == PATH


@pytest.mark.req("F-07")
@pytest.mark.parametrize(
    "fail",
    [
        lambda: MessageSizeExceededError(message="too large"),
        lambda: PoolExhausted("q", 1.0),
        lambda: ValueError("the paired client has been closed"),
    ],
)
def test_whatever_ends_a_call_in_its_middle_the_caller_learns_what_is_safe(
    small: World, fail: Callable[[], Exception]
) -> None:
    small.fail_over()
    small.script(SendBatch=[None, error := fail()])

    with pytest.raises(BacklogExhausted, match="of this call are safe") as caught:
        small.send(10, size=300)

    [count] = diverted_counts(small)
    assert caught.value.diverted_count == count
    assert caught.value.backlog_error is caught.value.__cause__ is error
    assert isinstance(caught.value.primary_error, ServiceBusError)
    assert isinstance(small.events[-1], SendFailed)


# --- schedules


def test_a_diverted_schedule_has_numbers_that_are_unknown(world: World) -> None:
    queue = world.fail_over()

    numbers = world.send(2, schedule=LATER)

    assert numbers == [-1, -1]
    assert {number.backlog_queue for number in numbers} == {queue}


def test_each_number_of_a_diverted_schedule_names_the_queue_that_has_the_message(
    small: World,
) -> None:
    first = small.fail_over()
    small.script(SendBatch=[None, outage()])

    numbers = small.send(10, size=300, schedule=LATER)

    part, *_ = diverted_counts(small)
    assert 0 < part < 10
    queues = [number.backlog_queue for number in numbers]
    assert queues == [first] * part + [small.queue] * (10 - part)


# --- opening a link


def test_opening_a_link_counts_its_failure_but_no_success(world: World) -> None:
    world.open()
    assert world.pairing.status().entity(PATH).sent == 0

    world.script(CallPrimary=[outage()])
    assert world.open() is None

    assert world.pairing.status().failed_over == (PATH,)
    assert world.of(Borrow) == []


@pytest.mark.req("A-04")
def test_nothing_is_opened_while_failed_over_even_if_no_queue_is_left(clock: Clock) -> None:
    world = World(clock, queues=1)
    world.fail_over()
    world.script(SendBatch=[outage()])
    with pytest.raises(BacklogExhausted, match="only one backlog queue"):
        world.send()
    world.steps.clear()
    world.events.clear()

    assert world.open() is None

    assert world.steps == []
    assert world.events == []


# --- interrupts


@pytest.mark.parametrize(
    ("step", "needs_new_link"),
    [
        pytest.param("CallPrimary", True, id="an answer may still come on the link"),
        pytest.param("AcquireLock", False, id="the link of another call is left alone"),
        pytest.param("SendBatch", False, id="the connection is given back to be closed"),
    ],
)
def test_an_interrupted_call(world: World, step: str, needs_new_link: bool) -> None:
    given_back = [(world.fail_over(), False)] if step == "SendBatch" else []
    world.script(**{step: [Interrupted()]})

    with pytest.raises(Interrupted):
        world.send()

    assert world.sender.needs_new_link is needs_new_link
    assert world.given_back == given_back


def test_an_observer_that_exits_leaves_no_lock_held(patient: World) -> None:
    def exit_now(event: Event) -> None:
        raise Interrupted

    patient.script(CallPrimary=[outage()])
    with pytest.raises(ServiceBusConnectionError):
        patient.send()
    patient.pairing.observe(exit_now)

    def let_the_interval_end() -> bool:
        patient.clock.advance(10)
        return True

    patient.script(AcquireLock=[let_the_interval_end])
    with pytest.raises(Interrupted):
        patient.send()  # and `World.send` looks at the lock


def test_an_interrupt_as_a_call_begins_to_divert_leaves_nothing_to_come_home(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ordered failback, the entity would wait for it for ever."""
    world = World(clock, fail_back="ordered")
    world.fail_over()
    begin = world.pairing.backlog_begins

    def begin_and_be_interrupted(*args: Any) -> None:
        begin(*args)
        raise Interrupted

    monkeypatch.setattr(world.pairing, "backlog_begins", begin_and_be_interrupted)
    with pytest.raises(Interrupted):
        world.send()

    world.pairing.ping_ended(Ping(PATH, 0), None)

    assert world.state == "healthy"


def test_a_call_that_an_interrupt_keeps_from_reporting_its_end_is_not_waited_for(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(clock, fail_back="ordered")
    world.fail_over()

    def be_interrupted(*args: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(world.pairing, "backlog_call_ended", be_interrupted)
        with pytest.raises(Interrupted):
            world.send()
    world.steps.clear()
    gc.collect()

    world.pairing.ping_ended(Ping(PATH, 0), None)
    with world.pairing.decide() as router:
        tasks = router.take_due_tasks(now=clock())
    [peek] = [task for task in tasks if isinstance(task, PeekBacklog)]
    world.pairing.peeked(peek, [])

    assert world.state == "healthy"
