"""Reading an entity by sequence number, without locking or changing anything.

The service answers one question: which messages are there from a number on. The end of the messages
is found by asking for single ones, with a number of requests that grows with the logarithm of their
number. Several requests are made at the same time, because the service may be far away. They are
retried when the connection is lost or the service is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self, TypeVar

from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.errors import PairbusError
from pairbus.fast.client import FastClient
from pairbus.fast.errors import SendIncomplete, SettleFailed
from pairbus.fast.message import SEQUENCE_END
from pairbus.fast.rows import MessageView, read, sequence_number, state

T = TypeVar("T")

PAGE: Final = 250
_PAGES_MAX: Final = 8
_PAGES_BYTES_MAX: Final = 8 * 1024 * 1024
"""The maximum number of pages, and about the maximum of bytes, that are requested at once."""
_PROBES: Final = 4
"""How many single messages are requested at once."""
_FIRST_STEP: Final = 512
ATTEMPTS: Final = 4
_PAUSE_SECONDS: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 30.0
_BUSY_SECONDS: Final = 10.0  # the pause that a busy service asks for


class PartitionedEntity(PairbusError):
    """The entity is partitioned: its sequence numbers are not in the order of arrival."""


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Sequence numbers from `start` up to, not including, `end`."""

    start: int
    end: int


def split(whole: SequenceRange, parts: int) -> list[SequenceRange]:
    """Parts of equal size; the number of messages in them may differ."""
    size = max(whole.end - whole.start, 0)
    parts = max(1, min(parts, size))
    edges = [whole.start + size * index // parts for index in range(parts + 1)]
    return [SequenceRange(low, high) for low, high in pairwise(edges)]


class Peeker:
    """For one entity. Owns its client, and closes it."""

    def __init__(
        self, client: FastClient, path: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.path = path
        self._client = client
        self._management = client.management(path)
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def pages(self, wanted: Sequence[tuple[int, int]]) -> list[list[bytes]]:
        """`wanted`: sequence numbers to start from, each with a count. Returns a page for each."""
        return with_retries(lambda: self._management.peek_all(wanted), sleep=self._sleep)

    def firsts_at(self, numbers: Sequence[int]) -> list[int | None]:
        """For each number, that of the first message at or after it; None if there is none."""
        pages = self.pages([(number, 1) for number in numbers])
        return [self._number(self._read(page[0])) if page else None for page in pages]

    def end(self, start: int, limit: int | None = None) -> int:
        """The number after the last message; `start` if there is none. See `all_from`."""
        found = self.all_from(start, limit)
        return start if found is None else found.end

    def all_from(self, start: int, limit: int | None = None) -> SequenceRange | None:
        """From the first message at or after `start` to the last one; None if there is none.

        With `limit`, at most that far from the first message.
        """
        [first] = self.firsts_at([start])
        if first is None:
            return None
        low, step = first + 1, _FIRST_STEP
        cap = None if limit is None else first + limit
        while cap is None or low < cap:
            probes = [low + step * 4**index for index in range(_PROBES)]
            if cap is not None:
                probes = sorted({min(probe, cap) for probe in probes})
            low, high = self._narrowed(low, probes)
            if high is not None:
                return SequenceRange(first, self._last_in(low, high))
            step *= 4**_PROBES
        return SequenceRange(first, cap)

    def _last_in(self, low: int, high: int) -> int:
        """There is a message right before `low`, and none at `high` or after it."""
        while low < high:
            steps = range(1, _PROBES + 1)
            probes = sorted({low + (high - low) * step // (_PROBES + 1) for step in steps})
            low, found = self._narrowed(low, probes)
            high = high if found is None else found
        return low

    def _narrowed(self, low: int, probes: Sequence[int]) -> tuple[int, int | None]:
        """There is a message right before `low`. Returns the number after the highest one that the
        probes show, and the lowest probe that has no message at or after it.
        """
        for probe, found in zip(probes, self.firsts_at(probes), strict=True):
            if found is None:
                return low, probe
            low = max(low, found + 1)
        return low, None

    def messages(self, numbers: SequenceRange, *, scheduled: bool) -> Iterator[MessageView]:
        """Returns the messages in the range, in order, except those that were received in the
        meantime.
        """
        at, count, length = numbers.start, 1, PAGE
        while at < numbers.end:
            starts = range(at, numbers.end, length)[:count]
            pages = self.pages([(start, min(length, numbers.end - start)) for start in starts])
            taken = length = min(PAGE, 2 * length)
            for start, page in zip(starts, pages, strict=True):
                if start > at:
                    # The service may shorten a page, so there may be messages in between.
                    length = taken
                    break
                if not page:
                    return
                taken = len(page)
                for data in page:
                    message = self._read(data)
                    number = self._number(message)
                    if number >= numbers.end:
                        return
                    if number < at:
                        continue  # the previous page had it as well
                    at = number + 1
                    if scheduled or state(message) != "scheduled":
                        yield message
            is_dense = at <= starts[-1] + 2 * PAGE  # otherwise pages would overlap
            size = max(1, sum(len(data) for page in pages for data in page) // len(pages))
            count = max(1, min(_PAGES_MAX, _PAGES_BYTES_MAX // size)) if is_dense else 1

    def has_active_before(self, end: int) -> bool:
        """Whether there is a message that can be received, or that another receiver has locked."""
        at, count = 0, 1
        while at < end:
            [found] = self.pages([(at, count)])
            count = PAGE
            for data in found:
                message = self._read(data)
                number = self._number(message)
                if number >= end:
                    return False
                if state(message) == "active":
                    return True
                at = number + 1
            if not found:
                return False
        return False

    def _read(self, data: bytes) -> MessageView:
        return read(data, entity=self.path)

    def _number(self, message: MessageView) -> int:
        number = sequence_number(message)
        if number >= SEQUENCE_END:
            raise PartitionedEntity(
                f"{self.path!r} is a partitioned entity. Its sequence numbers are not in order, so "
                "receiveMode 'peek' cannot read it; use 'peekLock' or 'receiveAndDelete'"
            )
        return number


def with_retries(
    call: Callable[[], T],
    *,
    attempts: int = ATTEMPTS,
    pause_seconds: float = _PAUSE_SECONDS,
    sleep: Callable[[float], Any] = time.sleep,
) -> T:
    """Repeat the request, with growing pauses, if the connection is lost or the service is busy."""
    for _ in range(attempts - 1):
        try:
            return call()
        except SettleFailed:
            raise  # the other messages are settled, and must not be settled again
        except Exception as error:
            kind = kind_of(error.error if isinstance(error, SendIncomplete) else error)
            if kind not in (Kind.OUTAGE, Kind.THROTTLED):
                raise
            is_busy = kind is Kind.THROTTLED
            sleep(max(pause_seconds, _BUSY_SECONDS) if is_busy else pause_seconds)
            pause_seconds = min(pause_seconds * 2, _PAUSE_SECONDS_MAX)
    return call()
