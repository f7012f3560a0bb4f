"""The verdict on a run, in the terms of Jepsen's total-queue checker. Pure: entries in, counts out.

* *lost*: acknowledged, but never received and found nowhere. The one thing that must not happen.
* *unexpected*: received, although nobody tried to send it, or its send failed for certain.
* *recovered*: received, although its sender got no answer. That is allowed.
* *duplicated*: received more than once. That is allowed unless duplicate detection is on.
* *out of order*: received after a later message of its session and its sender. Failover does not
  keep order, so this is counted, and is no failure.
* *late*: received more than `late_seconds` after its send returned.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pairbus.verify.journal import Entry, Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    attempts: int
    acknowledged: int
    failed: int
    """Sends that failed for certain."""
    unknown: int
    """Sends that raised an error which leaves the outcome open, or never returned."""
    received: int
    """Different messages that were received."""
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

    @property
    def is_valid(self) -> bool:
        return not (self.lost or self.unexpected or self.damaged)


@dataclass(slots=True)
class _Message:
    facts: set[Fact] = field(default_factory=set)
    received_at: list[float] = field(default_factory=list)
    acknowledged_at: float | None = None

    def is_late(self, seconds: float) -> bool:
        if self.acknowledged_at is None or not self.received_at:
            return False
        return min(self.received_at) - self.acknowledged_at > seconds


def judge(entries: Iterable[Entry], *, late_seconds: float) -> Verdict:
    messages: defaultdict[str, _Message] = defaultdict(_Message)
    arrivals: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for entry in entries:
        message = messages[entry.message_id]
        message.facts.add(entry.fact)
        if entry.fact in (Fact.RECEIVED, Fact.DAMAGED):
            message.received_at.append(entry.at)
            if entry.session_id:
                arrivals[entry.session_id].append((entry.at, entry.order))
        elif entry.fact is Fact.ACKNOWLEDGED:
            message.acknowledged_at = entry.at
    found: defaultdict[str, list[str]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for message_id, message in messages.items():
        for name in _names(message, late_seconds):
            counts[name] += 1
            if name in ("lost", "unexpected", "damaged"):
                found[name].append(message_id)
    return Verdict(
        attempts=counts["attempts"],
        acknowledged=counts["acknowledged"],
        failed=counts["failed"],
        unknown=counts["unknown"],
        received=counts["received"],
        lost=tuple(sorted(found["lost"])),
        unexpected=tuple(sorted(found["unexpected"])),
        damaged=tuple(sorted(found["damaged"])),
        duplicated=counts["duplicated"],
        recovered=counts["recovered"],
        dead_lettered=counts["dead_lettered"],
        left=counts["left"],
        out_of_order=sum(map(_out_of_order, arrivals.values())),
        late=counts["late"],
        longest_gap_seconds=_longest_gap(messages.values()),
    )


def _names(message: _Message, late_seconds: float) -> Iterable[str]:
    """The counts to which a message belongs."""
    facts = message.facts
    is_acknowledged = Fact.ACKNOWLEDGED in facts
    was_received = bool(message.received_at)
    was_found = was_received or bool(facts & {Fact.DEAD_LETTERED, Fact.LEFT})
    has_failed = Fact.FAILED in facts and not is_acknowledged
    if Fact.ATTEMPT in facts:
        yield "attempts"
        if is_acknowledged:
            yield "acknowledged"
        elif has_failed:
            yield "failed"
        else:
            yield "unknown"
    if was_received:
        yield "received"
    if is_acknowledged and not was_found:
        yield "lost"
    if was_found and (Fact.ATTEMPT not in facts or has_failed):
        yield "unexpected"
    elif was_found and not is_acknowledged:
        yield "recovered"
    if Fact.DAMAGED in facts:
        yield "damaged"
    if len(message.received_at) > 1:
        yield "duplicated"
    if not was_received and Fact.DEAD_LETTERED in facts:
        yield "dead_lettered"
    elif not was_received and Fact.LEFT in facts:
        yield "left"
    if message.is_late(late_seconds):
        yield "late"


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


def _longest_gap(messages: Iterable[_Message]) -> float:
    times = sorted(m.acknowledged_at for m in messages if m.acknowledged_at is not None)
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)
