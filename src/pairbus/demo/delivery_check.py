"""The account of the demo: what was sent, and what arrived where, by message id.

A message to a queue has to arrive in one place, one to a topic in each of its subscriptions. It is
*lost* if its send has returned and a place never had it. It is *duplicated* if a place stored it
twice, which shows in two sequence numbers, or handed it out again after it was settled. One that
is handed out again because its receiver's answer was lost in a crash is neither: it is the same
stored message, under the same number, and was not settled.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entity's account, or the sum of all."""

    sent: int = 0
    """Messages whose send has returned."""
    delivered: int = 0
    """Those of them that have arrived wherever they had to."""
    duplicated: int = 0
    """Copies too many, in all places together."""
    raised: int = 0
    """Calls that raised; their messages were sent again, under the same id."""
    repeated: int = 0
    """Handed out again, because a crash came before they were settled."""
    late: int = 0
    """Given out before, without reaching the receiver: they came when that lock had run out."""
    strange: int = 0
    """Arrived, and were never sent by us."""

    @property
    def lost(self) -> int:
        return self.sent - self.delivered

    @property
    def is_whole(self) -> bool:
        return not self.lost and not self.duplicated

    def __str__(self) -> str:
        return (
            f"LEDGER sent={self.sent} delivered={self.delivered} "
            f"lost={self.lost} duplicated={self.duplicated}"
        )


def total(lines: Iterable[Line]) -> Line:
    sums: Counter[str] = Counter()
    for line in lines:
        for name in Line.__slots__:
            sums[name] += getattr(line, name)
    return Line(**sums)


class Account:
    """Many threads write into it."""

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        """`places`: of each entity, where its messages arrive."""
        self._places = {entity: tuple(where) for entity, where in places.items()}
        self._begun: defaultdict[str, set[str]] = defaultdict(set)
        self._sent: defaultdict[str, set[str]] = defaultdict(set)
        self._raised: Counter[str] = Counter()
        self._arrived: defaultdict[str, dict[str, set[int]]] = defaultdict(dict)
        self._settled: defaultdict[str, set[int]] = defaultdict(set)
        self._again: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._settled_again: Counter[str] = Counter()
        self._lock = threading.Lock()

    # --- of a sender ------------------------------------------------------------------------------

    def begins(self, entity: str, message_id: str) -> None:
        """Before the call: a receiver may be quicker than its return."""
        with self._lock:
            self._begun[entity].add(message_id)

    def sent(self, entity: str, message_id: str) -> None:
        with self._lock:
            self._sent[entity].add(message_id)

    def raised(self, entity: str) -> None:
        with self._lock:
            self._raised[entity] += 1

    # --- of a receiver ----------------------------------------------------------------------------

    def arrived(
        self, place: str, message_id: str, sequence_number: int, *, is_late: bool = False
    ) -> None:
        """`is_late`: the broker has given it out before."""
        with self._lock:
            numbers = self._arrived[place].setdefault(message_id, set())
            if sequence_number in self._settled[place]:
                self._settled_again[place] += 1
            elif sequence_number in numbers:
                self._again[place] += 1
            elif is_late:
                self._late[place] += 1
            numbers.add(sequence_number)

    def settled(self, place: str, sequence_number: int) -> None:
        """The answer to the settlement has come: it must not be handed out again."""
        with self._lock:
            self._settled[place].add(sequence_number)

    # --- the account ------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """How many have arrived so far, over all places: it grows, or nothing comes any more."""
        with self._lock:
            return sum(map(len, self._arrived.values()))

    def line(self, entity: str) -> Line:
        with self._lock:
            return self._line(entity)

    def lines(self) -> dict[str, Line]:
        with self._lock:
            return {entity: self._line(entity) for entity in self._places}

    def missing(self, entity: str) -> dict[str, list[str]]:
        """The ids that a place should have had and has not, by place."""
        with self._lock:
            missing = {
                place: sorted(self._sent[entity] - self._arrived[place].keys())
                for place in self._places[entity]
            }
        return {place: ids for place, ids in missing.items() if ids}

    def _line(self, entity: str) -> Line:
        begun, sent, places = self._begun[entity], self._sent[entity], self._places[entity]
        delivered = set(sent)
        duplicated = strange = 0
        for place in places:
            arrived = self._arrived[place]
            delivered &= arrived.keys()
            copies = sum(len(numbers) - 1 for key, numbers in arrived.items() if key in begun)
            duplicated += copies + self._settled_again[place]
            strange += len(arrived.keys() - begun)
        return Line(
            sent=len(sent),
            delivered=len(delivered),
            duplicated=duplicated,
            raised=self._raised[entity],
            repeated=sum(self._again[place] for place in places),
            late=sum(self._late[place] for place in places),
            strange=strange,
        )
