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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pairbus.demo.account import Account


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
    """The accounts of several entities. Safe to use from many threads."""

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        """`places`: for each entity, the queue or subscriptions where its messages arrive."""
        self._accounts = {entity: Account(where) for entity, where in places.items()}
        self._entity_of = {place: entity for entity, where in places.items() for place in where}
        self._ids: dict[tuple[str, int], str] = {}
        """The message id by place and sequence number."""
        self._raised: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._lock = threading.Lock()

    # --- called by senders ------------------------------------------------------------------------

    def sending(self, entity: str, message_id: str) -> None:
        """Call it before the send: the message may arrive before the send returns."""
        self._accounts[entity].attempt(message_id)

    def sent(self, entity: str, message_id: str) -> None:
        self._accounts[entity].acknowledge(message_id)

    def raised(self, entity: str) -> None:
        with self._lock:
            self._raised[entity] += 1

    # --- called by receivers ----------------------------------------------------------------------

    def arrived(
        self, place: str, message_id: str, sequence_number: int, *, is_late: bool = False
    ) -> None:
        """`is_late`: the broker has delivered it before, by its delivery count."""
        entity = self._entity_of[place]
        with self._lock:
            is_new = (place, sequence_number) not in self._ids
            self._ids[place, sequence_number] = message_id
            self._late[entity] += is_new and is_late
        account = self._accounts[entity]
        account.deliver(message_id, place=place, sequence_number=sequence_number)
        account.attempt_removal(message_id, place)

    def settled(self, place: str, sequence_number: int) -> None:
        """The settlement was confirmed, so the message must not be delivered again."""
        with self._lock:
            message_id = self._ids[place, sequence_number]
        self._accounts[self._entity_of[place]].acknowledge_removal(
            message_id, place, sequence_number=sequence_number
        )

    # --- the result -------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """The number of ids that have arrived so far, over all places."""
        return sum(account.arrivals for account in self._accounts.values())

    def verdict(self, entity: str) -> Verdict:
        account = self._accounts[entity]
        sent, delivered = account.delivered
        return Verdict(
            sent=sent,
            delivered=delivered,
            duplicated=account.copies,
            raised=self._raised[entity],
            repeated=account.repeats,
            late=self._late[entity],
            unexpected=account.strangers,
        )

    def verdicts(self) -> dict[str, Verdict]:
        return {entity: self.verdict(entity) for entity in self._accounts}

    def missing(self, entity: str) -> dict[str, list[str]]:
        """The ids that did not arrive, by place."""
        return self._accounts[entity].missing()
