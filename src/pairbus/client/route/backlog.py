"""Which backlog queues may be used, and which of them takes an entity's messages.

A queue that fails leaves the rotation, rests, and is looked at again; whoever looks tells how it
went. Knows neither entities nor how a queue is reached. `choose` is handed in: the dice of the
shell, or a test's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

REST_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    error: BaseException
    """The latest: of the send that failed, or of the last look at the queue."""
    at: float
    retry_at: float
    """When the queue is looked at again (or was, if the answer is still out)."""


class Rotation:
    def __init__(
        self,
        queues: Sequence[str],
        *,
        choose: Callable[[Sequence[str]], str],
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        self._choose = choose
        self._rest_seconds = rest_seconds
        self._turns = dict.fromkeys(queues, 0)
        self._in_rotation = tuple(self._turns)
        self._withdrawn: dict[str, Withdrawal] = {}
        self._asked: set[str] = set()
        self.last_error: BaseException | None = None
        """The latest failure of any backlog queue."""

    @property
    def in_rotation(self) -> tuple[str, ...]:
        return self._in_rotation

    @property
    def withdrawn(self) -> dict[str, Withdrawal]:
        return dict(self._withdrawn)

    def has(self, queue: str) -> bool:
        """Is it in the rotation?"""
        return queue in self._turns and queue not in self._withdrawn

    def turn(self, queue: str) -> int:
        """How often it came back. What began in an earlier turn tells nothing of this one."""
        return self._turns[queue]

    def holds(self, queue: str, turn: int) -> bool:
        """Is it in the rotation, and has been ever since this turn began?"""
        return self._turns.get(queue) == turn and queue not in self._withdrawn

    def pick(self) -> str | None:
        """One of those in the rotation; None when none is left."""
        return self._choose(self._in_rotation) if self._in_rotation else None

    def withdraw(self, queue: str, error: BaseException, *, now: float) -> bool:
        """Take it out. False if it was out already; then its rest does not begin anew."""
        assert queue in self._turns, f"{queue!r} is none of the backlog queues {[*self._turns]}"
        self.last_error = error
        earlier = self._withdrawn.get(queue)
        if earlier is not None:
            self._withdrawn[queue] = replace(earlier, error=error)
            return False
        self._withdrawn[queue] = Withdrawal(error=error, at=now, retry_at=now + self._rest_seconds)
        self._in_rotation = tuple(filter(self.has, self._turns))
        return True

    def readmit(self, queue: str) -> bool:
        """Take it back. False if it was not out."""
        if self._withdrawn.pop(queue, None) is None:
            return False
        self._asked.discard(queue)
        self._turns[queue] += 1
        self._in_rotation = tuple(filter(self.has, self._turns))
        return True

    def due(self, *, now: float) -> list[str]:
        """Whose rest is over. Each is named once, until `probe_failed` or `readmit` says more."""
        rested = [q for q, w in self._withdrawn.items() if w.retry_at <= now]
        due = [queue for queue in rested if queue not in self._asked]
        self._asked.update(due)
        return due

    def probe_failed(self, queue: str, error: BaseException, *, now: float) -> None:
        """It rests again. Nothing happens if it came back meanwhile."""
        earlier = self._withdrawn.get(queue)
        if earlier is None:
            return
        self.last_error = error
        self._asked.discard(queue)
        self._withdrawn[queue] = replace(earlier, error=error, retry_at=now + self._rest_seconds)

    @property
    def next_due(self) -> float | None:
        waiting = (w.retry_at for q, w in self._withdrawn.items() if q not in self._asked)
        return min(waiting, default=None)
