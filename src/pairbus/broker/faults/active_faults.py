"""What the active faults do to a client: asked at every turn while there are any, and only then.

Pure decisions: from the list of active faults, what the client wants, and the dice of each fault.
Nothing is done here; connections, links, the disk and the port are told what to do and do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final, TypeVar

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.faults.kinds import (
    CannotContact,
    CannotManage,
    CannotReceive,
    CannotSend,
    ClockJump,
    CutAfterAccept,
    CutInTransfer,
    DelayedVisibility,
    DiskFull,
    Error,
    Fault,
    Hang,
    Mode,
    Operation,
    Restart,
    Slow,
    SlowDisk,
    Throttle,
    Unreachable,
)
from pairbus.broker.faults.schedule import Entry

_SERVER_BUSY: Final = "com.microsoft:server-busy"
_DETACH_FORCED: Final = "amqp:link:detach-forced"
_CANNOT: Final[dict[type, Operation]] = {
    CannotSend: Operation.SEND,
    CannotReceive: Operation.RECEIVE,
    CannotManage: Operation.MANAGE,
}

F = TypeVar("F", bound=Fault)


class Silence(Enum):
    """How nothing is answered."""

    DROP = auto()
    """What is said is lost."""
    HANG = auto()
    """What is said waits."""


class ActiveFaults:
    """The faults that are active. A new one is made at each change."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)

    # requests

    def refusal(self, entity: str, *operations: Operation) -> AmqpError | None:
        """Of one request, which may count as several operations. Throws the dice."""
        for entry in self._entries:
            fault = entry.fault
            if isinstance(fault, Throttle):
                error = AmqpError(_SERVER_BUSY, f"the server is busy: wait a bit ({_by(entry)})")
                is_meant, probability = _meets(fault.on, operations), 1 - fault.rate
            elif isinstance(fault, Error):
                error = AmqpError(fault.condition, f"{fault.description} ({_by(entry)})")
                is_meant, probability = _meets(fault.on, operations), fault.probability
            elif isinstance(fault, CannotSend | CannotReceive | CannotManage):
                operation = _CANNOT[type(fault)]
                error = AmqpError(fault.condition, f"cannot {operation} ({_by(entry)})")
                is_meant, probability = operation in operations, 1.0
            else:
                continue
            if is_meant and entry.covers(entity) and entry.strikes(probability):
                return error
        return None

    def refusal_of_link(self, entity: str, *, receives: bool) -> AmqpError | None:
        """Why there may be no link to the entity, not even one that is there already."""
        for entry in self._entries:
            fault = entry.fault
            if isinstance(fault, CannotReceive):
                if receives and entry.covers(entity):
                    entry.hits += 1
                    return AmqpError(fault.condition, f"cannot receive ({_by(entry)})")
            elif entry.scope is not None and _closes(fault) and entry.covers(entity):
                entry.hits += 1
                return AmqpError(_DETACH_FORCED, f"{entity!r} cannot be reached ({_by(entry)})")
        return None

    @property
    def is_cut_off(self) -> bool:
        """Whoever speaks loses the connection."""
        return any(self._of(CannotContact, None))

    @property
    def is_refusing(self) -> bool:
        """The port is closed."""
        return any(
            entry.scope is None and _closes(entry.fault)
            for entry in self._entries
            if not isinstance(entry.fault, CannotContact)
        )

    # bytes: of the whole namespace if the entity is None, else of what that entity is told

    def silence(self, entity: str | None) -> Silence | None:
        for _, fault in self._of(Unreachable, entity):
            if fault.mode is Mode.DROP:
                return Silence.DROP
        return Silence.HANG if any(self._of(Hang, entity)) else None

    def is_slow(self, entity: str | None) -> bool:
        return any(self._of(Slow, entity))

    def latency_seconds(self, entity: str | None) -> float:
        return sum(
            entry.draw_seconds(fault.latency_seconds, fault.distribution)
            for entry, fault in self._of(Slow, entity)
            if fault.latency_seconds
        )

    def transmission_seconds(self, entity: str | None, size_bytes: int) -> float:
        """How long so many bytes take on the line."""
        rates = [
            fault.bytes_per_second
            for _, fault in self._of(Slow, entity)
            if fault.bytes_per_second is not None
        ]
        return size_bytes / min(rates) if rates else 0.0

    # messages

    def visible_at_ms(self, entity: str, *, now_ms: int) -> int | None:
        """When a message that is sent now may be seen; None: now."""
        delays = []
        for entry, fault in self._of_any(DelayedVisibility, entity):
            entry.hits += 1
            delays.append(fault.delay_seconds)
        return now_ms + int(max(delays) * 1000) if delays else None

    def cuts_after_accept(self, entity: str) -> bool:
        return any(
            entry.strikes(fault.probability)
            for entry, fault in self._of_any(CutAfterAccept, entity)
        )

    def cuts_in_transfer(self, entity: str) -> bool:
        return any(
            entry.strikes(fault.probability) for entry, fault in self._of_any(CutInTransfer, entity)
        )

    # the namespace

    @property
    def has_disk_faults(self) -> bool:
        return any(self._of(DiskFull, None)) or any(self._of(SlowDisk, None))

    def is_disk_full(self) -> bool:
        full = [entry for entry, _ in self._of(DiskFull, None)]
        for entry in full:
            entry.hits += 1
        return bool(full)

    def commit_seconds(self) -> float:
        return sum(
            entry.draw_seconds(fault.latency_seconds, fault.distribution)
            for entry, fault in self._of(SlowDisk, None)
        )

    @property
    def clock_offset_seconds(self) -> float:
        return sum(fault.offset_seconds for _, fault in self._of(ClockJump, None))

    # which

    def _of(self, kind: type[F], entity: str | None) -> Iterator[tuple[Entry, F]]:
        """Those of the namespace alone, or those of the entity alone."""
        for entry in self._entries:
            fault = entry.fault
            if (
                isinstance(fault, kind)
                and (entry.scope is None) is (entity is None)
                and (entity is None or entry.covers(entity))
            ):
                yield entry, fault

    def _of_any(self, kind: type[F], entity: str) -> Iterator[tuple[Entry, F]]:
        """Those of the entity and those of the namespace."""
        for entry in self._entries:
            fault = entry.fault
            if isinstance(fault, kind) and entry.covers(entity):
                yield entry, fault


def _closes(fault: Fault) -> bool:
    """It allows no link or connection to what it is for."""
    return isinstance(fault, Restart | CannotContact) or (
        isinstance(fault, Unreachable) and fault.mode is Mode.REFUSE
    )


def _meets(some: Sequence[Operation], others: Sequence[Operation]) -> bool:
    return any(operation in others for operation in some)


def _by(entry: Entry) -> str:
    """In every error that we make up: whoever reads a log must see that it was asked for."""
    return f"fault {entry.id} on demand: {entry.fault.kind}"
