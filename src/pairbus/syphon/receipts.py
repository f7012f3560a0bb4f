"""What became of backlog messages, in rows that add up: the rows of the ledger.

A task counts what it has settled (`Collector`), per backlog queue, destination and outcome, and
hands over a few rows where there were thousands of messages. The rows' columns are plain data here
(`COLUMNS`), for whoever makes a Spark or an Arrow schema of them. Times are UTC in milliseconds.
Knows neither Spark nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Protocol

from pairbus.syphon.restore import Restored
from pairbus.syphon.waits import add_waits, count_waits

Key = tuple[str, int, str, str, str, str]


class Outcome(Enum):
    BROUGHT_HOME = "brought_home"  # the primary has acknowledged it, and it has left the backlog
    WAITING = "waiting"  # released; it is counted again each time that it is looked at
    DEAD_LETTERED = "dead_lettered"  # dead-lettered in the backlog queue
    EXPIRED = "expired"  # its time to live has ended in the backlog


class Delivered(Protocol):
    """What is asked of a message as it was received, where it could not be restored."""

    @property
    def data(self) -> bytes: ...
    @property
    def enqueued_time(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    run: str
    """Of one syphon, from its start to its stop."""
    round: int
    queue: str
    """The backlog queue."""
    path: str
    """The destination; empty where none could be read."""
    outcome: Outcome
    reason: str = ""
    """Why it waits or was buried; empty for the others."""
    count: int = 0
    bytes: int = 0
    at_ms: int
    """When the last of them was settled."""
    first_enqueued_ms: int | None = None
    """When the backlog took the first of them, and the last; None where the broker did not say."""
    last_enqueued_ms: int | None = None
    longest_wait_ms: int = 0
    """From when the backlog took it to when it was settled."""
    duplicates_possible: int = 0
    """How many messages may arrive, or have arrived, a second time."""
    waits: tuple[int, ...] = ()
    """How many waited how long, in the buckets of `waits.py`."""

    @property
    def key(self) -> Key:
        """What tells rows apart that cannot be added."""
        return self.run, self.round, self.queue, self.path, self.outcome.value, self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    """string, int (4 bytes), long (8), timestamp (UTC, milliseconds), longs (a list of them)."""
    is_nullable: bool = False

    @property
    def field(self) -> str:
        """Of a Receipt, where times are numbers."""
        return f"{self.name}_ms" if self.type == "timestamp" else self.name


COLUMNS: Final = (
    Column(name="run", type="string"),
    Column(name="round", type="int"),
    Column(name="queue", type="string"),
    Column(name="path", type="string"),
    Column(name="outcome", type="string"),
    Column(name="reason", type="string"),
    Column(name="count", type="long"),
    Column(name="bytes", type="long"),
    Column(name="at", type="timestamp"),
    Column(name="first_enqueued", type="timestamp", is_nullable=True),
    Column(name="last_enqueued", type="timestamp", is_nullable=True),
    Column(name="longest_wait_ms", type="long"),
    Column(name="duplicates_possible", type="long"),
    Column(name="waits", type="longs"),
)
"""The fields of a receipt, in their order."""


class Collector:
    """Counts for one task in one round."""

    def __init__(self, *, run: str, round: int) -> None:
        self._run = run
        self._round = round
        self._receipts: dict[Key, Receipt] = {}

    def add(
        self,
        queue: str,
        path: str,
        outcome: Outcome,
        pairs: Sequence[tuple[Delivered, Restored | None]],
        *,
        now_ms: int,
        reason: str = "",
    ) -> None:
        """Messages that were settled together, as received and as restored, if they could be."""
        enqueued = [at for pair in pairs if (at := _enqueued_ms(*pair)) is not None]
        sizes = [
            len(delivered.data) if restored is None else restored.size
            for delivered, restored in pairs
        ]
        first_ms = min(enqueued, default=None)
        self._keep(
            Receipt(
                run=self._run,
                round=self._round,
                queue=queue,
                path=path,
                outcome=outcome,
                reason=reason,
                count=len(pairs),
                bytes=sum(sizes),
                at_ms=now_ms,
                first_enqueued_ms=first_ms,
                last_enqueued_ms=max(enqueued, default=None),
                longest_wait_ms=0 if first_ms is None else max(now_ms - first_ms, 0),
                waits=count_waits([now_ms - at for at in enqueued]),
            )
        )

    def doubt(self, queue: str, path: str, count: int, *, now_ms: int) -> None:
        """So many messages may arrive a second time: nobody knows whether they were taken, or they
        were and could not be settled. `path` is empty where it is not known whose they are."""
        self._keep(
            Receipt(
                run=self._run,
                round=self._round,
                queue=queue,
                path=path,
                outcome=Outcome.BROUGHT_HOME,
                at_ms=now_ms,
                duplicates_possible=count,
            )
        )

    def receipts(self) -> list[Receipt]:
        return list(self._receipts.values())

    def _keep(self, receipt: Receipt) -> None:
        known = self._receipts.get(receipt.key)
        self._receipts[receipt.key] = receipt if known is None else _sum(known, receipt)


def _enqueued_ms(delivered: Delivered, restored: Restored | None) -> int | None:
    return _milliseconds(delivered.enqueued_time) if restored is None else restored.enqueued_ms


def merged(receipts: Iterable[Receipt], *, across_rounds: bool = False) -> list[Receipt]:
    """One receipt for all that tell of the same; across rounds, under the latest one's number."""
    sums: dict[Key, Receipt] = {}
    for receipt in receipts:
        key = replace(receipt, round=0).key if across_rounds else receipt.key
        known = sums.get(key)
        sums[key] = receipt if known is None else _sum(known, receipt)
    return list(sums.values())


def _sum(one: Receipt, other: Receipt) -> Receipt:
    return replace(
        one,
        round=max(one.round, other.round),
        count=one.count + other.count,
        bytes=one.bytes + other.bytes,
        at_ms=max(one.at_ms, other.at_ms),
        first_enqueued_ms=_either(min, one.first_enqueued_ms, other.first_enqueued_ms),
        last_enqueued_ms=_either(max, one.last_enqueued_ms, other.last_enqueued_ms),
        longest_wait_ms=max(one.longest_wait_ms, other.longest_wait_ms),
        duplicates_possible=one.duplicates_possible + other.duplicates_possible,
        waits=add_waits(one.waits, other.waits),
    )


def _either(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


# -- rows -------------------------------------------------------------------------------------


def row(receipt: Receipt) -> tuple[Any, ...]:
    """Its values in the order of COLUMNS: times as datetimes, the outcome as text."""
    return tuple(_OUT[column.type](getattr(receipt, column.field)) for column in COLUMNS)


def from_row(values: Mapping[str, Any]) -> Receipt:
    """The inverse of `row`, by the columns' names."""
    given = {column.field: _IN[column.type](values[column.name]) for column in COLUMNS}
    return Receipt(**given | {"outcome": Outcome(given["outcome"])})


def _same(value: Any) -> Any:
    return value


def _text(value: str | Outcome) -> str:
    return value.value if isinstance(value, Outcome) else value


def _datetime(time_ms: int | None) -> datetime | None:
    # Not from a float: a millisecond more or less would be a difference.
    return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)


def _milliseconds(time: datetime | None) -> int | None:
    if time is None:
        return None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_OUT: Final[dict[str, Callable[[Any], Any]]] = {
    "string": _text,
    "int": _same,
    "long": _same,
    "timestamp": _datetime,
    "longs": list,
}
_IN: Final[dict[str, Callable[[Any], Any]]] = _OUT | {"timestamp": _milliseconds, "longs": tuple}
