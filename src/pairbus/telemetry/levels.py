"""How much of what stands at this moment, from events that tell only of changes.

For gauges: pairings that are open, entities that are failed over, backlog queues that are
withdrawn. An event does not say which client it comes from, and clients may share an observer: of
those with the same primary, as many as are open can have an entity failed over, and none has when
the last one has closed. Knows no library for metrics.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Closed,
    Event,
    FailedBack,
    FailedOver,
    Paired,
)

_MOVING: Final = (Paired, FailedOver, FailedBack, BacklogWithdrawn, BacklogReadmitted, Closed)


class Level(Enum):
    PAIRINGS = auto()
    ENTITIES_FAILED_OVER = auto()
    QUEUES_WITHDRAWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    level: Level
    namespace: str
    name: str
    """The entity or the backlog queue; empty for pairings."""
    by: int


class Levels:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # any sender's thread may bring an event
        self._open: dict[str, int] = {}
        self._standing: dict[tuple[Level, str, str], int] = {}

    def moves(self, event: Event) -> list[Move]:
        """By how much which level moves. What a closed client still says moves nothing."""
        if not isinstance(event, _MOVING):
            return []
        with self._lock:
            match event:
                case Paired():
                    return self._opened(event.namespace)
                case FailedOver():
                    return self._step(Level.ENTITIES_FAILED_OVER, event.namespace, event.path, +1)
                case FailedBack():
                    return self._step(Level.ENTITIES_FAILED_OVER, event.namespace, event.path, -1)
                case BacklogWithdrawn():
                    queue = event.backlog_queue
                    return self._step(Level.QUEUES_WITHDRAWN, event.namespace, queue, +1)
                case BacklogReadmitted():
                    queue = event.backlog_queue
                    return self._step(Level.QUEUES_WITHDRAWN, event.namespace, queue, -1)
                case Closed():
                    return self._closed(event.namespace)

    def _opened(self, namespace: str) -> list[Move]:
        self._open[namespace] = self._open.get(namespace, 0) + 1
        return [Move(level=Level.PAIRINGS, namespace=namespace, name="", by=+1)]

    def _closed(self, namespace: str) -> list[Move]:
        before = self._open.get(namespace, 0)
        self._open[namespace] = max(0, before - 1)
        moves = []
        if before:
            moves.append(Move(level=Level.PAIRINGS, namespace=namespace, name="", by=-1))
        for level, of, name in list(self._standing):
            moves += self._step(level, of, name, 0)  # down to as many as are still open
        return moves

    def _step(self, level: Level, namespace: str, name: str, by: int) -> list[Move]:
        key = (level, namespace, name)
        before = self._standing.get(key, 0)
        # One, too, for an observer that came after the pairing: it was not told of it.
        after = min(max(0, before + by), self._open.get(namespace, 1))
        if after == before:
            return []
        if after:
            self._standing[key] = after
        else:
            del self._standing[key]
        return [Move(level=level, namespace=namespace, name=name, by=after - before)]
