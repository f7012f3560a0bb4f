"""Looking through an entity by sequence number, without locking or changing anything.

The service answers one question: which messages are there from a number on. Where the messages end
is found by asking for single ones, in a number of questions that grows with the logarithm of how
many there are. Lost connections and a busy service are asked again, a few times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self, TypeVar

from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.errors import PairbusError
from pairbus.fast.errors import SettleFailed
from pairbus.fast.management import Management
from pairbus.fast.rows import Read, read, sequence_number, state
from pairbus.spark.options import ReadOptions

T = TypeVar("T")

CHUNK: Final = 250
ATTEMPTS: Final = 4
_SEQUENCE_END: Final = 2**48
"""From there on the upper bits name a partition of a partitioned entity."""


class PartitionedEntity(PairbusError):
    """Its sequence numbers are not in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Range:
    """Sequence numbers, without the last."""

    start: int
    end: int


def split(whole: Range, parts: int) -> list[Range]:
    """As even as numbers are; what is in them may not be."""
    size = max(whole.end - whole.start, 0)
    parts = max(1, min(parts, size))
    edges = [whole.start + size * index // parts for index in range(parts + 1)]
    return [Range(low, high) for low, high in pairwise(edges)]


class Peeker:
    """For one entity, on a connection of its own."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = options.path
        self._sleep = sleep
        self._client = options.address.client(timeout_seconds=options.timeout_seconds)
        self._management: Management = self._client.management(options.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def chunk(self, number: int, count: int) -> list[bytes]:
        return with_retries(lambda: self._management.peek(number, count), sleep=self._sleep)

    def first_at(self, number: int) -> int | None:
        """The sequence number of the first message that has this or a higher one."""
        found = self.chunk(number, 1)
        return self._number(self._read(found[0])) if found else None

    def end(self, start: int, limit: int | None = None) -> int:
        """One behind the last message, or so far from the first that no more than `limit` are
        between; `start`, if there is none."""
        first = self.first_at(start)
        if first is None:
            return start
        low, step = first + 1, 512
        cap = None if limit is None else first + limit
        while True:
            if cap is not None and low >= cap:
                return cap
            probe = low + step if cap is None else min(low + step, cap)
            found = self.first_at(probe)
            if found is None:
                return self._last_in(low, probe)
            low, step = found + 1, step * 2

    def _last_in(self, low: int, high: int) -> int:
        """Nothing is at `high` or behind, and something right before `low`."""
        while low < high:
            middle = (low + high) // 2
            found = self.first_at(middle)
            if found is None:
                high = middle
            else:
                low = found + 1
        return low

    def messages(self, numbers: Range, *, scheduled: bool) -> Iterator[Read]:
        """Those in the range, in order. One that was received meanwhile is gone."""
        at = numbers.start
        while at < numbers.end:
            found = self.chunk(at, min(CHUNK, numbers.end - at))
            if not found:
                return
            for data in found:
                message = self._read(data)
                number = self._number(message)
                if number >= numbers.end:
                    return
                at = number + 1
                if scheduled or state(message) != "scheduled":
                    yield message

    def has_active_before(self, end: int) -> bool:
        """Whether one is there that could be received, unless somebody has it locked."""
        at = 0
        while at < end:
            found = self.chunk(at, CHUNK)
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

    def _read(self, data: bytes) -> Read:
        return read(data, entity=self.path)

    def _number(self, message: Read) -> int:
        number = sequence_number(message)
        if number >= _SEQUENCE_END:
            raise PartitionedEntity(
                f"{self.path!r} is a partitioned entity, whose sequence numbers tell no order: it "
                "cannot be read with receiveMode 'peek'; use 'peekLock' or 'receiveAndDelete'"
            )
        return number


def with_retries(call: Callable[[], T], *, sleep: Callable[[float], Any] = time.sleep) -> T:
    """A few times, where the connection was lost or the service is busy."""
    pause = 0.5
    for attempt in range(ATTEMPTS):
        try:
            return call()
        except SettleFailed:
            raise  # the rest of it is done, and must not be done again
        except Exception as error:
            kind = kind_of(error)
            if attempt + 1 == ATTEMPTS or kind not in (Kind.OUTAGE, Kind.THROTTLED):
                raise
            # The service asks for ten seconds when it is too busy.
            sleep(10.0 if kind is Kind.THROTTLED else pause)
            pause *= 2
    raise AssertionError("every attempt returns or raises")
