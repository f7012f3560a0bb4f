"""Which backlog queues are in the rotation, and which of them takes an entity's messages.

A queue that fails leaves the rotation, rests, and is probed; the shell reports the outcome. This
module knows neither entities nor how a queue is reached. `choose` picks one of several: at random
in the shells, under the test's control in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pairbus.client.route.status import WithdrawnQueue
from pairbus.errors import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    error: BaseException
    """The latest error: of the failed send, or of the last probe."""
    at: float
    is_busy: bool
    """The queue works, but the service has asked the client to wait."""
    retry_at: float
    """When the queue is probed again, or was probed if the outcome is still unknown."""


class Rotation:
    def __init__(
        self, queues: Sequence[str], *, choose: Callable[[Sequence[str]], str], rest_seconds: float
    ) -> None:
        self._choose = choose
        self._rest_seconds = rest_seconds
        self._generations = dict.fromkeys(queues, 0)
        self._in_rotation = tuple(self._generations)
        self._withdrawn: dict[str, Withdrawal] = {}
        self._probing: set[str] = set()
        self.last_error: BaseException | None = None
        """The latest failure of any backlog queue."""

    @property
    def in_rotation(self) -> tuple[str, ...]:
        return self._in_rotation

    def status(self, *, date: Callable[[float], datetime]) -> tuple[WithdrawnQueue, ...]:
        """The queues that are out of the rotation. `date` turns a moment of `now` into a date."""
        return tuple(
            WithdrawnQueue(
                queue=queue,
                error=one_line(each.error),
                since=date(each.at),
                retry_at=date(each.retry_at),
            )
            for queue, each in self._withdrawn.items()
        )

    def has(self, queue: str) -> bool:
        """Whether the queue is in the rotation."""
        return queue in self._generations and queue not in self._withdrawn

    def is_failing(self, queue: str) -> bool:
        """Whether the queue is out of the rotation, and not only because it is busy."""
        withdrawal = self._withdrawn.get(queue)
        return withdrawal is not None and not withdrawal.is_busy

    def generation(self, queue: str) -> int:
        """How often the queue came back. The result of a send from an earlier generation does not
        count.
        """
        return self._generations[queue]

    def pick(self) -> str | None:
        """Returns one of the queues in the rotation, or None if none is left."""
        return self._choose(self._in_rotation) if self._in_rotation else None

    def withdraw(
        self, queue: str, error: BaseException, *, now: float, busy_seconds: float | None = None
    ) -> bool:
        """Take a queue out of the rotation. Returns False if it was already out; its rest is not
        extended.

        `busy_seconds`: the queue is only busy, for this long. A busy queue is better than none: the
        last one in the rotation stays, and busy ones return when the last one fails.
        """
        assert queue in self._generations, (
            f"{queue!r} is not one of the backlog queues {[*self._generations]}"
        )
        self.last_error = error
        is_busy = busy_seconds is not None
        earlier = self._withdrawn.get(queue)
        if earlier is not None:
            is_busy = is_busy and earlier.is_busy
            self._withdrawn[queue] = replace(earlier, error=error, is_busy=is_busy)
            return False
        if is_busy and self._in_rotation == (queue,):
            return False
        rest_seconds = self._rest_seconds if busy_seconds is None else busy_seconds
        self._withdrawn[queue] = Withdrawal(
            error=error, at=now, is_busy=is_busy, retry_at=now + rest_seconds
        )
        self._in_rotation = tuple(filter(self.has, self._generations))
        if not self._in_rotation:
            for other in [name for name, each in self._withdrawn.items() if each.is_busy]:
                self.readmit(other)
        return True

    def readmit(self, queue: str) -> bool:
        """Take a queue back into the rotation. Returns False if it was not out."""
        if self._withdrawn.pop(queue, None) is None:
            return False
        self._probing.discard(queue)
        self._generations[queue] += 1
        self._in_rotation = tuple(filter(self.has, self._generations))
        return True

    def take_due(self, *, now: float) -> list[str]:
        """Returns the queues to probe now. Each is returned once, until `probe_failed` or
        `readmit`.
        """
        rested = [queue for queue, w in self._withdrawn.items() if w.retry_at <= now]
        due = [queue for queue in rested if queue not in self._probing]
        self._probing.update(due)
        return due

    def probe_failed(self, queue: str, error: BaseException, *, now: float) -> None:
        """Let the queue rest again. No effect if it has come back in the meantime."""
        earlier = self._withdrawn.get(queue)
        if earlier is None:
            return
        self.last_error = error
        self._probing.discard(queue)
        self._withdrawn[queue] = replace(
            earlier, error=error, is_busy=False, retry_at=now + self._rest_seconds
        )

    @property
    def next_due(self) -> float | None:
        waiting = (w.retry_at for q, w in self._withdrawn.items() if q not in self._probing)
        return min(waiting, default=None)
