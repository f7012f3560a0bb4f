"""What a task will tell when it is over: receipts, troubles, and which queues have nothing left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus.fast.message import Received
from pairbus.syphon.receipts import Collector, Outcome
from pairbus.syphon.restore import Restored

Pair = tuple[Received, Restored]
"""A message as it was received, and as it goes home."""


class Account:
    """Of one task, for all of its queues."""

    def __init__(self, collector: Collector, clock: Callable[[], float]) -> None:
        self.collector = collector
        self.now = clock
        """UTC, in seconds."""
        self.troubles: dict[str, str] = {}
        self.emptied: set[str] = set()

    @property
    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def tell(
        self,
        queue: str,
        path: str,
        outcome: Outcome,
        pairs: Sequence[tuple[Received, Restored | None]],
        reason: str = "",
    ) -> None:
        self.collector.add(queue, path, outcome, pairs, now_ms=self.now_ms, reason=reason)

    def doubt(self, queue: str, path: str, count: int) -> None:
        """So many may arrive twice; see `Collector.doubt`."""
        if count:
            self.collector.doubt(queue, path, count, now_ms=self.now_ms)

    def trouble(self, queue: str, error: BaseException) -> None:
        self.troubles[queue] = f"{type(error).__name__}: {error}"
