"""One task of a round: brings messages of some backlog queues home, for a few seconds.

It receives messages, restores them, sends them in batches to their destinations, and settles them
only after the primary has acknowledged them. A batch is half a chunk at most. While one batch is in
flight, the one before it is being settled, and the next is received and restored. So if the task
dies, at most a chunk was sent that will be sent again, which duplicate detection absorbs. No lock
outlives the task. Receipts record the outcomes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from azure.core.exceptions import AzureError

from pairbus.client.route.envelope import EnvelopeError
from pairbus.fast.address import Address
from pairbus.fast.connection import attach_all
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import stop_all, wait_for_any
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.delivery import BatchDelivery, QueueBatch
from pairbus.syphon.policy import Destination, Destinations, unreadable
from pairbus.syphon.receipts import Drained, TaskReport
from pairbus.syphon.restore import restore
from pairbus.syphon.window import ANSWER_SECONDS_MAX, TaskWindow

# How many messages are received ahead, from all queues together. These messages are locked. If half
# a chunk for each queue is more, that number applies, up to the limit of a broker for one
# connection.
AHEAD_MAX = 2_500
LOCKED_MAX = 3_500
# How many more messages may be held. Brokers limit the number of locked messages for one
# connection.
HELD_MAX = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask:
    """The input of a task. It is sent to the machine that runs the task."""

    run: str
    round: int
    queues: tuple[str, ...]
    """Backlog queues of the secondary."""
    primary: Address
    secondary: Address
    seconds: float
    chunk: int
    """The maximum number of messages that are sent but not confirmed as settled. At most this many
    arrive twice if the task or a namespace dies.
    """
    open_seconds: float = ANSWER_SECONDS_MAX
    """How long each of the two namespaces may take to accept the connection."""
    held_max: int = HELD_MAX
    """A queue is left after this many messages in a row had to be held for destinations that are
    down."""
    at_most: int | None = None
    """How many messages to receive from each queue; None: as many as there is time for."""
    ttl_keeps_running: bool = False
    known: tuple[Destination, ...] = ()
    """The state of the destinations, from earlier tasks."""
    messages_folder: str | None = None
    """Where to write a line for each message, before it is settled; None: nowhere."""


def drain(task: DrainTask, *, clock: Callable[[], float] = time.time) -> Drained:
    return _Drain(task, clock).run()


class _Drain:
    def __init__(self, task: DrainTask, clock: Callable[[], float]) -> None:
        self._task = task
        has_lines = task.messages_folder is not None
        self._report = TaskReport(run=task.run, round=task.round, clock=clock, has_lines=has_lines)
        self._destinations = Destinations(task.known)
        # Neither connects yet. A namespace that cannot be reached is an error of the task's result.
        self._primary = task.primary.client(timeout_seconds=ANSWER_SECONDS_MAX)
        self._secondary = task.secondary.client(timeout_seconds=ANSWER_SECONDS_MAX)
        self._delivery = BatchDelivery(self._primary, self._destinations, self._report)
        self._queues = [
            BacklogQueue(
                self._secondary, name, self._report, credit=_credit(task), at_most=task.at_most
            )
            for name in task.queues
        ]
        self._active = list(self._queues)
        # One batch is in flight, and one may be being settled. Together that is a chunk at most.
        self._batch_max = max(1, task.chunk // 2)
        self._in_flight: QueueBatch | None = None
        self._settling: BacklogQueue | None = None
        self._received = 0
        # After `at_most` messages, the receiver itself grants no more.
        self._grants_no_more = task.at_most is not None
        self._full: set[str] = set()
        self._window = TaskWindow(task.seconds)
        self._has_opened_primary = False
        self._has_reached_primary = False

    def run(self) -> Drained:
        try:
            try:
                self._work()
            finally:
                self._end()
        finally:
            self._primary.close()
        if self._delivery.bug is not None:
            raise self._delivery.bug
        return Drained(
            receipts=self._report.receipts,
            destinations=tuple(self._destinations),
            emptied=tuple(sorted(self._report.emptied)),
            errors=tuple(sorted(self._report.errors.items())),
            full=tuple(sorted(self._full)),
            usage=(self._primary.usage(), self._secondary.usage()),
            has_reached_primary=self._has_reached_primary and not self._delivery.primary_error,
            primary_error=self._delivery.primary_error,
            unwritten=tuple(self._report.lines or ()),
        )

    def _work(self) -> None:
        self._open()
        while self._active and self._has_time():
            self._stop_granting_in_time()
            batch = self._next_batch()
            if batch is None and self._in_flight is None:
                self._wait()
                continue
            self._finish_batch()
            if batch is not None:
                self._start(batch)

    # --- time -------------------------------------------------------------------------------------

    def _open(self) -> None:
        """The task's time starts when the secondary has accepted the connection, so a distant
        secondary costs no work time.
        """
        began = time.monotonic()
        self._secondary.set_deadline(began + self._task.open_seconds)
        attach_all([queue.receiver for queue in self._queues])
        for queue in list(self._active):
            if queue in self._active:  # otherwise it was lost together with others
                try:
                    queue.receiver.open()
                except AzureError as error:
                    self._active.remove(queue)
                    self._queue_failed(queue, error)
        took, now = time.monotonic() - began, self._report.now()
        self._window.secondary_opened(took=took, now=now)
        self._set_deadlines()

    def _open_primary(self, batch: QueueBatch) -> None:
        """The first batch opens the connection to the primary."""
        self._has_opened_primary = True
        self._delivery.sends_until = math.inf
        began = time.monotonic()
        self._primary.set_deadline(began + self._task.open_seconds)
        self._delivery.start(batch)
        self._has_reached_primary = self._primary.is_open
        answer_seconds = max((one.answer_seconds for one in self._destinations), default=0.0)
        self._window.primary_opened(took=time.monotonic() - began, answer_seconds=answer_seconds)
        self._set_deadlines()

    def _set_deadlines(self) -> None:
        """The task ends soon after its time, even if a namespace stops answering."""
        ahead = time.monotonic() - self._report.now()
        self._delivery.sends_until = self._window.sends_until
        self._primary.set_deadline(self._window.primary_until + ahead)
        self._secondary.set_deadline(self._window.secondary_until + ahead)

    def _has_time(self) -> bool:
        """Whether there is time and reason for another batch."""
        delivery = self._delivery
        return (
            self._window.has_time(now=self._report.now())
            and not delivery.primary_error
            and delivery.bug is None
        )

    def _stop_granting_in_time(self) -> None:
        """Stop granting credit when the messages in transit last until the end. Then few have to be
        released.
        """
        now, taken = self._report.now(), self._received
        if not self._grants_no_more and self._window.is_covered_by(AHEAD_MAX, taken=taken, now=now):
            self._grants_no_more = True
            for queue in self._queues:
                queue.receiver.stop_granting()

    # --- receiving --------------------------------------------------------------------------------

    def _next_batch(self) -> QueueBatch | None:
        """Receives from the next queue, in turn, that has messages now."""
        for queue in list(self._active):
            if queue not in self._active:
                continue  # lost together with another one
            self._active.remove(queue)
            try:
                received = queue.receiver.receive(self._batch_max, max_wait_seconds=0.0)
            except AzureError as error:
                self._queue_failed(queue, error)
                continue
            if received:
                queue.empty_since = None
                self._received += len(received)
                self._active.append(queue)
                return self._restore(queue, received)
            if not self._seems_empty(queue):
                self._active.append(queue)
        return None

    def _seems_empty(self, queue: BacklogQueue) -> bool:
        """Whether this task can receive nothing more from the queue."""
        if self._grants_no_more and not queue.receiver.has_credit:
            return True  # all granted credit is used; there may be more messages
        now = self._report.now()
        if queue.empty_since is None:
            queue.empty_since = now
        if now - queue.empty_since < self._window.empty_seconds:
            return False
        if not queue.held:
            self._report.emptied.add(queue.name)
        return True

    def _queue_failed(self, queue: BacklogQueue, error: AzureError) -> None:
        self._report.record_error(queue.name, error)
        if not self._secondary.is_open:
            # The secondary is at fault, not the queue. Waiting for the other queues does not help.
            for other in self._active:
                self._report.errors.setdefault(other.name, self._report.errors[queue.name])
            self._active.clear()

    def _wait(self) -> None:
        """Waits for a message. Called when none has arrived and none is in flight."""
        self._await_settlement()
        receivers = [queue.receiver for queue in self._active]
        try:
            wait_for_any(receivers, max_wait_seconds=self._window.empty_seconds)
        except AzureError:
            return  # the next `receive` of each queue shows which one has failed

    def _restore(self, queue: BacklogQueue, received: Iterable[ReceivedMessage]) -> QueueBatch:
        batch = QueueBatch(queue, self._report.now())
        now_ms, ttl_keeps_running = int(batch.locked_at * 1000), self._task.ttl_keeps_running
        by_path = batch.by_path
        for one in received:
            try:
                restored = restore(one.data, now_ms=now_ms, ttl_keeps_running=ttl_keeps_running)
            except EnvelopeError as error:
                step = unreadable(error)
                batch.dead_letters.setdefault(step, []).append(one)
                self._report.record_unreadable(queue.name, one, step.reason)
            else:
                by_path.setdefault(restored.path.lower(), []).append((one, restored))
        return batch

    # --- one batch after the other ----------------------------------------------------------------

    def _start(self, batch: QueueBatch) -> None:
        if batch.queue.name in self._report.errors:
            # The queue has failed in the meantime. Do not send what cannot be settled.
            for path, pairs in batch.by_path.items():
                batch.queue.hold(path, pairs)
        elif batch.by_path and not self._has_opened_primary:
            self._open_primary(batch)
        else:
            self._delivery.start(batch)
        self._in_flight = batch

    def _finish_batch(self) -> None:
        """Wait until the primary has acknowledged the batch in flight, and settle it."""
        batch, self._in_flight = self._in_flight, None
        if batch is None:
            return
        queue, began = batch.queue, time.monotonic()
        self._delivery.await_acknowledgement(batch)
        self._window.answered(took=time.monotonic() - began)
        self._await_settlement()
        self._write_lines()
        queue.settle(batch.done, batch.dead_letters)
        self._settling = queue
        if queue in self._active and queue.name in self._report.errors:
            self._active.remove(queue)
        if batch.done or batch.dead_letters:
            queue.held_before = queue.held_count
        if queue.held_count - queue.held_before >= self._task.held_max:
            self._leave([queue])
        if sum(each.held_count for each in self._queues) >= HELD_MAX:
            self._leave(self._active)

    def _write_lines(self) -> None:
        """Before the messages are settled, so that a kill leaves no settled one without a line."""
        if self._task.messages_folder is not None and self._report.lines:
            # Only here: it needs pyarrow, which a worker may not have.
            from pairbus.syphon.message_lines import write_lines

            self._report.lines = write_lines(Path(self._task.messages_folder), self._report.lines)

    def _leave(self, queues: Sequence[BacklogQueue]) -> None:
        """The task holds too many messages to look at the ones behind them."""
        for queue in list(queues):
            if queue in self._active:
                self._active.remove(queue)
                self._full.add(queue.name)

    def _await_settlement(self) -> None:
        queue, self._settling = self._settling, None
        if queue is not None:
            queue.await_settlement()

    def _end(self) -> None:
        """Release all locks: of held messages, and of buffered ones."""
        try:
            self._finish_batch()
        finally:
            # Stop first; otherwise the released messages are delivered again at once.
            stop_all([queue.receiver for queue in self._queues])
            for queue in self._queues:
                queue.release(self._destinations)
            self._secondary.close()


def _credit(task: DrainTask) -> int:
    """The credit for one queue: enough to keep the task busy, and few messages to release at the
    end.
    """
    each = max(task.chunk // 2, AHEAD_MAX // len(task.queues))
    return max(1, min(each, 2 * task.chunk, LOCKED_MAX // len(task.queues)))
