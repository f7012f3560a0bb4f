"""The account of all messages of a run, and the verdict, in the terms of Jepsen's total-queue
checker.

Senders and receivers write here what they attempted and what was confirmed. `pairbus verify`, the
demo and the tests with kills and power cuts share it. Pure: it knows no clock and no broker.

* *lost*: acknowledged, but never received, and found nowhere. The one thing that must not happen.
* *unexpected*: received, although nobody tried to send it, or its send failed for certain.
* *damaged*: its body or its properties differ from what was sent.
* *recovered*: received, although its sender got no answer. That is allowed.
* *duplicated*: delivered more than once. Allowed if a lock was lost: by a crash, or by its expiry.
* *stored twice*: delivered with two sequence numbers, so there are two copies of it.
* *repeated*: delivered again while a receiver had it, with no crash in between.
* *returned*: delivered or found after its removal was confirmed.
* *torn*: a batch of which only a part exists.
* *out of order*: received after a later message of its session and its sender. Failover does not
  keep order, so this is counted, and is no failure.
* *late*: received more than some seconds after its send returned.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

_UNKNOWN: Final = 0
"""Instead of a sequence number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    attempts: int
    acknowledged: int
    failed: int
    """Sends that failed for certain."""
    unknown: int
    """Sends that raised an error which leaves the outcome open, or never returned."""
    received: int
    """Different messages that were received, each in all of its places."""
    removed: int
    """Different messages whose removal was confirmed."""
    lost: tuple[str, ...]
    unexpected: tuple[str, ...]
    damaged: tuple[str, ...]
    duplicated: int
    recovered: int
    dead_lettered: int
    left: int
    """Messages that are still in the backlog, or in their queue."""
    out_of_order: int
    late: int
    longest_gap_seconds: float
    """The longest time without a send that returned."""
    stored_twice: tuple[str, ...]
    repeated: tuple[str, ...]
    returned: tuple[str, ...]
    torn: tuple[tuple[str, ...], ...]

    @property
    def is_valid(self) -> bool:
        return not (self.lost or self.unexpected or self.damaged)

    @property
    def is_exact(self) -> bool:
        """Valid, and the broker has also kept what it promises about locks, copies and batches."""
        wrong = (self.stored_twice, self.repeated, self.returned, self.torn)
        return self.is_valid and not any(wrong)

    def __str__(self) -> str:
        lines = []
        for each in fields(self):
            value = getattr(self, each.name)
            some = f" {list(value[:5])}" if isinstance(value, tuple) and value else ""
            count = len(value) if isinstance(value, tuple) else value
            lines.append(f"{each.name:>19}: {count}{some}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Place:
    """What a queue or a subscription did with the messages, by their ids."""

    first_received_at: dict[str, float] = field(default_factory=dict)
    numbers: dict[str, set[int]] = field(default_factory=dict)
    """Sequence numbers."""
    removed_numbers: dict[str, set[int]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    """A receiver began to remove them."""
    left: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    stored_twice: list[str] = field(default_factory=list)
    """Once for each surplus copy."""
    repeated: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    @property
    def found(self) -> set[str]:
        return self.taken | self.left | self.dead

    @property
    def seen(self) -> set[str]:
        return self.found | self.first_received_at.keys()

    def count_copy(self, id_: str, sequence_number: int) -> None:
        numbers = self.numbers.setdefault(id_, set())
        if numbers and sequence_number not in numbers:
            self.stored_twice.append(id_)
        numbers.add(sequence_number)


class Account:
    """Safe to use from many threads. Times are in seconds, and may be left out."""

    def __init__(self, places: Sequence[str] = ("",)) -> None:
        """`places`: where each message must arrive: a queue, or all subscriptions of a topic."""
        self._attempts: set[str] = set()
        self._acknowledged_at: dict[str, float] = {}
        self._failed: set[str] = set()
        self._damaged: set[str] = set()
        self._batches: list[tuple[str, ...]] = []
        self._sessions: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._places = {place: _Place() for place in places}
        self._lock = threading.Lock()

    # --- senders ----------------------------------------------------------------------------------

    def attempt(self, *ids: str) -> None:
        """Call it before the send. Of several messages, all must arrive, or none."""
        with self._lock:
            self._attempts.update(ids)
            if len(ids) > 1:
                self._batches.append(ids)

    def acknowledge(self, *ids: str, at: float = 0.0) -> None:
        with self._lock:
            self._acknowledged_at.update(dict.fromkeys(ids, at))

    def fail(self, id_: str) -> None:
        """Its send failed for certain: no namespace has it."""
        with self._lock:
            self._failed.add(id_)

    # --- receivers --------------------------------------------------------------------------------

    def deliver(
        self,
        id_: str,
        *,
        place: str = "",
        sequence_number: int = _UNKNOWN,
        at: float = 0.0,
        session_id: str = "",
        order: int = 0,
        is_damaged: bool = False,
    ) -> None:
        """`order`: its place in its session, as its sender counted."""
        with self._lock:
            one = self._places[place]
            if is_damaged:
                self._damaged.add(id_)
            if id_ in one.first_received_at:
                one.duplicated.add(id_)
            else:
                one.first_received_at[id_] = at
            if one.removed_numbers.get(id_, set()) & {sequence_number, _UNKNOWN}:
                one.returned.append(id_)
            elif id_ in one.held and sequence_number in one.numbers[id_]:
                one.repeated.append(id_)
            one.count_copy(id_, sequence_number)
            one.held.add(id_)
            if session_id:
                self._sessions[session_id].append((at, order))

    def attempt_removal(self, id_: str, place: str = "") -> None:
        with self._lock:
            self._places[place].taken.add(id_)

    def acknowledge_removal(
        self, id_: str, place: str = "", *, sequence_number: int | None = None
    ) -> None:
        """Without a sequence number, all copies are removed."""
        with self._lock:
            one = self._places[place]
            known = one.numbers.get(id_, {_UNKNOWN})
            removed = known if sequence_number is None else {sequence_number}
            one.removed_numbers.setdefault(id_, set()).update(removed)

    def give_back(self, id_: str, place: str = "") -> None:
        with self._lock:
            self._places[place].held.discard(id_)

    def restart(self) -> None:
        """The broker died, and all its locks with it."""
        with self._lock:
            for place in self._places.values():
                place.held.clear()

    def find(
        self,
        id_: str,
        *,
        place: str = "",
        sequence_number: int | None = None,
        is_dead: bool = False,
    ) -> None:
        """It is in a queue at the end, or in a dead-letter queue."""
        with self._lock:
            one = self._places[place]
            (one.dead if is_dead else one.left).add(id_)
            if sequence_number is not None:
                one.count_copy(id_, sequence_number)
            if id_ in one.removed_numbers:
                one.returned.append(id_)

    # --- what is known ----------------------------------------------------------------------------

    @property
    def attempts(self) -> set[str]:
        with self._lock:
            return set(self._attempts)

    @property
    def acknowledged(self) -> set[str]:
        with self._lock:
            return set(self._acknowledged_at)

    @property
    def attempted_removals(self) -> set[str]:
        with self._lock:
            return set().union(*(place.taken for place in self._places.values()))

    @property
    def acknowledged_removals(self) -> set[str]:
        with self._lock:
            return set().union(*(place.removed_numbers for place in self._places.values()))

    def missing(self) -> dict[str, list[str]]:
        """The acknowledged messages that a place has not got, by place."""
        with self._lock:
            found = {
                name: sorted(self._acknowledged_at.keys() - place.found)
                for name, place in self._places.items()
            }
        return {name: ids for name, ids in found.items() if ids}

    def torn(self, seen: set[str]) -> list[tuple[str, ...]]:
        """The batches of which only a part is among these messages."""
        with self._lock:
            return _torn(self._batches, seen)

    def verdict(self, remaining: Iterable[str] = (), *, late_seconds: float = math.inf) -> Verdict:
        """`remaining`: what is in the broker at the end, read undisturbed."""
        for id_ in remaining:
            self.find(id_)
        with self._lock:
            places = list(self._places.values())
            attempts, acknowledged = set(self._attempts), set(self._acknowledged_at)
            failed = (self._failed & attempts) - acknowledged
            seen = _union(place.seen for place in places)
            received = [place.first_received_at.keys() for place in places]
            anywhere = _union(received)
            dead = _union(place.dead for place in places) - anywhere
            left = _union(place.left for place in places) - anywhere - dead
            return Verdict(
                attempts=len(attempts),
                acknowledged=len(acknowledged & attempts),
                failed=len(failed),
                unknown=len(attempts - acknowledged - failed),
                received=len(set(received[0]).intersection(*received[1:])),
                removed=len(_union(place.removed_numbers for place in places)),
                lost=tuple(sorted(_union(acknowledged - place.found for place in places))),
                unexpected=tuple(sorted((seen - attempts) | (seen & failed))),
                damaged=tuple(sorted(self._damaged)),
                duplicated=len(_union(place.duplicated for place in places)),
                recovered=len((seen & attempts) - acknowledged - failed),
                dead_lettered=len(dead),
                left=len(left),
                out_of_order=sum(map(_out_of_order, self._sessions.values())),
                late=len(_union(self._late(place, late_seconds) for place in places)),
                longest_gap_seconds=_longest_gap(self._acknowledged_at.values()),
                stored_twice=tuple(sorted(_union(place.stored_twice for place in places))),
                repeated=tuple(sorted(_union(place.repeated for place in places))),
                returned=tuple(sorted(_union(place.returned for place in places))),
                torn=tuple(_torn(self._batches, seen)),
            )

    def _late(self, place: _Place, seconds: float) -> set[str]:
        if seconds == math.inf:
            return set()
        return {
            id_
            for id_, at in place.first_received_at.items()
            if at - self._acknowledged_at.get(id_, at) > seconds
        }

    @property
    def arrivals(self) -> int:
        """The number of different messages that have arrived, over all places."""
        with self._lock:
            return sum(len(place.first_received_at) for place in self._places.values())


def _torn(batches: Iterable[tuple[str, ...]], seen: set[str]) -> list[tuple[str, ...]]:
    return [ids for ids in batches if 0 < len(seen.intersection(ids)) < len(ids)]


def _union(sets: Iterable[Iterable[str]]) -> set[str]:
    return set().union(*sets)


def _longest_gap(times: Iterable[float]) -> float:
    pairs = itertools.pairwise(sorted(times))
    return max((later - earlier for earlier, later in pairs), default=0.0)


def _out_of_order(arrivals: list[tuple[float, int]]) -> int:
    """How many messages of a session arrived after a later one. Repeats do not count."""
    seen: set[int] = set()
    highest = wrong = 0
    for _, order in sorted(arrivals):
        if order not in seen:
            seen.add(order)
            wrong += order < highest
            highest = max(highest, order)
    return wrong
