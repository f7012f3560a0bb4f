"""Reading an entity by sequence number, without locking or changing anything.

The service answers one question: which messages are there from a number on. The end of the messages
is found by asking for single ones, with a number of requests that grows with the logarithm of their
number. Requests are retried when the connection is lost or the service is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self, TypeVar

from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.errors import PairbusError
from pairbus.fast.client import FastClient
from pairbus.fast.errors import SendIncomplete, SettleFailed
from pairbus.fast.rows import MessageView, read, sequence_number, state

T = TypeVar("T")

PAGE: Final = 250
ATTEMPTS: Final = 4
_PAUSE_SECONDS: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 30.0
_BUSY_SECONDS: Final = 10.0  # the pause that a busy service asks for
_SEQUENCE_END: Final = 2**48
"""Above this, the upper bits are the partition number of a partitioned entity."""


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

    def page(self, number: int, count: int) -> list[bytes]:
        return with_retries(lambda: self._management.peek(number, count), sleep=self._sleep)

    def first_at(self, number: int) -> int | None:
        """The sequence number of the first message that has this or a higher one."""
        found = self.page(number, 1)
        return self._number(self._read(found[0])) if found else None

    def end(self, start: int, limit: int | None = None) -> int:
        """The number after the last message; `start` if there is none.

        With `limit`, at most that far from the first message.
        """
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
        """There is a message right before `low`, and none at `high` or after it."""
        while low < high:
            middle = (low + high) // 2
            found = self.first_at(middle)
            if found is None:
                high = middle
            else:
                low = found + 1
        return low

    def messages(self, numbers: SequenceRange, *, scheduled: bool) -> Iterator[MessageView]:
        """Returns the messages in the range, in order, except those that were received in the
        meantime.
        """
        at = numbers.start
        while at < numbers.end:
            found = self.page(at, min(PAGE, numbers.end - at))
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
        """Whether there is a message that can be received, or that another receiver has locked."""
        at = 0
        while at < end:
            found = self.page(at, PAGE)
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
        if number >= _SEQUENCE_END:
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
