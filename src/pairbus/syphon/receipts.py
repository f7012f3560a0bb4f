"""The outcomes of backlog messages, in rows that can be added up. These are the rows of the ledger.

A task counts what it settles (`TaskReport`) by backlog queue, destination and outcome, so thousands
of messages become a few rows. Times are UTC in milliseconds. Pure: knows neither Spark nor files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from pairbus.cost.meter import MeterReading
from pairbus.fast.message import ReceivedMessage
from pairbus.syphon.policy import Destination
from pairbus.syphon.restore import Restored

Key = tuple[str, int, str, str, str, str]


class ReceiptOutcome(StrEnum):
    BROUGHT_HOME = "brought_home"  # the primary has acknowledged it, and it has left the backlog
    WAITING = "waiting"  # released, and counted again each time it is received
    DEAD_LETTERED = "dead_lettered"  # in the dead-letter queue of its backlog queue
    EXPIRED = "expired"  # its time to live has ended in the backlog


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    run: str
    """One syphon, from its start to its stop."""
    round: int
    queue: str
    """The backlog queue."""
    path: str
    """The destination; empty if the message could not be read."""
    outcome: ReceiptOutcome
    reason: str = ""
    """Why messages wait or were dead-lettered; empty for other outcomes."""
    count: int = 0
    bytes: int = 0
    at_ms: int
    """When the last of them was settled."""
    first_enqueued_ms: int | None = None
    """When the backlog accepted the first of them; None if the broker did not say."""
    last_enqueued_ms: int | None = None
    longest_wait_ms: int = 0
    """The longest time between the backlog accepting a message and the syphon settling it."""
    duplicates_possible: int = 0
    """The number of messages that may arrive twice or may have arrived twice."""
    waits: tuple[int, ...] = ()
    """How long the messages waited: a histogram, see `wait_bucket`."""

    @property
    def key(self) -> Key:
        """Receipts with the same key can be added up."""
        return self.run, self.round, self.queue, self.path, self.outcome.value, self.reason


class MessageLine(NamedTuple):
    """What became of one message. A message that waits gets none, because it is not settled."""

    run: str
    round: int
    queue: str
    """The backlog queue."""
    sequence_number: int | None
    """In the backlog queue; None if the broker did not say."""
    message_id: str | None
    path: str
    outcome: str
    reason: str
    size: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """The progress that a job reports after each round."""

    round: int
    seconds: float
    receipts: tuple[Receipt, ...]
    pending: tuple[str, ...]
    """Backlog queues that may hold more."""
    destinations: tuple[tuple[str, Destination], ...]
    """All known destinations, each with the name of its primary."""
    errors: tuple[tuple[str, str], ...]
    """Backlog queues that could not be received from or settled in, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Something that is down, and that messages wait for."""

    name: str
    """A destination, or "the primary contoso"."""
    reason: str
    next_try: float
    """UTC, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The result of one task."""

    receipts: tuple[Receipt, ...]
    destinations: tuple[Destination, ...]
    """All that the task knows."""
    emptied: tuple[str, ...]
    """Backlog queues with nothing left that this task could have received."""
    errors: tuple[tuple[str, str], ...]
    """Backlog queues that could not be received from or settled in, and why."""
    full: tuple[str, ...] = ()
    """Backlog queues of which the task holds too many waiting messages to see those behind them."""
    usage: tuple[MeterReading, ...] = ()
    """The billed operations of the task, for each namespace."""
    has_reached_primary: bool = False
    primary_error: str = ""
    """Why the primary as a whole does not answer; empty if it does or was not needed."""
    unwritten: tuple[MessageLine, ...] = ()
    """Lines of settled messages that the task could not write."""


class TaskReport:
    """What one task reports at its end: receipts, errors, and the queues that are empty."""

    def __init__(
        self, *, run: str, round: int, clock: Callable[[], float], has_lines: bool = False
    ) -> None:
        self._run = run
        self._round = round
        self._receipts: dict[Key, Receipt] = {}
        self.now = clock
        """UTC, in seconds."""
        self.errors: dict[str, str] = {}
        """By backlog queue."""
        self.emptied: set[str] = set()
        self.lines: list[MessageLine] | None = [] if has_lines else None
        """A line for each message that is about to be settled; None: nobody wants them."""

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return tuple(self._receipts.values())

    def record(
        self,
        queue: str,
        path: str,
        outcome: ReceiptOutcome,
        messages: Sequence[Restored],
        reason: str = "",
    ) -> None:
        """Count messages that were settled together."""
        sizes = sum([message.size for message in messages])
        enqueued = [message.enqueued_ms for message in messages if message.enqueued_ms is not None]
        self._count(queue, path, outcome, reason, len(messages), sizes, enqueued)

    def record_unreadable(self, queue: str, received: ReceivedMessage, reason: str) -> None:
        """Count one message that could not be restored and was dead-lettered."""
        time = received.enqueued_time
        enqueued = [] if time is None else [round(time.timestamp() * 1000)]
        size = len(received.data)
        outcome = ReceiptOutcome.DEAD_LETTERED
        self._count(queue, "", outcome, reason, 1, size, enqueued)
        self.record_lines(queue, "", outcome, [(received, size)], reason)

    def record_lines(
        self,
        queue: str,
        path: str,
        outcome: ReceiptOutcome,
        messages: Iterable[tuple[ReceivedMessage, int]],
        reason: str = "",
    ) -> None:
        """Keep a line for each of these messages, which come with their sizes."""
        if self.lines is None:
            return
        at_ms = int(self.now() * 1000)
        for received, size in messages:
            self.lines.append(
                MessageLine(
                    run=self._run,
                    round=self._round,
                    queue=queue,
                    sequence_number=received.sequence_number,
                    message_id=received.message_id,
                    path=path,
                    outcome=outcome.value,
                    reason=reason,
                    size=size,
                    at_ms=at_ms,
                )
            )

    def record_possible_duplicates(self, queue: str, path: str, count: int) -> None:
        """Count messages that may arrive twice: the primary may have accepted them, and they were
        not settled. `path` is empty if their destinations are not known."""
        if count:
            self._add(
                Receipt(
                    run=self._run,
                    round=self._round,
                    queue=queue,
                    path=path,
                    outcome=ReceiptOutcome.BROUGHT_HOME,
                    at_ms=int(self.now() * 1000),
                    duplicates_possible=count,
                )
            )

    def record_error(self, queue: str, error: BaseException) -> None:
        self.errors[queue] = f"{type(error).__name__}: {error}"

    def _count(
        self,
        queue: str,
        path: str,
        outcome: ReceiptOutcome,
        reason: str,
        count: int,
        size: int,
        enqueued: Sequence[int],
    ) -> None:
        now_ms = int(self.now() * 1000)
        first_ms = min(enqueued, default=None)
        self._add(
            Receipt(
                run=self._run,
                round=self._round,
                queue=queue,
                path=path,
                outcome=outcome,
                reason=reason,
                count=count,
                bytes=size,
                at_ms=now_ms,
                first_enqueued_ms=first_ms,
                last_enqueued_ms=max(enqueued, default=None),
                longest_wait_ms=0 if first_ms is None else max(now_ms - first_ms, 0),
                waits=count_waits([now_ms - at for at in enqueued]),
            )
        )

    def _add(self, receipt: Receipt) -> None:
        known = self._receipts.get(receipt.key)
        self._receipts[receipt.key] = receipt if known is None else _sum(known, receipt)


def merged(receipts: Iterable[Receipt], *, across_rounds: bool = False) -> list[Receipt]:
    """Add up receipts with the same key. Across rounds, the sum has the latest round's number."""
    sums: dict[Key, Receipt] = {}
    for receipt in receipts:
        key = replace(receipt, round=0).key if across_rounds else receipt.key
        known = sums.get(key)
        sums[key] = receipt if known is None else _sum(known, receipt)
    return list(sums.values())


def _sum(one: Receipt, other: Receipt) -> Receipt:
    return replace(
        one,
        round=max(one.round, other.round),
        count=one.count + other.count,
        bytes=one.bytes + other.bytes,
        at_ms=max(one.at_ms, other.at_ms),
        first_enqueued_ms=_either(min, one.first_enqueued_ms, other.first_enqueued_ms),
        last_enqueued_ms=_either(max, one.last_enqueued_ms, other.last_enqueued_ms),
        longest_wait_ms=max(one.longest_wait_ms, other.longest_wait_ms),
        duplicates_possible=one.duplicates_possible + other.duplicates_possible,
        waits=add_waits(one.waits, other.waits),
    )


def _either(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


# --- how long messages waited ---------------------------------------------------------------------
# A histogram: a few numbers that can be added, and percentiles of them. Bucket `n` holds waits from
# `bucket_start_ms(n)` to below `bucket_start_ms(n + 1)`. There are four buckets to each doubling,
# so a percentile is off by at most an eighth, for milliseconds as for days.

BUCKETS_MAX: Final = 160  # enough for decades; longer waits are counted in the last bucket


def wait_bucket(wait_ms: int) -> int:
    if wait_ms < 8:
        return max(wait_ms, 0)  # negative if the clocks of two machines differ
    shift = wait_ms.bit_length() - 3
    return min(4 * shift + (wait_ms >> shift), BUCKETS_MAX - 1)


def bucket_start_ms(bucket: int) -> int:
    if bucket < 8:
        return bucket
    return (4 + bucket % 4) << (bucket // 4 - 1)


def count_waits(waits_ms: Iterable[int]) -> tuple[int, ...]:
    """The histogram of some waits. It ends with the bucket of the longest one."""
    counts: list[int] = []
    for wait_ms in waits_ms:
        bucket = wait_bucket(wait_ms)
        while bucket >= len(counts):
            counts.append(0)
        counts[bucket] += 1
    return tuple(counts)


def add_waits(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    if len(one) < len(other):
        one, other = other, one
    return (*(a + b for a, b in zip(one, other, strict=False)), *one[len(other) :])


def percentile_ms(waits: Sequence[int], fraction: float) -> int | None:
    """The longest wait of that fraction of the messages, as the middle of a bucket."""
    sums = list(accumulate(waits))
    if not sums or not sums[-1]:
        return None
    bucket = bisect_left(sums, max(fraction * sums[-1], 1))
    return (bucket_start_ms(bucket) + bucket_start_ms(bucket + 1) - 1) // 2
