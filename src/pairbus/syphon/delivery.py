"""Sends batches to the primary: to all destinations at once, without waiting for the answers.

For one destination, everything happens in order. A part that is refused is split and tried again
before what follows it. If a message has to wait because of its destination, those that follow it
wait, too. If the message itself is the reason to wait, those that follow overtake it, unless their
client asked for order. Other destinations are not affected. `BacklogQueue` settles what the primary
has acknowledged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_all
from pairbus.fast.errors import SendIncomplete
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.sender import PendingSend, Sender
from pairbus.syphon.backlog_queue import RENEW_SECONDS, BacklogQueue, Pair
from pairbus.syphon.policy import (
    Destination,
    Destinations,
    Failure,
    NextStep,
    ToDeadLetter,
    after_failure,
    failure_of,
    next_step,
)
from pairbus.syphon.receipts import ReceiptOutcome, TaskReport

PART_BYTES_MAX = 1_000_000
"""The maximum size of one send. Large messages are sent singly, to check the time in between."""


@dataclass(slots=True, eq=False)
class DestinationBatch:
    """The messages of a batch for one destination."""

    destination: Destination
    parts: list[list[Pair]]
    """The parts that are left to send, in this order."""
    part: list[Pair] = field(default_factory=list)
    """What is being sent."""
    pending: PendingSend | None = None
    sent_at: float = 0.0
    """Monotonic."""


@dataclass(slots=True, eq=False)
class QueueBatch:
    """Messages of one backlog queue that are sent together, and then settled together."""

    queue: BacklogQueue
    locked_at: float
    """Monotonic: when the messages were received, or their locks renewed."""
    by_path: dict[str, list[Pair]] = field(default_factory=dict)
    """By destination, in lower case."""
    late: dict[str, list[Pair]] = field(default_factory=dict)
    """By destination: messages whose client asked for order, and whose turn has not come. Held when
    the others have been sent."""
    in_flight: list[DestinationBatch] = field(default_factory=list)
    count: int = 0
    size: int = 0
    """In bytes."""
    sent_at: float = 0.0
    """Monotonic."""
    done: list[ReceivedMessage] = field(default_factory=list)
    """To be completed."""
    dead_letters: dict[ToDeadLetter, list[ReceivedMessage]] = field(default_factory=dict)


class BatchDelivery:
    def __init__(self, primary: FastClient, destinations: Destinations, report: TaskReport) -> None:
        self._primary = primary
        self._destinations = destinations
        self._report = report
        self._senders: dict[str, Sender] = {}
        self.primary_error = ""
        """Why the primary does not answer at all, so that no destination needs to be tried."""
        self.bug: BaseException | None = None
        """An error that neither the primary nor a message caused. The other messages are held."""
        self.sends_until = math.inf
        """Nothing is sent after this time (monotonic)."""

    def start(self, batch: QueueBatch) -> None:
        """Send the first part for each destination. Hold messages that cannot be sent."""
        self._renew_locks(batch)
        batch.sent_at = time.monotonic()
        found: list[DestinationBatch] = []
        for path, pairs in batch.by_path.items():
            if path in batch.queue.held:
                batch.queue.hold(path, pairs)  # must not overtake the held messages
            else:
                found.append(DestinationBatch(self._destinations[pairs[0][1].path], [pairs]))
        self._attach_senders(found)
        batch.in_flight = [sending for sending in found if self._send_next(batch, sending)]

    def has_answer(self, batch: QueueBatch) -> bool:
        """Whether the primary has answered a part of the batch, or all of it."""
        return not batch.in_flight or any(map(_has_ended, batch.in_flight))

    def advance(self, batch: QueueBatch) -> bool:
        """Take the primary's answers that have come, and send the parts that follow them.

        Returns whether nothing is left to send or to wait for.
        """
        left: list[DestinationBatch] = []
        for sending in batch.in_flight:
            if not _has_ended(sending):
                left.append(sending)
                continue
            self._renew_locks(batch)
            self._take_answer(batch, sending)
            if self._send_next(batch, sending):
                left.append(sending)
        batch.in_flight = left
        return not left

    def _attach_senders(self, batches: Sequence[DestinationBatch]) -> None:
        """Attach new senders all at once: the primary may be far away."""
        now = self._report.now()
        paths = [one.destination.path for one in batches if one.destination.is_open(now=now)]
        if not self.primary_error and any(path not in self._senders for path in paths):
            attach_all([self._sender(path) for path in paths])

    def _sender(self, path: str) -> Sender:
        sender = self._senders.get(path)
        if sender is None:
            sender = self._senders[path] = self._primary.sender(path)
        return sender

    def _renew_locks(self, batch: QueueBatch) -> None:
        now = time.monotonic()
        if now - batch.locked_at > RENEW_SECONDS:
            batch.locked_at = now
            batch.queue.renew_locks([one for pairs in batch.by_path.values() for one, _ in pairs])

    # --- one destination --------------------------------------------------------------------------

    def _send_next(self, batch: QueueBatch, sending: DestinationBatch) -> bool:
        """Send the next part. Returns False if there is none, or if it must wait."""
        destination, parts = sending.destination, sending.parts
        while parts:
            is_late = time.monotonic() > self.sends_until
            if self.primary_error or self.bug is not None or is_late:
                self._hold(batch, destination, parts)
                return False
            part = parts.pop(0)
            step = next_step(part[0][1], destination, now=self._report.now())
            if isinstance(step, ToDeadLetter):
                self._dead_letter(batch, step, part)
            elif step is NextStep.DROP:
                batch.done.append(part[0][0])
                self._record(batch, destination.path, ReceiptOutcome.EXPIRED, part[:1])
                if part[1:]:
                    parts.insert(0, part[1:])
            elif step is NextStep.WAIT:
                self._hold(batch, destination, [part, *parts])
                return False
            else:
                self._send(sending, part)
                return True
        return False

    def _send(self, sending: DestinationBatch, part: list[Pair]) -> None:
        end = sendable(part)
        if end < len(part):
            sending.parts.insert(0, part[end:])
            part = part[:end]
        path = sending.destination.path
        if not all(message.data for _, message in part):
            # Not an assert, which -O removes: a message that is sent empty, acknowledged and then
            # settled is lost.
            raise RuntimeError(f"messages held for {path!r} were about to be sent without data")
        sending.part, sending.sent_at = part, time.monotonic()
        sending.pending = self._sender(path).start([message.data for _, message in part])

    def _take_answer(self, batch: QueueBatch, sending: DestinationBatch) -> None:
        assert sending.pending is not None
        failed, sending.pending = sending.pending.failure(), None
        took = time.monotonic() - sending.sent_at
        if failed is None:
            sending.destination.answered(after=took)
            self._accepted(batch, sending.destination, sending.part)
        else:
            if failed.doubtful_ranges and isinstance(failed.error, OperationTimeoutError):
                sending.destination.was_late(waited=took)
            sending.parts[:0] = self._after_failure(batch, sending, failed)

    def _accepted(self, batch: QueueBatch, destination: Destination, pairs: list[Pair]) -> None:
        destination.sent(now=self._report.now())
        batch.done.extend([received for received, _ in pairs])
        self._record(batch, destination.path, ReceiptOutcome.BROUGHT_HOME, pairs)

    def _after_failure(
        self, batch: QueueBatch, sending: DestinationBatch, failed: SendIncomplete
    ) -> list[list[Pair]]:
        """Splits the rest of a failed part into smaller parts, to be sent in this order."""
        part, destination = sending.part, sending.destination
        accepted = [part[i] for indexes in failed.accepted_ranges for i in indexes]
        if accepted:
            self._accepted(batch, destination, accepted)
        doubtful = sum(map(len, failed.doubtful_ranges))
        self._report.record_possible_duplicates(batch.queue.name, destination.path, doubtful)
        ranges = (*failed.doubtful_ranges, *failed.refused_ranges)
        left = [part[i] for i in sorted(i for indexes in ranges for i in indexes)]
        failure = failure_of(failed.error)
        if failure is None:
            self.bug = self.bug or failed.error
            return [left]
        now, detail = self._report.now(), str(failed.error)
        if failure is Failure.UNREACHABLE and not self._primary.is_open:
            self.primary_error = self.primary_error or detail
        step = after_failure(destination, failure, count=len(left), now=now, detail=detail)
        if isinstance(step, ToDeadLetter):
            self._dead_letter(batch, step, left)
            return []
        if step is NextStep.WAIT:
            behind: list[list[Pair]] = []
            # Their client asked for order: none of them may overtake another.
            if any(restored.is_ordered for part in (left, *sending.parts) for _, restored in part):
                behind, sending.parts = sending.parts, []
            self._hold(batch, destination, [left, *behind])
            return []
        middle = len(left) // 2
        return [left[:middle], left[middle:]]

    # --- what becomes of the messages -------------------------------------------------------------

    def _hold(
        self, batch: QueueBatch, destination: Destination, parts: Sequence[Sequence[Pair]]
    ) -> None:
        batch.queue.hold(destination.path.lower(), [pair for part in parts for pair in part])

    def _dead_letter(self, batch: QueueBatch, step: ToDeadLetter, pairs: Sequence[Pair]) -> None:
        batch.dead_letters.setdefault(step, []).extend(received for received, _ in pairs)
        self._record(batch, pairs[0][1].path, ReceiptOutcome.DEAD_LETTERED, pairs, step.reason)

    def _record(
        self,
        batch: QueueBatch,
        path: str,
        outcome: ReceiptOutcome,
        pairs: Sequence[Pair],
        reason: str = "",
    ) -> None:
        messages = [restored for _, restored in pairs]
        self._report.record(batch.queue.name, path, outcome, messages, reason)
        sizes = ((received, restored.size) for received, restored in pairs)
        self._report.record_lines(batch.queue.name, path, outcome, sizes, reason)


def _has_ended(sending: DestinationBatch) -> bool:
    return sending.pending is None or sending.pending.has_ended()


def sendable(part: Sequence[Pair]) -> int:
    """How many messages of a part to send at once. At least the first one, because it has not
    expired.
    """
    size = 0
    for place, (_, message) in enumerate(part):
        size += message.size
        if message.is_expired or (size > PART_BYTES_MAX and place):
            return place
    return len(part)
