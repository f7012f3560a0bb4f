"""Checks by message id that every message that was sent arrived exactly once.

A message to a queue must arrive in one place, a message to a topic in each of its subscriptions.

* It is *lost* if its send returned and one of its places never received it.
* It is *duplicated* if a place stored it twice, which shows in two sequence numbers, or delivered
  it again after it was settled.
* If a crash loses the receiver's settlement, the message is delivered again. That is not a
duplicate: it is the same stored message, with the same sequence number, and it was not settled.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The counts of one entity, or the sum of several."""

    sent: int = 0
    """Messages whose send returned."""
    delivered: int = 0
    """Sent messages that arrived in all of their places."""
    duplicated: int = 0
    """Surplus copies, in all places together."""
    raised: int = 0
    """Sends that raised. Their messages were sent again, with the same id."""
    repeated: int = 0
    """Delivered again because a crash came before they were settled."""
    late: int = 0
    """Delivered before without reaching the receiver, and again after that lock had expired."""
    unexpected: int = 0
    """Arrived, although the demo did not send them."""

    @property
    def lost(self) -> int:
        return self.sent - self.delivered

    @property
    def is_ok(self) -> bool:
        return not self.lost and not self.duplicated

    def __str__(self) -> str:
        return (
            f"LEDGER sent={self.sent} delivered={self.delivered} "
            f"lost={self.lost} duplicated={self.duplicated}"
        )


def total(verdicts: Iterable[Verdict]) -> Verdict:
    sums: Counter[str] = Counter()
    for verdict in verdicts:
        for name in Verdict.__slots__:
            sums[name] += getattr(verdict, name)
    return Verdict(**sums)


class DeliveryCheck:
    """Records sends and arrivals. Safe to use from many threads."""

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        """`places`: for each entity, the queue or subscriptions where its messages arrive."""
        self._places = {entity: tuple(where) for entity, where in places.items()}
        self._started: defaultdict[str, set[str]] = defaultdict(set)
        self._sent: defaultdict[str, set[str]] = defaultdict(set)
        self._raised: Counter[str] = Counter()
        self._arrived: defaultdict[str, dict[str, set[int]]] = defaultdict(dict)
        self._settled: defaultdict[str, set[int]] = defaultdict(set)
        self._repeated: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._after_settlement: Counter[str] = Counter()
        self._lock = threading.Lock()

    # --- called by senders ------------------------------------------------------------------------

    def sending(self, entity: str, message_id: str) -> None:
        """Call it before the send: the message may arrive before the send returns."""
        with self._lock:
            self._started[entity].add(message_id)

    def sent(self, entity: str, message_id: str) -> None:
        with self._lock:
            self._sent[entity].add(message_id)

    def raised(self, entity: str) -> None:
        with self._lock:
            self._raised[entity] += 1

    # --- called by receivers ----------------------------------------------------------------------

    def arrived(
        self, place: str, message_id: str, sequence_number: int, *, is_late: bool = False
    ) -> None:
        """`is_late`: the broker has delivered it before, by its delivery count."""
        with self._lock:
            numbers = self._arrived[place].setdefault(message_id, set())
            if sequence_number in self._settled[place]:
                self._after_settlement[place] += 1
            elif sequence_number in numbers:
                self._repeated[place] += 1
            elif is_late:
                self._late[place] += 1
            numbers.add(sequence_number)

    def settled(self, place: str, sequence_number: int) -> None:
        """The settlement was confirmed, so the message must not be delivered again."""
        with self._lock:
            self._settled[place].add(sequence_number)

    # --- the result -------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """The number of ids that have arrived so far, over all places."""
        with self._lock:
            return sum(map(len, self._arrived.values()))

    def verdict(self, entity: str) -> Verdict:
        with self._lock:
            return self._verdict(entity)

    def verdicts(self) -> dict[str, Verdict]:
        with self._lock:
            return {entity: self._verdict(entity) for entity in self._places}

    def missing(self, entity: str) -> dict[str, list[str]]:
        """The ids that did not arrive, by place."""
        with self._lock:
            missing = {
                place: sorted(self._sent[entity] - self._arrived[place].keys())
                for place in self._places[entity]
            }
        return {place: ids for place, ids in missing.items() if ids}

    def _verdict(self, entity: str) -> Verdict:
        started, sent, places = self._started[entity], self._sent[entity], self._places[entity]
        delivered = set(sent)
        duplicated = unexpected = 0
        for place in places:
            arrived = self._arrived[place]
            delivered &= arrived.keys()
            copies = sum(len(numbers) - 1 for key, numbers in arrived.items() if key in started)
            duplicated += copies + self._after_settlement[place]
            unexpected += len(arrived.keys() - started)
        return Verdict(
            sent=len(sent),
            delivered=len(delivered),
            duplicated=duplicated,
            raised=self._raised[entity],
            repeated=sum(self._repeated[place] for place in places),
            late=sum(self._late[place] for place in places),
            unexpected=unexpected,
        )
