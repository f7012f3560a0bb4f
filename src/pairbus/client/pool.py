"""Which connections to backlog queues there are, idle or lent: the books of both shells' lanes.

A sender of the SDK must not be used by two at once, and opening one takes half a second, so open
ones are kept. One per backlog queue stays ready; those that an outage's load has added go when they
have been idle for a while. Opens, closes and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.sdk import private as internals

LANES_PER_QUEUE_MAX = 8
IDLE_SECONDS_MAX = 60.0

Sender = TypeVar("Sender")


@dataclass(slots=True, eq=False)
class Lane(Generic[Sender]):
    queue: str
    sender: Sender
    is_fresh: bool = True
    """Nothing has been sent on it yet: a failure is the queue's, not that of a link gone stale."""
    idle_since: float = 0.0


@dataclass(slots=True)
class _Shelf(Generic[Sender]):
    idle: list[Lane[Sender]] = field(default_factory=list)
    lent: set[Lane[Sender]] = field(default_factory=set)

    @property
    def has_room(self) -> bool:
        return len(self.idle) + len(self.lent) < LANES_PER_QUEUE_MAX


class Shelves(Generic[Sender]):
    def __init__(self, make: Callable[[str], Sender]) -> None:
        self._make = make
        self._shelves: dict[str, _Shelf[Sender]] = {}
        self.limits = (internals.MESSAGE_BYTES_ASSUMED, internals.MESSAGE_BYTES_ASSUMED)
        """The largest message and the largest batch, in bytes, as the last new lane was told."""

    def take(self, queue: str) -> Lane[Sender] | None:
        """The lane that was idle for the shortest time, or a new one; None: all are lent."""
        shelf = self._shelf(queue)
        if shelf.idle:
            lane = shelf.idle.pop()
        elif shelf.has_room:
            lane = Lane(queue, self._make(queue))
        else:
            return None
        shelf.lent.add(lane)
        return lane

    def take_open(self, queue: str) -> Lane[Sender] | None:
        """The same, but one that is open, as far as is known; None: there is none."""
        shelf = self._shelves.get(queue)
        if shelf is None or not shelf.idle or not internals.is_usable(shelf.idle[-1].sender):
            return None
        lane = shelf.idle.pop()
        shelf.lent.add(lane)
        return lane

    def clear(self, queue: str) -> list[Lane[Sender]]:
        """The idle lanes of a queue, to be closed: something is wrong with one like them."""
        shelf = self._shelf(queue)
        idle, shelf.idle = shelf.idle, []
        return idle

    def put_back(self, lane: Lane[Sender], *, is_usable: bool, now: float) -> None:
        shelf = self._shelves.get(lane.queue) or self._shelf(lane.queue)
        shelf.lent.discard(lane)
        if is_usable:
            if lane.is_fresh:
                lane.is_fresh = False
                self.limits = internals.link_limits(lane.sender)
            lane.idle_since = now
            shelf.idle.append(lane)

    def has_ready(self, queue: str) -> bool:
        """Whether a lane is open, or in use and so about to be."""
        shelf = self._shelf(queue)
        return bool(shelf.lent) or any(internals.is_attached(x.sender) for x in shelf.idle)

    def trim(self, *, keep: frozenset[str], now: float) -> list[Lane[Sender]]:
        """What has been idle for long, to be closed, but for one lane to each queue of `keep`."""
        gone: list[Lane[Sender]] = []
        for queue, shelf in self._shelves.items():
            spared = 1 if queue in keep else 0
            # Lent from the other end, so these are the oldest.
            while len(shelf.idle) > spared and shelf.idle[0].idle_since < now - IDLE_SECONDS_MAX:
                gone.append(shelf.idle.pop(0))
        return gone

    def empty(self) -> tuple[list[Lane[Sender]], list[Lane[Sender]]]:
        """All that are idle, to be closed, and all that are lent, to be cut."""
        shelves = self._shelves.values()
        idle = [lane for shelf in shelves for lane in shelf.idle]
        lent = [lane for shelf in shelves for lane in shelf.lent]
        self._shelves = {}
        return idle, lent

    def _shelf(self, queue: str) -> _Shelf[Sender]:
        shelf = self._shelves.get(queue)
        if shelf is None:
            shelf = self._shelves[queue] = _Shelf()
        return shelf


class AllBusy(OperationTimeoutError):
    """Says nothing of the queue: too much was to be diverted at once."""

    def __init__(self, queue: str, timeout: float) -> None:
        super().__init__(
            message=f"all {LANES_PER_QUEUE_MAX} connections to backlog queue {queue!r} were busy "
            f"for {timeout:g} seconds; send less at once, or larger batches"
        )
