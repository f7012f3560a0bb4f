"""One task of a round: messages of some backlog queues go home, for some seconds.

Received, restored, sent in batches to where they belong, and settled only when the primary has
acknowledged them. That goes on half a chunk at a time: while one half is in the air, the one before
it is being settled, and the next is received and restored. So whoever dies in between, a chunk at
most has been delivered that will be delivered again, which duplicate detection absorbs. No lock
outlives the task. What became of messages is told in receipts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from azure.core.exceptions import AzureError

from pairbus.client.route.envelope import EnvelopeError
from pairbus.fast.address import Address
from pairbus.fast.connection import attach_all
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import stop_all, wait_for_any
from pairbus.syphon.backlog_queue import Source
from pairbus.syphon.delivery import Delivery, Half
from pairbus.syphon.policy import Destination, Destinations, unreadable
from pairbus.syphon.receipts import Drained, TaskReport
from pairbus.syphon.restore import restore
from pairbus.syphon.window import ANSWER_SECONDS_MAX, Window

# How many messages are received ahead, in all queues: they are locked meanwhile. More where half a
# chunk of each queue is more, up to what a broker may bear on one connection.
AHEAD_MAX = 2_500
LOCKED_MAX = 3_500
# ... and so many more may be held: brokers do not lend any number to one connection.
HELD_MAX = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask:
    """All that a task is told. It travels to wherever the task runs."""

    run: str
    round: int
    queues: tuple[str, ...]
    """Backlog queues of the secondary."""
    primary: Address
    secondary: Address
    seconds: float = 3.0
    chunk: int = 1000
    """How many messages may have been sent without being known to be settled: the most that can
    arrive twice when the task, or what it talks to, dies."""
    open_seconds: float = ANSWER_SECONDS_MAX
    """How long each of the two namespaces may take to let the task in."""
    held_max: int = HELD_MAX
    """How many may be held for destinations that are down, in each queue."""
    ttl_keeps_running: bool = False
    known: tuple[Destination, ...] = ()
    """What earlier tasks have learned of destinations."""


def drain(task: DrainTask, *, clock: Callable[[], float] = time.time) -> Drained:
    return _Drain(task, clock).run()


class _Drain:
    def __init__(self, task: DrainTask, clock: Callable[[], float]) -> None:
        self._task = task
        self._report = TaskReport(run=task.run, round=task.round, clock=clock)
        self._destinations = Destinations(task.known)
        # Neither is connected yet: one that cannot be reached is trouble, and not the end.
        self._home = task.primary.client(timeout_seconds=ANSWER_SECONDS_MAX)
        self._backlog = task.secondary.client(timeout_seconds=ANSWER_SECONDS_MAX)
        self._delivery = Delivery(self._home, self._destinations, self._report)
        self._sources = [
            Source(self._backlog, queue, self._report, credit=_credit(task))
            for queue in task.queues
        ]
        self._active = list(self._sources)
        # One half is in the air, and of one the settlement may be under way: never more than that.
        self._half = max(1, task.chunk // 2)
        self._flying: Half | None = None
        self._settled: Source | None = None
        self._count = 0
        """How many messages were taken so far."""
        self._is_ending = False
        """Nothing more is asked for."""
        self._full: set[str] = set()
        self._window = Window(task.seconds)
        self._has_reached_home = False

    def run(self) -> Drained:
        try:
            try:
                self._work()
            finally:
                self._end()
        finally:
            self._home.close()
        if self._delivery.mistake is not None:
            raise self._delivery.mistake
        return Drained(
            receipts=self._report.receipts,
            destinations=tuple(self._destinations),
            emptied=tuple(sorted(self._report.emptied)),
            errors=tuple(sorted(self._report.errors.items())),
            full=tuple(sorted(self._full)),
            usage=(self._home.usage(), self._backlog.usage()),
        )

    def _work(self) -> None:
        self._open()
        while self._active and self._has_time():
            self._mind_the_end()
            half = self._next_half()
            if half is None and self._flying is None:
                self._wait()
                continue
            self._finish()
            if half is not None:
                self._begin(half)

    def _open(self) -> None:
        """The task's time begins when the secondary has let us in, however far away it is."""
        began = time.monotonic()
        self._backlog.set_deadline(began + self._task.open_seconds)
        attach_all([source.receiver for source in self._sources])
        for source in list(self._active):
            if source in self._active:  # else it was lost together with others
                try:
                    source.receiver.open()
                except AzureError as error:
                    self._active.remove(source)
                    self._lose(source, error)
        took, now = time.monotonic() - began, self._report.now()
        self._window.secondary_opened(took=took, now=now)
        self._limit_waits()

    def _limit_waits(self) -> None:
        """Whatever has gone silent, the task ends soon after its time."""
        ahead = time.monotonic() - self._report.now()
        self._delivery.ends_at = self._window.sends_until
        self._home.set_deadline(self._window.primary_until + ahead)
        self._backlog.set_deadline(self._window.secondary_until + ahead)

    def _reach_home(self, half: Half) -> None:
        """The first to be sent: the connection to the primary is opened for it."""
        self._has_reached_home = True
        self._delivery.ends_at = math.inf
        began = time.monotonic()
        self._home.set_deadline(began + self._task.open_seconds)
        self._delivery.begin(half)
        answer_seconds = max((one.answer_seconds for one in self._destinations), default=0.0)
        self._window.primary_opened(took=time.monotonic() - began, answer_seconds=answer_seconds)
        self._limit_waits()

    def _has_time(self) -> bool:
        """Is there time for another half, and does it make sense?"""
        delivery = self._delivery
        return (
            self._window.has_time(now=self._report.now())
            and not delivery.is_home_lost
            and delivery.mistake is None
        )

    def _mind_the_end(self) -> None:
        """If what has been asked for is enough, no more is: so little has to be given back."""
        now = self._report.now()
        if not self._is_ending and self._window.is_covered_by(
            AHEAD_MAX, taken=self._count, now=now
        ):
            self._is_ending = True
            for source in self._sources:
                source.receiver.stop_granting()

    # --- taking -----------------------------------------------------------------------------------

    def _next_half(self) -> Half | None:
        """Of the queue whose turn it is among those that have something now."""
        for source in list(self._active):
            if source not in self._active:
                continue  # lost together with another one
            self._active.remove(source)
            try:
                taken = source.receiver.receive(self._half, max_wait_seconds=0.0)
            except AzureError as error:
                self._lose(source, error)
                continue
            if taken:
                source.empty_since = None
                self._count += len(taken)
                self._active.append(source)
                return self._restored(source, taken)
            if not self._seems_empty(source):
                self._active.append(source)
        return None

    def _seems_empty(self, source: Source) -> bool:
        """Nothing more is to be had of it in this task."""
        if self._is_ending and not source.receiver.has_credit:
            return True  # it has given what it was asked for, so it may have more
        now = self._report.now()
        if source.empty_since is None:
            source.empty_since = now
        if now - source.empty_since < self._window.empty_seconds:
            return False
        if not source.held:
            self._report.emptied.add(source.queue)
        return True

    def _lose(self, source: Source, error: AzureError) -> None:
        self._report.record_error(source.queue, error)
        if not self._backlog.is_open:
            # It is the secondary, and not the queue: the others would only wait as well.
            for other in self._active:
                self._report.errors.setdefault(other.queue, self._report.errors[source.queue])
            self._active.clear()

    def _wait(self) -> None:
        """Nothing is there, and nothing in the air."""
        self._land_settlement()
        receivers = [source.receiver for source in self._active]
        try:
            wait_for_any(receivers, max_wait_seconds=self._window.empty_seconds)
        except AzureError:
            return  # the next look at each of them tells whose trouble it is

    def _restored(self, source: Source, taken: Iterable[ReceivedMessage]) -> Half:
        half = Half(source, self._report.now())
        now_ms, ttl_keeps_running = int(half.began * 1000), self._task.ttl_keeps_running
        groups = half.groups
        for received in taken:
            try:
                restored = restore(
                    received.data, now_ms=now_ms, ttl_keeps_running=ttl_keeps_running
                )
            except EnvelopeError as error:
                step = unreadable(error)
                half.dead_letters.setdefault(step, []).append(received)
                self._report.record_unreadable(source.queue, received, step.reason)
            else:
                groups.setdefault(restored.path.lower(), []).append((received, restored))
        return half

    # --- one half after the other -----------------------------------------------------------------

    def _begin(self, half: Half) -> None:
        if half.source not in self._active:
            # Meanwhile it was found to be in trouble: what it cannot settle is not sent.
            for path, pairs in half.groups.items():
                half.source.hold(path, pairs)
        elif half.groups and not self._has_reached_home:
            self._reach_home(half)
        else:
            self._delivery.begin(half)
        self._flying = half

    def _finish(self) -> None:
        """Of the half that is in the air, wait for the answers, and settle it."""
        half, self._flying = self._flying, None
        if half is None:
            return
        source, began = half.source, time.monotonic()
        self._delivery.land(half)
        self._window.answered(took=time.monotonic() - began)
        self._land_settlement()
        source.settle(half.done, half.dead_letters)
        self._settled = source
        if source in self._active and source.queue in self._report.errors:
            self._active.remove(source)
        if source.held_count >= self._task.held_max:
            self._leave([source])
        if sum(each.held_count for each in self._sources) >= HELD_MAX:
            self._leave(self._active)

    def _leave(self, sources: Iterable[Source]) -> None:
        """So much of it is held that it cannot be looked at what comes behind that."""
        for source in list(sources):
            if source in self._active:
                self._active.remove(source)
                self._full.add(source.queue)

    def _land_settlement(self) -> None:
        source, self._settled = self._settled, None
        if source is not None:
            source.land()

    def _end(self) -> None:
        """Nothing stays locked: not what was held, nor what has come and was not looked at."""
        try:
            self._finish()
        finally:
            # First that nothing more comes, else what is released comes again at once.
            stop_all([source.receiver for source in self._sources])
            for source in self._sources:
                source.release(self._destinations)
            self._backlog.close()


def _credit(task: DrainTask) -> int:
    """So much that a queue does not run dry, and so little that not much has to be given back."""
    each = max(task.chunk // 2, AHEAD_MAX // len(task.queues))
    return max(1, min(each, 2 * task.chunk, LOCKED_MAX // len(task.queues)))
