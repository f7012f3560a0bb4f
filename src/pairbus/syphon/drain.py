"""One task of a round: messages of some backlog queues go home, for some seconds.

Received, restored, sent in batches to where they belong, and settled only when the primary has
acknowledged them. Who dies in between has delivered a chunk that will be delivered again, which
duplicate detection absorbs. What cannot go now is held until the end of the task, so that it does
not come round again and again, and then released: no lock outlives the task. What was sent is
told in receipts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from azure.core.exceptions import AzureError

from pairbus.route.envelope import EnvelopeError
from pairbus.servicebus.fast import FastClient, Received, Receiver, Sender, SendFailed, SettleFailed
from pairbus.spark.settings import Address
from pairbus.syphon.destinations import POLICY, Destination, Destinations, Failure, Reaction
from pairbus.syphon.receipts import Collector, Outcome, Receipt
from pairbus.syphon.restore import Restored, restore
from pairbus.syphon.step import Bury, Drop, Send, Wait, after_failure, next_step
from pairbus.syphon.verdicts import failure_of

logger = logging.getLogger("pairbus.syphon")

# A queue that had nothing for so long is empty. The first credit takes a moment to be answered.
EMPTY_SECONDS = 0.25
# Locks of backlog queues last a minute; what is older than this when its turn comes is renewed.
RENEW_SECONDS = 20.0
# The most that one answer is waited for, so that a silent primary does not outlast the locks.
ANSWER_SECONDS_MAX = 15.0
# How far a chunk may go beyond the task's time before the rest of it is put back.
LATE_SECONDS_MAX = 1.0


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
    chunk: int = 500
    """How many messages are sent before they are settled: the most that can arrive twice when the
    task dies."""
    held_max: int = 20_000
    """How many may be held for destinations that are down, in each queue."""
    ttl_keeps_running: bool = False
    known: tuple[Destination, ...] = ()
    """What earlier tasks have learned of destinations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    receipts: tuple[Receipt, ...]
    destinations: tuple[Destination, ...]
    emptied: tuple[str, ...]
    """The queues in which nothing was left that this task could have taken."""
    troubles: tuple[tuple[str, str], ...]
    """Queue, and why it could not be received from or settled in."""


Pair = tuple[Received, Restored]


@dataclass(slots=True, eq=False)
class _Source:
    queue: str
    receiver: Receiver
    held: dict[str, list[Pair]] = field(default_factory=dict)
    """By destination: later messages for the same must not overtake them."""
    held_count: int = 0
    empty_since: float | None = None


def drain(task: DrainTask, *, clock: Callable[[], float] = time.time) -> Drained:
    return _Drain(task, clock).run()


class _Drain:
    def __init__(self, task: DrainTask, clock: Callable[[], float]) -> None:
        self._task = task
        self._clock = clock
        self._collector = Collector(run=task.run, round=task.round)
        self._destinations = Destinations(task.known)
        self._senders: dict[str, Sender] = {}
        self._home = task.primary.client(timeout_seconds=ANSWER_SECONDS_MAX)
        self._is_home_lost = False
        """The primary does not answer at all: no destination needs to be tried for that."""
        self._deadline = 0.0
        self._troubles: dict[str, str] = {}
        self._emptied: set[str] = set()

    def run(self) -> Drained:
        task = self._task
        # Neither is connected yet: one that cannot be reached is trouble, and not the end.
        backlog = task.secondary.client(timeout_seconds=ANSWER_SECONDS_MAX)
        try:
            sources = [
                _Source(queue, backlog.receiver(queue, credit=task.chunk * 2))
                for queue in task.queues
            ]
            try:
                self._work(backlog, sources)
            finally:
                self._let_go(sources)
        finally:
            self._home.close()
            backlog.close()
        return Drained(
            receipts=tuple(self._collector.receipts()),
            destinations=tuple(self._destinations),
            emptied=tuple(sorted(self._emptied)),
            troubles=tuple(sorted(self._troubles.items())),
        )

    def _work(self, backlog: FastClient, sources: list[_Source]) -> None:
        self._deadline = self._clock() + self._task.seconds
        active = list(sources)
        while active and self._clock() < self._deadline and not self._is_home_lost:
            for source in list(active):
                if not self._turn(backlog, source, is_alone=len(active) == 1):
                    active.remove(source)
                if source.queue in self._troubles and not backlog.is_open:
                    # It is the secondary, and not the queue: the others would only wait as well.
                    for other in active:
                        self._troubles.setdefault(other.queue, self._troubles[source.queue])
                    return
                if self._clock() >= self._deadline or self._is_home_lost:
                    break

    def _turn(self, backlog: FastClient, source: _Source, *, is_alone: bool) -> bool:
        """One chunk of one queue. False: nothing more is to be had of it in this task."""
        try:
            wait = EMPTY_SECONDS if is_alone else EMPTY_SECONDS / 10
            chunk = source.receiver.receive(self._task.chunk, max_wait_seconds=wait)
        except AzureError as error:
            self._trouble(source, error)
            return False
        now = self._clock()
        if not chunk:
            source.empty_since = now if source.empty_since is None else source.empty_since
            if now - source.empty_since < EMPTY_SECONDS:
                return True
            if not source.held:
                self._emptied.add(source.queue)
            return False
        source.empty_since = None
        self._move(backlog, source, chunk)
        if source.held_count >= self._task.held_max:
            return False
        return source.queue not in self._troubles

    # --- one chunk --------------------------------------------------------------------------------

    def _move(self, backlog: FastClient, source: _Source, chunk: list[Received]) -> None:
        began = self._clock()
        now_ms = int(began * 1000)
        done: list[Received] = []
        buried: dict[Bury, list[Received]] = {}
        groups: dict[str, list[Pair]] = {}
        for received in chunk:
            try:
                restored = restore(
                    received.data, now_ms=now_ms, ttl_keeps_running=self._task.ttl_keeps_running
                )
            except EnvelopeError as error:
                step = next_step(error, None, now=began)
                assert isinstance(step, Bury)
                buried.setdefault(step, []).append(received)
                self._tell(source, "", Outcome.BURIED, [(received, None)], now_ms, step.reason)
            else:
                groups.setdefault(restored.path.lower(), []).append((received, restored))
        try:
            self._deliver_all(backlog, source, groups, done, buried, began)
        finally:
            self._settle(source, done, buried)

    def _deliver_all(
        self,
        backlog: FastClient,
        source: _Source,
        groups: dict[str, list[Pair]],
        done: list[Received],
        buried: dict[Bury, list[Received]],
        began: float,
    ) -> None:
        for path, pairs in groups.items():
            if self._clock() - began > RENEW_SECONDS:
                began = self._renew(
                    backlog, source, [one for pair in groups.values() for one, _ in pair]
                )
            self._deliver(source, path, pairs, done, buried)

    def _deliver(
        self,
        source: _Source,
        path: str,
        pairs: list[Pair],
        done: list[Received],
        buried: dict[Bury, list[Received]],
    ) -> None:
        """In order: what follows a message that has to wait because of its destination waits as
        well. One that has to wait because of itself, and may be at fault, is overtaken."""
        now = self._clock()
        destination = self._destinations[pairs[0][1].path]
        is_late = now > self._deadline + LATE_SECONDS_MAX
        if path in source.held or self._is_home_lost or is_late:
            self._hold(source, path, pairs)
            return
        parts = [pairs]
        while parts:
            part = parts.pop(0)
            step = next_step(part[0][1], destination, now=self._clock())
            if isinstance(step, Drop):
                done.append(part[0][0])
                self._tell(source, destination.path, Outcome.EXPIRED, part[:1], int(now * 1000))
                if part[1:]:
                    parts.insert(0, part[1:])
                continue
            if isinstance(step, Wait):
                self._hold(source, path, [pair for rest in (part, *parts) for pair in rest])
                return
            if isinstance(step, Bury):
                self._bury(source, step, part, buried)
                continue
            assert isinstance(step, Send)
            parts[:0] = self._send(source, destination, part, done, buried)

    def _send(
        self,
        source: _Source,
        destination: Destination,
        part: list[Pair],
        done: list[Received],
        buried: dict[Bury, list[Received]],
    ) -> list[list[Pair]]:
        """What is left of it, in parts to be tried in this order."""
        # What has expired is not sent; the first of a part never is, for that was looked at.
        end = next((i for i, (_, message) in enumerate(part) if message.is_expired), len(part))
        rest = [part[end:]] if end < len(part) else []
        part = part[:end]
        try:
            self._sender(destination.path).send([message.data for _, message in part], window=1)
        except SendFailed as failed:
            return self._after(source, destination, part, failed, done, buried) + rest
        now = self._clock()
        destination.sent(now=now)
        done.extend(received for received, _ in part)
        self._tell(source, destination.path, Outcome.MOVED, part, int(now * 1000))
        return rest

    def _after(
        self,
        source: _Source,
        destination: Destination,
        part: list[Pair],
        failed: SendFailed,
        done: list[Received],
        buried: dict[Bury, list[Received]],
    ) -> list[list[Pair]]:
        now = self._clock()
        now_ms = int(now * 1000)
        accepted = [part[i] for indexes in failed.accepted_ranges for i in indexes]
        if accepted:
            destination.sent(now=now)
            done.extend(received for received, _ in accepted)
            self._tell(source, destination.path, Outcome.MOVED, accepted, now_ms)
        doubtful = [part[i] for indexes in failed.doubtful_ranges for i in indexes]
        if doubtful:
            self._collector.doubt(source.queue, destination.path, len(doubtful), now_ms=now_ms)
        ranges = (*failed.doubtful_ranges, *failed.refused_ranges)
        left = [part[i] for i in sorted(i for indexes in ranges for i in indexes)]
        failure = failure_of(failed.error)
        if failure is None:
            raise failed.error
        detail = str(failed.error)
        self._is_home_lost = failure is Failure.UNREACHABLE and not self._home.is_open
        if len(left) == 1 or POLICY[failure].of_many is not Reaction.SPLIT:
            destination.failed(failure, now=now, detail=detail)
        step = after_failure(destination, failure, count=len(left), now=now, detail=detail)
        if isinstance(step, Bury):
            self._bury(source, step, left, buried)
            return []
        if isinstance(step, Wait):
            self._hold(source, destination.path.lower(), left)
            return []
        middle = len(left) // 2
        return [left[:middle], left[middle:]]

    def _sender(self, path: str) -> Sender:
        sender = self._senders.get(path)
        if sender is None:
            sender = self._senders[path] = self._home.sender(path)
        return sender

    # --- what becomes of them in the backlog ------------------------------------------------------

    def _hold(self, source: _Source, path: str, pairs: Sequence[Pair]) -> None:
        source.held.setdefault(path, []).extend(pairs)
        source.held_count += len(pairs)

    def _bury(
        self,
        source: _Source,
        step: Bury,
        pairs: Sequence[Pair],
        buried: dict[Bury, list[Received]],
    ) -> None:
        buried.setdefault(step, []).extend(received for received, _ in pairs)
        path = pairs[0][1].path
        self._tell(source, path, Outcome.BURIED, pairs, int(self._clock() * 1000), step.reason)

    def _settle(
        self, source: _Source, done: list[Received], buried: dict[Bury, list[Received]]
    ) -> None:
        if done:
            self._settling(source, lambda: source.receiver.complete(done), doubtful=len(done))
        for step, received in buried.items():
            self._settling(
                source,
                lambda received=received, step=step: source.receiver.dead_letter(  # type: ignore[misc]
                    received, reason=step.reason, description=step.description
                ),
            )

    def _settling(self, source: _Source, settle: Callable[[], None], *, doubtful: int = 0) -> None:
        """Once more if the connection was lost: then it goes by the lock's token.

        `doubtful`: how many arrive twice if it fails.
        """
        for is_last in (False, True):
            try:
                settle()
                return
            except SettleFailed as error:
                # Their locks have run out: they are delivered again, and so they arrive twice.
                if doubtful:
                    self._doubt(source, len(error.failed))
                return
            except AzureError as error:
                if is_last:
                    self._doubt(source, doubtful)
                    self._trouble(source, error)

    def _renew(self, backlog: FastClient, source: _Source, received: list[Received]) -> float:
        try:
            backlog.management(source.queue).renew_locks([one.tag for one in received])
        except AzureError as error:
            logger.info("locks of %s could not be renewed: %s", source.queue, error)
        return self._clock()

    def _let_go(self, sources: Iterable[_Source]) -> None:
        """Nothing stays locked: not what was held, nor what has come and was not looked at."""
        for source in sources:
            held = [received for pairs in source.held.values() for received, _ in pairs]
            held.sort(key=lambda received: received.delivery_id)
            try:
                if held:
                    source.receiver.release(held)
            except AzureError as error:
                logger.info("messages of %s were not released: %s", source.queue, error)
            for pairs in source.held.values():
                destination = self._destinations[pairs[0][1].path]
                self._tell(
                    source,
                    destination.path,
                    Outcome.WAITING,
                    pairs,
                    int(self._clock() * 1000),
                    destination.condition.value,
                )
            source.receiver.close()
        for sender in self._senders.values():
            sender.close()

    # --- telling ----------------------------------------------------------------------------------

    def _doubt(self, source: _Source, count: int) -> None:
        if count:
            now_ms = int(self._clock() * 1000)
            self._collector.doubt(source.queue, "", count, now_ms=now_ms)

    def _trouble(self, source: _Source, error: BaseException) -> None:
        self._troubles[source.queue] = f"{type(error).__name__}: {error}"

    def _tell(
        self,
        source: _Source,
        path: str,
        outcome: Outcome,
        pairs: Sequence[tuple[Received, Restored | None]],
        now_ms: int,
        reason: str = "",
    ) -> None:
        self._collector.add(source.queue, path, outcome, pairs, now_ms=now_ms, reason=reason)
