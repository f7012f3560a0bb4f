"""One task of a round: brings messages of some backlog queues home, for a few seconds.

It receives messages, restores them, sends them in batches to their destinations, and settles them
only after the primary has acknowledged them. Each backlog queue has one batch on its way at most,
which keeps its order. While some batches are in flight, others are being settled, and the next ones
are received and restored: the task waits for both namespaces at the same time. It sends no more
than a chunk ahead of the settlements. So if the task dies, at most a chunk was sent that will be
sent again, which duplicate detection absorbs. No lock outlives the task. Receipts record the
outcomes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from azure.core.exceptions import AzureError

from pairbus.client.route.envelope import EnvelopeError
from pairbus.fast.address import Address
from pairbus.fast.client import wait_together
from pairbus.fast.connection import attach_all
from pairbus.fast.connection_cache import ConnectionCache
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import MESSAGE_BYTES_UNKNOWN, stop_all
from pairbus.syphon import window
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.delivery import BatchDelivery, QueueBatch
from pairbus.syphon.policy import Destination, Destinations, unreadable
from pairbus.syphon.receipts import Drained, MessageLine, TaskReport
from pairbus.syphon.restore import restore
from pairbus.syphon.task_clients import TaskClients
from pairbus.syphon.window import AHEAD_MAX, ANSWER_SECONDS_MAX, NEAR_MAX, TaskWindow

# How many more messages may be held. Brokers limit the number of locked messages for one
# connection.
HELD_MAX = 6_000

LineWriter = Callable[[Sequence[MessageLine]], list[MessageLine]]
"""Writes lines of the ledger. Returns those that could not be written."""


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
    arrive twice if the task or a namespace dies. A near pair needs fewer: see `TaskWindow.size`.
    """
    open_seconds: float = ANSWER_SECONDS_MAX
    """How long each of the two namespaces may take to accept the connection."""
    held_max: int = HELD_MAX
    """A queue is left after this many messages in a row had to be held for destinations that are
    down."""
    at_most: int | None = None
    """How many messages to receive from each queue; None: as many as there is time for."""
    ttl_keeps_running: bool = False
    message_bytes: Mapping[str, int] = field(default_factory=dict)
    """By queue: the size of its messages, from earlier rounds. With it, a receiver gets its full
    credit at once, and not a round trip later."""
    known: tuple[Destination, ...] = ()
    """The state of the destinations, from earlier tasks."""
    messages_folder: str | None = None
    """Where to write a line for each message, before it is settled; None: nowhere."""
    stop_file: Path | None = None
    """The task ends early if this file appears; None: it cannot be stopped."""


def drain(
    task: DrainTask,
    *,
    cache: ConnectionCache | None = None,
    clock: Callable[[], float] = time.time,
) -> Drained:
    """`cache`: takes connections from there, and gives them back; without one, it closes them."""
    if cache is None:
        cache = ConnectionCache(clients_max=0)
    return _Drain(task, cache, clock).run()


class _Drain:
    def __init__(self, task: DrainTask, cache: ConnectionCache, clock: Callable[[], float]) -> None:
        self._task = task
        self._write_lines = _line_writer(task.messages_folder)
        has_lines = self._write_lines is not None
        self._report = TaskReport(run=task.run, round=task.round, clock=clock, has_lines=has_lines)
        self._destinations = Destinations(task.known)
        self._is_stopped = False
        self._window = TaskWindow(
            task.seconds, chunk=task.chunk, is_stoppable=task.stop_file is not None
        )
        # Neither connects yet. A namespace that cannot be reached is an error of the task's result.
        self._clients = TaskClients(
            cache,
            self._window,
            run=task.run,
            primary=task.primary,
            secondary=task.secondary,
            open_seconds=task.open_seconds,
        )
        self._primary, self._secondary = self._clients.primary, self._clients.secondary
        self._delivery = BatchDelivery(self._primary, self._destinations, self._report)
        self._queues = [
            BacklogQueue(
                self._secondary,
                name,
                self._report,
                credit=self._credit,
                # What was granted may arrive even when the task has stopped reading: at its end,
                # it takes the credit back, and everything that is on its way comes first.
                bytes_max=window.BYTES_MAX // len(task.queues),
                message_bytes=task.message_bytes.get(name, MESSAGE_BYTES_UNKNOWN),
                at_most=task.at_most,
            )
            for name in task.queues
        ]
        self._active = list(self._queues)
        self._in_flight: dict[BacklogQueue, QueueBatch] = {}
        self._received = 0
        # After `at_most` messages, the receiver itself grants no more.
        self._grants_no_more = task.at_most is not None
        self._has_gathered = False
        self._full: set[str] = set()

    def run(self) -> Drained:
        is_clean = False
        try:
            try:
                self._work()
            finally:
                self._end()  # whatever has happened, the locks are released
            is_clean = self._has_no_doubts()
        finally:
            self._clients.give_back(is_clean=is_clean)
        if self._delivery.bug is not None:
            raise self._delivery.bug
        return Drained(
            receipts=self._report.receipts,
            destinations=tuple(self._destinations),
            emptied=tuple(sorted(self._report.emptied)),
            errors=tuple(sorted(self._report.errors.items())),
            full=tuple(sorted(self._full)),
            usage=self._clients.usage(),
            has_reached_primary=self._clients.has_reached_primary
            and not self._delivery.primary_error,
            primary_error=self._delivery.primary_error,
            unwritten=tuple(self._report.lines or ()),
        )

    def _work(self) -> None:
        self._open()
        while self._has_work():
            self._is_stopped = self._task.stop_file is not None and self._task.stop_file.exists()
            self._gather()
            self._stop_granting_in_time()
            self._start_batches()
            self._wait()
            self._collect_answers()

    # --- time -------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._clients.open_secondary(self._attach_queues)
        for queue in self._queues:
            queue.receiver.credit = self._credit  # larger if the secondary is far away
        self._set_deadlines()

    def _attach_queues(self) -> None:
        attach_all([queue.receiver for queue in self._queues])
        for queue in list(self._active):
            if queue in self._active:  # otherwise it was lost together with others
                try:
                    queue.receiver.open()
                except AzureError as error:
                    self._active.remove(queue)
                    self._queue_failed(queue, error)

    def _open_primary(self, batch: QueueBatch) -> None:
        """The first batch needs the connection to the primary, and links there."""

        def send() -> float:
            self._delivery.start(batch)
            return max((one.answer_seconds for one in self._destinations), default=0.0)

        self._delivery.sends_until = math.inf  # waiting for the primary does not count as work
        self._clients.open_primary(send)
        self._set_deadlines()

    def _set_deadlines(self) -> None:
        self._delivery.sends_until = self._window.sends_until
        self._clients.set_deadlines()

    def _has_time(self) -> bool:
        """Whether there is time and reason for another batch."""
        delivery = self._delivery
        return (
            not self._is_stopped
            and self._window.has_time(now=time.monotonic())
            and not delivery.primary_error
            and delivery.bug is None
        )

    def _has_work(self) -> bool:
        if self._has_time():
            return bool(self._active)
        if time.monotonic() >= self._window.primary_until or self._has_enough():
            return False
        # A queue that was asked whether it is empty may still answer.
        return any(
            queue.receiver.is_draining and not queue.receiver.has_messages for queue in self._active
        )

    def _stop_granting_in_time(self) -> None:
        """Stop granting credit when the messages in transit last until the end. Then few have to be
        released.
        """
        if self._grants_no_more:
            return
        # Fewer than `ahead` are in transit if they are large.
        credit = sum([queue.receiver.credit_for_bytes for queue in self._queues])
        ahead, now = min(self._window.ahead, credit), time.monotonic()
        if self._window.is_covered_by(ahead, taken=self._received, now=now):
            self._grants_no_more = True
            for queue in self._queues:
                queue.receiver.stop_granting()

    def _wait(self) -> None:
        """Waits for both namespaces, until one of them has said something to act on."""
        if not self._active:
            return  # `_end` waits for the remaining answers
        now, since = time.monotonic(), [queue.silent_since for queue in self._active]
        silent_since = min([each for each in since if each is not None], default=now)
        seconds = max(silent_since + self._window.empty_seconds - now, 0.0)
        self._wait_for(self._has_news, seconds)

    def _gather(self) -> None:
        """Wait a moment when the first messages have come. Others follow them, and would wait until
        these are acknowledged.
        """
        if not self._has_gathered and any(queue.receiver.has_messages for queue in self._active):
            self._has_gathered = True
            self._wait_for(lambda: False, self._window.gather_seconds)

    def _wait_for(self, done: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        if self._has_enough():
            # The secondary waits until some of what has arrived is acknowledged.
            wait_together([self._primary], done, until)
        else:
            both = [self._primary, self._secondary]
            wait_together(both, lambda: done() or self._has_enough(), until)

    def _has_enough(self) -> bool:
        """Whether so much has arrived that the task stops reading from the secondary. While it has
        time and nothing is in flight to the primary, it reads on: it waits for the secondary.
        """
        buffered = sum(queue.receiver.buffered_bytes for queue in self._queues)
        return buffered >= window.BYTES_MAX and (bool(self._in_flight) or not self._has_time())

    def _has_news(self) -> bool:
        return (
            any(queue.has_settled for queue in self._queues)
            or self._has_answer()
            or any(queue.has_ended for queue in self._active if queue not in self._in_flight)
            or (
                self._room > 0
                and self._has_time()
                and any(
                    queue.receiver.has_messages
                    for queue in self._active
                    if queue not in self._in_flight
                )
            )
        )

    def _has_answer(self) -> bool:
        return any(self._delivery.has_answer(batch) for batch in self._in_flight.values())

    # --- receiving --------------------------------------------------------------------------------

    @property
    def _credit(self) -> int:
        """The credit for one queue: enough to keep the task busy, and few messages to release at
        the end. It is the queue's share of `ahead`, or half of `NEAR_MAX` if that is more. All
        queues together get `AHEAD_MAX` at most.
        """
        chunk, count = self._task.chunk, len(self._task.queues)
        each = max(min(chunk, NEAR_MAX) // 2, self._window.ahead // count)
        return max(1, min(each, 2 * chunk, AHEAD_MAX // count))

    @property
    def _room(self) -> int:
        """How many messages may be sent now. 0 as well if the batch would be small only because
        others are in flight.
        """
        size, in_flight = self._window.size, self._in_flight.values()
        unsettled = sum(batch.count for batch in in_flight) + sum(
            queue.settling_count for queue in self._queues
        )
        room = min(size - unsettled, max(1, size // 2))
        is_full = sum(batch.size for batch in in_flight) >= window.BYTES_MAX
        is_small = unsettled > 0 and room < min(size, NEAR_MAX) // 4
        return 0 if is_full or is_small else room

    def _start_batches(self) -> None:
        """Sends what has arrived: from each queue, in turn, that has no batch in flight."""
        for queue in list(self._active):
            if queue not in self._active:
                continue  # it was lost together with another one
            if queue in self._in_flight:  # perhaps its last messages
                queue.ask_if_silent(seconds=self._window.empty_seconds)
                continue
            room = self._room
            if queue.receiver.has_messages and (room < 1 or not self._has_time()):
                continue
            self._active.remove(queue)  # it comes back as the last one, because queues take turns
            try:
                received = queue.take(max(room, 1), max_bytes=window.BYTES_MAX // 4)
            except AzureError as error:
                self._queue_failed(queue, error)
                continue
            if received:
                self._received += len(received)
                self._active.append(queue)
                self._start(self._restore(queue, received))
            elif not self._seems_empty(queue):
                self._active.append(queue)

    def _seems_empty(self, queue: BacklogQueue) -> bool:
        """Whether this task can receive nothing more from the queue. The secondary must say so: it
        may be far away, or busy.
        """
        if queue.has_ended:
            if not queue.held:
                self._report.emptied.add(queue.name)
            return True
        if self._grants_no_more and not queue.receiver.has_credit:
            return True  # all granted credit is used; there may be more messages
        queue.ask_if_silent(seconds=self._window.empty_seconds)
        return False

    def _queue_failed(self, queue: BacklogQueue, error: AzureError) -> None:
        self._report.record_error(queue.name, error)
        if not self._secondary.is_open:
            # The secondary is at fault, not the queue. Waiting for the other queues does not help.
            for other in self._active:
                self._report.errors.setdefault(other.name, self._report.errors[queue.name])
            self._active.clear()

    def _restore(self, queue: BacklogQueue, received: Sequence[ReceivedMessage]) -> QueueBatch:
        batch = QueueBatch(queue, time.monotonic(), count=len(received))
        now_ms, ttl_keeps_running = int(self._report.now() * 1000), self._task.ttl_keeps_running
        by_path, ordered = batch.by_path, set[str]()
        for one in received:
            batch.size += len(one.data)
            try:
                restored = restore(one.data, now_ms=now_ms, ttl_keeps_running=ttl_keeps_running)
            except EnvelopeError as error:
                step = unreadable(error)
                batch.dead_letters.setdefault(step, []).append(one)
                self._report.record_unreadable(queue.name, one, step.reason)
            else:
                path = restored.path.lower()
                by_path.setdefault(path, []).append((one, restored))
                if restored.is_ordered:
                    ordered.add(path)
        if ordered and (count := queue.count_next(received)) < len(received):
            # The others would overtake messages that another receiver holds.
            late = set(map(id, received[count:]))
            for path in ordered:
                batch.late[path] = [pair for pair in by_path[path] if id(pair[0]) in late]
                by_path[path] = [pair for pair in by_path[path] if id(pair[0]) not in late]
            batch.by_path = {path: pairs for path, pairs in by_path.items() if pairs}
        return batch

    # --- batches ----------------------------------------------------------------------------------

    def _start(self, batch: QueueBatch) -> None:
        if batch.queue.name in self._report.errors:
            # The queue has failed in the meantime. Do not send what cannot be settled.
            for path, pairs in batch.by_path.items():
                batch.queue.hold(path, pairs)
        elif batch.by_path and not self._clients.has_opened_primary:
            self._open_primary(batch)
        else:
            self._delivery.start(batch)
        for path, pairs in batch.late.items():
            if pairs:
                batch.queue.hold(path, pairs)
        self._in_flight[batch.queue] = batch

    def _collect_answers(self) -> None:
        """Settle what the primary has acknowledged, and see what the secondary has settled."""
        ended = [one for one in self._in_flight.values() if self._delivery.advance(one)]
        if ended and self._write_lines is not None and self._report.lines:
            # Before the messages are settled, so that a kill leaves no settled one without a line.
            self._report.lines = self._write_lines(self._report.lines)
        for batch in ended:
            del self._in_flight[batch.queue]
            self._settle(batch)
        for queue in self._queues:
            while queue.has_settled:
                self._window.settled(took=queue.collect_settlement())
                self._leave_if_failed(queue)

    def _settle(self, batch: QueueBatch) -> None:
        queue = batch.queue
        self._window.answered(took=time.monotonic() - batch.sent_at)
        queue.settle(batch.done, batch.dead_letters, sent_at=batch.sent_at)
        self._leave_if_failed(queue)
        if batch.done or batch.dead_letters:
            queue.held_before = queue.held_count
        if queue.held_count - queue.held_before >= self._task.held_max:
            self._leave([queue])
        if sum(each.held_count for each in self._queues) >= HELD_MAX:
            self._leave(self._active)

    def _leave_if_failed(self, queue: BacklogQueue) -> None:
        if queue in self._active and queue.name in self._report.errors:
            self._active.remove(queue)

    def _leave(self, queues: Sequence[BacklogQueue]) -> None:
        """The task holds too many messages to look at the ones behind them."""
        for queue in list(queues):
            if queue in self._active:
                self._active.remove(queue)
                self._full.add(queue.name)

    def _end(self) -> None:
        """Release all locks: of held messages, and of buffered ones."""
        try:
            for queue in self._queues:
                # Now, and not when the primary has answered: that saves a round trip.
                queue.receiver.ask_for_the_rest()
            self._finish_batches()
        finally:
            # Stop first; otherwise the released messages are delivered again at once.
            stop_all([queue.receiver for queue in self._queues])
            for queue in self._queues:
                queue.release(self._destinations)

    def _has_no_doubts(self) -> bool:
        """Whether nothing has gone wrong with either connection."""
        return not (
            self._report.errors
            or self._delivery.primary_error
            or self._delivery.bug
            or any(each.duplicates_possible for each in self._report.receipts)
        )

    def _finish_batches(self) -> None:
        """Wait for the primary. Each of its answers has a time limit."""
        while self._in_flight:
            self._wait_for(self._has_answer, self._window.empty_seconds)
            self._collect_answers()


def _line_writer(folder: str | None) -> LineWriter | None:
    """A worker may lack pyarrow: then the task fails here, before it has sent anything."""
    if folder is None:
        return None
    from pairbus.syphon.ledger import write_lines

    return partial(write_lines, Path(folder))
