"""The record of a run, one line for each thing that happened to a message; and the verdict on it.

Every process of a run writes a file of its own. A line is complete when `write` returns: it is then
with the operating system, and a kill of the process does not lose it. So an attempt is written
before the send begins, and an outcome only when it is known. The last line of a killed process may
be cut off; a reader ignores it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pairbus.demo.account import Account, Verdict


class Fact(StrEnum):
    """What happened, from the sender's or the receiver's point of view."""

    ATTEMPT = "attempt"
    """A send begins."""
    ACKNOWLEDGED = "acknowledged"
    """The send returned."""
    FAILED = "failed"
    """The send raised an error that says that no namespace has the message."""
    UNKNOWN = "unknown"
    """The send raised another error: a namespace may have the message."""
    RECEIVED = "received"
    DAMAGED = "damaged"
    """Received, but its body or its properties differ from what was sent."""
    DEAD_LETTERED = "dead-lettered"
    """Found in a dead-letter queue at the end."""
    LEFT = "left"
    """Found in a queue at the end: in the backlog, or not yet received."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    fact: Fact
    message_id: str
    at: float
    """Seconds since the epoch."""
    session_id: str = ""
    order: int = 0
    """The place of the message in its session, as its sender counted."""


class Journal:
    """Writes the file of one process. Several threads may use it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, fact: Fact, message_id: str, session_id: str = "", order: int = 0) -> None:
        line = f"{fact} {self._clock():.6f} {message_id} {order} {session_id}\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


def read_journals(folder: Path) -> Iterator[JournalEntry]:
    for path in sorted(folder.glob("*.journal")):
        for line in path.read_text("utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                fact, at, message_id, order, session_id = line.rstrip("\n").split(" ", 4)
                yield JournalEntry(Fact(fact), message_id, float(at), session_id, int(order))


def judge(entries: Iterable[JournalEntry], *, late_seconds: float) -> Verdict:
    """Adds the entries of all journals to an account, and returns its verdict."""
    account = Account()
    for entry in entries:
        id_ = entry.message_id
        match entry.fact:
            case Fact.ATTEMPT:
                account.attempt(id_)
            case Fact.ACKNOWLEDGED:
                account.acknowledge(id_, at=entry.at)
            case Fact.FAILED:
                account.fail(id_)
            case Fact.RECEIVED | Fact.DAMAGED:
                account.deliver(
                    id_,
                    at=entry.at,
                    session_id=entry.session_id,
                    order=entry.order,
                    is_damaged=entry.fact is Fact.DAMAGED,
                )
                account.attempt_removal(id_)
                # A receiver may be killed at any time, so nobody knows how long it has held it.
                account.give_back(id_)
            case Fact.DEAD_LETTERED | Fact.LEFT:
                account.find(id_, is_dead=entry.fact is Fact.DEAD_LETTERED)
            case Fact.UNKNOWN:
                pass  # as if the send had never returned
    return account.verdict(late_seconds=late_seconds)
