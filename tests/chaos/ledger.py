"""What was sent, what was received, and the verdict, in the terms of Jepsen's total-queue checker.

Senders and receivers of one run write here what they attempted and what was acknowledged; nothing
here touches a broker. *Unknown* is an attempt without an answer: it may or may not have happened.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Safe for many threads. A message is identified by its MessageId, unique in the run."""

    attempts: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    batches: list[tuple[str, ...]] = field(default_factory=list)
    """Messages of one batch: either all of them exist, or none."""
    attempted_removals: set[str] = field(default_factory=set)
    acknowledged_removals: set[str] = field(default_factory=set)
    deliveries: Counter[str] = field(default_factory=Counter)
    sequence_numbers: dict[str, set[int]] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    """Delivered although their removal had been acknowledged."""
    repeated: list[str] = field(default_factory=list)
    """Delivered twice by one broker process although no receiver returned them."""
    _held: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def attempt(self, *ids: str) -> None:
        with self._lock:
            self.attempts.update(ids)
            if len(ids) > 1:
                self.batches.append(ids)

    def acknowledge(self, *ids: str) -> None:
        with self._lock:
            self.acknowledged.update(ids)

    def deliver(self, id_: str, *, sequence_number: int) -> None:
        with self._lock:
            self.deliveries[id_] += 1
            self.sequence_numbers.setdefault(id_, set()).add(sequence_number)
            if id_ in self.acknowledged_removals:
                self.returned.append(id_)
            if id_ in self._held:
                self.repeated.append(id_)
            self._held.add(id_)

    def attempt_removal(self, id_: str) -> None:
        with self._lock:
            self.attempted_removals.add(id_)

    def acknowledge_removal(self, id_: str) -> None:
        with self._lock:
            self.acknowledged_removals.add(id_)

    def give_back(self, id_: str) -> None:
        with self._lock:
            self._held.discard(id_)

    def restart(self) -> None:
        """The broker died, and all its locks with it."""
        with self._lock:
            self._held.clear()

    def verdict(self, remaining: set[str]) -> Verdict:
        """`remaining`: what is in the broker at the end, read undisturbed."""
        seen = set(self.deliveries) | remaining
        return Verdict(
            attempts=len(self.attempts),
            acknowledged=len(self.acknowledged),
            removed=len(self.acknowledged_removals),
            lost=sorted(self.acknowledged - remaining - self.attempted_removals),
            unexpected=sorted(seen - self.attempts),
            returned=sorted({*self.returned, *(remaining & self.acknowledged_removals)}),
            duplicated=sum(count > 1 for count in self.deliveries.values()),
            repeated=sorted(self.repeated),
            stored_twice=sorted(id_ for id_, at in self.sequence_numbers.items() if len(at) > 1),
            torn=[ids for ids in self.batches if 0 < len(seen.intersection(ids)) < len(ids)],
            recovered=len((self.attempts - self.acknowledged) & seen),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    attempts: int
    acknowledged: int
    removed: int
    lost: list[str]
    unexpected: list[str]
    returned: list[str]
    duplicated: int
    """Delivered more than once: allowed after a crash, as the locks are gone. Counted only."""
    repeated: list[str]
    stored_twice: list[str]
    torn: list[tuple[str, ...]]
    """Batches of which a part exists."""
    recovered: int
    """Stored although the sender got no answer: allowed. Counted only."""

    @property
    def is_valid(self) -> bool:
        wrong = [self.lost, self.unexpected, self.returned, self.repeated, self.stored_twice]
        return not any(wrong) and not self.torn

    def __str__(self) -> str:
        lines = []
        for name in self.__slots__:
            value = getattr(self, name)
            some = f" {value[:5]}" if isinstance(value, list) and value else ""
            lines.append(f"{name:>13}: {len(value) if isinstance(value, list) else value}{some}")
        return "\n".join(lines)
