"""One call of a paired sender, as a generator of steps: where its messages go next, how long it
waits, and which error its caller gets.

Every send of both shells is decided here. Nothing here waits: a shell carries the steps out.

What happens to a message if the process dies during a call: before a namespace has acknowledged it,
the caller still owns it and got no answer; afterwards it is stored in that namespace. If the
outcome on the primary is unknown, the message goes to the backlog under the id that it had, so that
duplicate detection can drop the second copy. With an outbox, a message that neither namespace
accepted is on the disk before the call returns (`outbox.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
)

from pairbus.client.backlog_batch import BacklogBatch, batches_of
from pairbus.client.billing import extra_units
from pairbus.client.checks import check_live
from pairbus.client.outbox import ClientOutbox
from pairbus.client.pairing import PairingCore
from pairbus.client.pool import BacklogConnection, PoolExhausted
from pairbus.client.route.plans import Hold, Nowhere, Plan, ToBacklog, ToPrimary
from pairbus.client.sdk import encoded, private
from pairbus.client.sdk.batches import messages_of, unknown_numbers
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.client.sdk.messages import id_of, scheduled
from pairbus.client.sdk.pairing_errors import BacklogExhausted, EnvelopeTooLarge
from pairbus.client.steps import (
    AcquireLock,
    Borrow,
    CallPrimary,
    OpenLink,
    ResetLink,
    SendBatch,
    Step,
    Steps,
    StoreInOutbox,
    Wait,
)
from pairbus.client.timing import (
    BACKLOG_SECONDS_MIN,
    OPEN_ONE_SECONDS_MIN,
    OPEN_SECONDS_MIN,
    TimeBudget,
)
from pairbus.errors import OutboxError

_CLOSED = "the paired client has been closed; make a new one"


@dataclass(slots=True, kw_only=True)
class SendRequest:
    """What the application asked for."""

    on_primary: Callable[[float], Any]
    """The SDK's own call, given its timeout; an awaitable in the asyncio shell."""
    messages: Any = None
    """The messages, with ids; None if the call only opens the link."""
    count: int = 0
    new_batch: Callable[[], Any] | None = None
    """Makes an empty batch for a list that goes to the primary; None for anything else."""
    batch: ServiceBusMessageBatch | None = None
    """The list as a batch, from the first attempt on the primary on."""
    schedule: datetime | None = None
    returns_numbers: bool = False
    """It is `schedule_messages`, which returns sequence numbers."""
    is_from_outbox: bool = False
    """The background sends what waits in the outbox: there is no caller."""


class SendCall:
    def __init__(
        self, pairing: PairingCore, sender: Any, request: SendRequest, timeout: float | None
    ) -> None:
        """`sender` is the paired sender of either shell."""
        pairing.check_process()
        sender.has_called = True
        self.request = request
        # The shell sets this before it answers the step, so that an interrupt between the step and
        # its answer does not leak the connection. If one hits while it is borrowed or given back,
        # the pool closes it when this call is gone.
        self.connection: Any = None

        self._pairing = pairing
        self._sender = sender
        self._path: str = sender.entity_name
        self._count = request.count
        may_store = request.count > 0 and not request.is_from_outbox
        self._outbox = pairing.outbox if may_store else None
        self._time = TimeBudget(timeout, pairing.timing.send_seconds)
        self._batches: list[BacklogBatch] | None = None
        self._diverted_count = 0
        self._throttle_waits = 0
        self._busy: dict[str, tuple[float, Exception]] = {}
        """By backlog queue that was busy: until when it does not get this call's messages."""
        self._result: Any = None
        self._is_diverting = False
        """Only with ordered failback: for the router, the call may be under way to the backlog."""

    def steps(self) -> Steps[Any]:
        try:
            # Each round ends the call, waits for a busy service, or follows a new plan: the entity
            # failed over or failed back, or a backlog queue left the rotation.
            while True:
                try:
                    if self._outbox is not None and self._outbox.has(self._path):
                        # Behind the earlier messages of the entity.
                        is_done = yield from self._in_outbox(self._outbox)
                    elif isinstance(plan := self._plan(), ToPrimary):
                        is_done = yield from self._on_primary(plan)
                    elif isinstance(plan, ToBacklog) and self._count:
                        is_done = yield from self._in_backlog(plan)
                    elif isinstance(plan, Hold) and self._count:
                        is_done = yield from self._wait(plan.seconds, ValueError(_CLOSED))
                    else:
                        return None  # there is nothing to send: the call only opens the link
                except (BacklogExhausted, PoolExhausted):
                    if self._outbox is None:
                        raise
                    is_done = yield from self._in_outbox(self._outbox)
                if is_done:
                    return self._result
        except Exception as error:
            reported = self._for_caller(error)
            if isinstance(reported, BacklogExhausted) and not self.request.is_from_outbox:
                causes = Nowhere(reported.primary_error, reported.backlog_error)
                self._pairing.send_failed(self._path, causes)
            if reported is error:
                raise
            raise reported from error
        finally:
            self._release_lock()
            self._give_back(is_usable=False)
            if self._is_diverting:
                self._pairing.backlog_call_ended(self._path, self)

    def _plan(self) -> Plan:
        # Once a part of the call is in the backlog, the rest follows it: on the primary, that part
        # would be sent twice.
        is_begun = bool(self._diverted_count)
        plan = self._pairing.plan(self._path, is_begun=is_begun)
        if isinstance(plan, Hold) and not self._can_hold(plan.seconds):
            plan = self._pairing.plan(self._path, is_begun=is_begun, can_hold=False)
        if isinstance(plan, Nowhere) and self._count:
            raise self._exhausted(plan)
        return plan

    # --- the primary ------------------------------------------------------------------------------

    def _on_primary(self, plan: Plan) -> Generator[Step, Any, bool]:
        # Nothing is in the backlog yet. The batches for it are made again if the call returns
        # there: a `DivertedBatch` loses its envelopes on the primary.
        self._batches = None
        failure: Exception | None = None
        has_waited = False
        try:
            has_waited = yield AcquireLock(self._time.on_primary(now=self._pairing.clock()), self)
            if has_waited:
                # While this call waited, another call may have failed the entity over, or a ping
                # may have failed it back. Observers are notified when the lock is free: one of them
                # may send.
                plan = self._pairing.plan(self._path, notify=False)
                check_live(self._sender)
            if isinstance(plan, ToPrimary):
                try:
                    if plan.epoch != self._sender.epoch:
                        yield ResetLink(plan.epoch)
                    if self.request.new_batch is not None and self.request.batch is None:
                        yield from self._fill_batch(self.request.new_batch)
                    seconds = self._time.on_primary(now=self._pairing.clock())
                    call, is_opening = self.request.on_primary, not self._count
                    self._result = yield CallPrimary(seconds, call, is_opening)
                except GeneratorExit:
                    # An interrupt: the answer to this call may still arrive on this link.
                    self._sender.require_new_link()
                    raise
        except Exception as error:
            failure = error
        finally:
            self._release_lock()
        if has_waited:
            self._pairing.notify_observers()
        if not isinstance(plan, ToPrimary):
            return False
        if failure is not None:
            yield from self._wait(self._primary_failed(plan, failure), failure)
            return False
        if self._count:  # a link that opens does not prove that messages are accepted
            batch = self.request.batch
            extra = extra_units(self._sender, self.request.messages if batch is None else batch)
            self._pairing.sent(self._path, plan, count=self._count, extra=extra)
        return True

    def _fill_batch(self, new_batch: Callable[[], Any]) -> Generator[Step, Any, None]:
        """As the SDK does with a list, but it would convert each message twice, and in asyncio open
        a link without a time limit.
        """
        seconds = self._time.on_primary(now=self._pairing.clock())
        batch = yield CallPrimary(seconds, lambda _: new_batch(), is_opening=True)
        for message in self.request.messages:
            batch.add_message(message)
        self.request.batch = batch

    def _primary_failed(self, plan: ToPrimary, error: Exception) -> float:
        """The seconds to wait before the next attempt; raises the error if there is none."""
        kind = kind_of(error)
        if kind is Kind.THROTTLED:
            return self._throttled(plan, error)
        if isinstance(error, SenderBusy) and not error.is_stuck:
            raise error
        if kind is Kind.OUTAGE and self._pairing.failed(self._path, plan, error):
            self._time.forget_primary()
            return 0.0
        raise error

    # --- the backlog ------------------------------------------------------------------------------

    def _in_backlog(self, way: ToBacklog) -> Generator[Step, Any, bool]:
        if not self._pairing.is_ordered:
            return (yield from self._attempt_in_backlog(way))
        self._is_diverting = True
        try:
            if not self._pairing.backlog_begins(self._path, way, self):
                return False
            return (yield from self._attempt_in_backlog(way))
        finally:
            self._pairing.backlog_attempt_ended(self._path, self)

    def _attempt_in_backlog(self, way: ToBacklog) -> Generator[Step, Any, bool]:
        """Send what is left to one backlog queue; on a new connection if the kept one was stale."""
        if way.queue in self._busy:  # so no other queue is left
            until, error = self._busy.pop(way.queue)
            yield from self._wait(self._busy_seconds(until, error), error)
            return False
        for is_fresh in (False, True):
            try:
                connection = yield Borrow(way.queue, self._open_seconds(), is_fresh, self)
            except ServiceBusError as error:
                failure: Exception = error
                break
            was_kept, is_usable = not connection.is_fresh, False
            try:
                yield from self._send_on(connection, way)
                is_usable = True
                return True
            except Exception as error:
                failure = error
                is_usable = leaves_usable(error)
            finally:
                self._give_back(is_usable=is_usable)
            if not (was_kept and is_stale(failure)):
                break
        yield from self._wait(self._backlog_failed(way, failure), failure)
        return False

    def _send_on(
        self, connection: BacklogConnection[Any], way: ToBacklog
    ) -> Generator[Step, Any, None]:
        private.set_retries(connection.sender, self._pairing.backlog_retries())
        if not private.is_running(connection.sender):
            yield OpenLink(connection, self._open_seconds())
        if self._batches is None:
            # All batches are made before the first is sent: a message that fits nowhere is refused
            # before any message of the call has left the caller. The limits are known only after
            # the link is open.
            self._batches = batches_of(
                connection.sender,
                self.request.messages,
                path=self._path,
                queue=way.queue,
                schedule=self.request.schedule,
                diverted_by=self._pairing.diverted_by(),
            )
        while self._batches:
            batch, began = self._batches[0], self._pairing.clock()
            seconds = self._time.in_backlog(
                now=began, queues_left=self._pairing.queues_left, at_least=BACKLOG_SECONDS_MIN
            )
            yield SendBatch(connection, batch.content, seconds)
            del self._batches[0]
            self._note_numbers(batch.count, way.queue)
            self._diverted_count += batch.count
            took = self._pairing.clock() - began
            self._pairing.sent(self._path, way, count=batch.count, seconds=took, extra=batch.extra)

    def _open_seconds(self) -> float:
        queues_left = self._pairing.queues_left
        at_least = OPEN_SECONDS_MIN if queues_left <= 1 else OPEN_ONE_SECONDS_MIN
        return self._time.in_backlog(
            now=self._pairing.clock(), queues_left=queues_left, at_least=at_least
        )

    def _backlog_failed(self, way: ToBacklog, error: Exception) -> float:
        """The seconds to wait before the next attempt; raises the error if the message is at fault.
        For any other error the queue is at fault or busy, and another queue is tried.
        """
        if isinstance(error, PoolExhausted):
            raise error
        kind = kind_of(error)
        if kind is Kind.THROTTLED:
            self._pairing.throttled(self._path, way, error)
            until = self._pairing.clock() + self._pairing.timing.throttle_wait_seconds
            self._busy[way.queue] = (until, error)
            return 0.0
        # A backlog queue that requires sessions, for example, answers "not allowed".
        is_not_allowed = private.condition_of(error) == "amqp:not-allowed"
        if kind in (Kind.OUTAGE, Kind.SETUP) or is_not_allowed:
            self._pairing.failed(self._path, way, error)
            if self._time.in_backlog(now=self._pairing.clock()) <= 0:
                raise self._exhausted(self._pairing.causes(self._path))
            return 0.0
        if isinstance(error, MessageSizeExceededError) and private.condition_of(error):
            # The service refuses what `batches_of` found small enough.
            raise EnvelopeTooLarge(
                entity=self._path, backlog_queue=way.queue, error=error
            ) from error
        raise error

    # --- the outbox -------------------------------------------------------------------------------

    def _in_outbox(self, outbox: ClientOutbox) -> Generator[Step, Any, bool]:
        """Store what is left. A part of the call may be in the backlog."""
        outbox.check_accepts(self._path)
        rest = messages_of(self.request.messages)[self._diverted_count :]
        stored = [
            (id_of(each), encoded.encode(self._sender, scheduled(each, self.request.schedule)))
            for each in rest
        ]
        self._check_sizes(stored)
        yield StoreInOutbox(self._path, stored)
        outbox.stored(self._path, len(stored))
        self._pairing.wake()
        self._note_numbers(len(stored), None)
        return True

    def _check_sizes(self, stored: list[tuple[str, bytes]]) -> None:
        """What the primary would refuse is not stored, if the primary's limit is known."""
        limit, _ = private.link_limits(self._sender)
        size = max(len(amqp) for _, amqp in stored)
        if private.knows_limits(self._sender) and size > limit:
            raise MessageSizeExceededError(
                message=f"a message for {self._path!r} has {size} bytes, and the limit is {limit}"
            )

    def _note_numbers(self, count: int, queue: str | None) -> None:
        """What `schedule_messages` returns for the next messages of the call, which this backlog
        queue has, or with None the outbox.
        """
        if self.request.returns_numbers:
            stored = messages_of(self.request.messages)[self._diverted_count :][:count]
            self._result = [*(self._result or ()), *unknown_numbers(stored, queue)]

    # --- waiting and ending -----------------------------------------------------------------------

    def _throttled(self, way: ToPrimary, error: Exception) -> float:
        """Returns how long to wait for a busy primary. Raises its error if the wait is too long or
        there were too many.
        """
        seconds = self._pairing.timing.throttle_wait_seconds
        if not self._can_wait(seconds, is_backlog=False):
            raise error
        self._pairing.throttled(self._path, way, error)
        return seconds

    def _busy_seconds(self, until: float, error: Exception) -> float:
        """Returns how long to wait for a backlog queue that is busy until then."""
        seconds = max(0.0, until - self._pairing.clock())
        if seconds and not self._can_wait(seconds, is_backlog=True):
            raise self._exhausted(Nowhere(self._pairing.causes(self._path).primary_error, error))
        return seconds

    def _can_wait(self, seconds: float, *, is_backlog: bool) -> bool:
        """Whether the call may wait for a busy service once more."""
        self._throttle_waits += 1
        if self._throttle_waits > self._pairing.timing.throttle_waits_max:
            return False
        return self._time.can_wait(seconds, is_backlog=is_backlog, now=self._pairing.clock())

    def _can_hold(self, seconds: float) -> bool:
        """Whether the call has time to wait, so that it keeps its place in the order."""
        left = self._time.in_backlog(now=self._pairing.clock())
        return left > seconds + BACKLOG_SECONDS_MIN

    def _wait(self, seconds: float, error: Exception) -> Generator[Step, Any, bool]:
        """Holds neither the lock nor a connection during the wait. The call is not done then."""
        if seconds and (yield Wait(seconds)):
            raise error  # the client was closed
        return False

    def _release_lock(self) -> None:
        self._sender.lock.release(self)  # no effect if this call does not hold it

    def _give_back(self, *, is_usable: bool) -> None:
        # In this order: an interrupt in between leaves the connection to the pool. The other order
        # would give it back twice, and close it while another call uses it.
        connection, self.connection = self.connection, None
        if connection is not None:
            self._pairing.pool.give_back(connection, is_usable=is_usable)

    def _for_caller(self, error: Exception) -> Exception:
        """The error for the caller: if a part is in the backlog, one that says how much."""
        if isinstance(error, OutboxError):
            return self._exhausted(self._pairing.causes(self._path), outbox_error=error)
        if not self._diverted_count or isinstance(error, BacklogExhausted):
            return error
        return self._exhausted(Nowhere(self._pairing.causes(self._path).primary_error, error))

    def _exhausted(
        self, causes: Nowhere, *, outbox_error: OutboxError | None = None
    ) -> BacklogExhausted:
        error = BacklogExhausted(
            entity=self._path,
            primary_error=causes.primary_error,
            backlog_error=causes.backlog_error,
            diverted_count=self._diverted_count,
            queue_count=len(self._pairing.backlog_queues),
            outbox_error=outbox_error,
        )
        error.__cause__ = outbox_error or causes.backlog_error or causes.primary_error
        return error


def is_stale(error: Exception) -> bool:
    """Whether a kept connection may have failed only because of its age."""
    return kind_of(error) is Kind.OUTAGE and not isinstance(error, OperationTimeoutError)


def leaves_usable(error: Exception) -> bool:
    """Whether a connection that reported this error can be used again."""
    return kind_of(error) in (Kind.THROTTLED, Kind.MESSAGE)


class SenderBusy(OperationTimeoutError):
    """Other calls used the same sender for as long as this call had time."""

    def __init__(self, path: str, seconds: float, *, calls: int) -> None:
        """`calls`: the number of other calls that got the sender's lock while this one waited."""
        super().__init__(
            message=f"timed out after {seconds:g} s waiting for another thread or task to finish "
            f"sending on this sender of {path!r}; give each thread or task a sender of its own"
        )
        self.is_stuck = calls == 0 and seconds >= OPEN_SECONDS_MIN
        """One other call held the lock the whole time, longer than it takes to open a connection.
        So the primary does not answer.
        """
