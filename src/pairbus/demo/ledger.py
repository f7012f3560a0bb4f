"""The demo's ledger: an account of the messages of each entity, and what it counts.

A message to a queue must arrive in one place, a message to a topic in each of its subscriptions. If
a crash loses the receiver's settlement, the message is delivered again. That is not a duplicate: it
is the same stored message, with the same sequence number, and it was not settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pairbus.demo.account import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """The counts of one entity, or the sum of several."""

    sent: int = 0
    """Messages whose send returned."""
    delivered: int = 0
    """Sent messages that arrived in all of their places."""
    duplicated: int = 0
    """Stored twice by a place, or delivered again after they were settled."""
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


def total(lines: Iterable[LedgerLine]) -> LedgerLine:
    sums: Counter[str] = Counter()
    for line in lines:
        for name in LedgerLine.__slots__:
            sums[name] += getattr(line, name)
    return LedgerLine(**sums)


class Ledger:
    """Senders and receivers write into the accounts, from many threads."""

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        """`places`: for each entity, the queue or subscriptions where its messages arrive."""
        self.accounts = {entity: Account(where) for entity, where in places.items()}
        self.raised: Counter[str] = Counter()
        """By entity, like the next one. Each entity has one sender."""
        self.late: Counter[str] = Counter()

    def line(self, entity: str) -> LedgerLine:
        verdict = self.accounts[entity].verdict()
        copies = {*verdict.stored_twice, *verdict.returned} - {*verdict.unexpected}
        return LedgerLine(
            sent=verdict.acknowledged,
            delivered=verdict.acknowledged - len(verdict.lost),
            duplicated=len(copies),
            raised=self.raised[entity],
            repeated=len(verdict.repeated),
            late=self.late[entity],
            unexpected=len(verdict.unexpected),
        )

    def lines(self) -> dict[str, LedgerLine]:
        return {entity: self.line(entity) for entity in self.accounts}

    def missing(self) -> dict[str, list[str]]:
        """The ids that did not arrive, by place."""
        found: dict[str, list[str]] = {}
        for account in self.accounts.values():
            found |= account.missing()
        return found
