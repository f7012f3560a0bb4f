"""What the active faults do to a client. Called for every request while a fault is active.

Pure decisions from the list of active faults, what the client asks for, and the random numbers of
each fault. This module only decides: connections, links, the disk and the port act on the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final, TypeVar

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.faults import kinds
from pairbus.broker.faults.kinds import Fault, Mode, Operation
from pairbus.broker.faults.schedule import RunningFault

_SERVER_BUSY: Final = "com.microsoft:server-busy"
_DETACH_FORCED: Final = "amqp:link:detach-forced"

F = TypeVar("F", bound=Fault)


class Silence(Enum):
    """Why a client gets no answer."""

    DROP = auto()
    """What it sends is lost."""
    HANG = auto()
    """What it sends waits."""


class ActiveFaults:
    """The faults that are active. Each change makes a new one."""

    def __init__(self, faults: Sequence[RunningFault]) -> None:
        self._faults = tuple(faults)

    # requests

    def refusal(self, entity: str, *operations: Operation) -> AmqpError | None:
        """Returns the error of one request, which may count as several operations. Uses the fault's
        random numbers.
        """
        for running in self._faults:
            fault = running.fault
            if isinstance(fault, kinds.Throttle):
                error = AmqpError(_SERVER_BUSY, f"the server is busy: wait a bit ({_by(running)})")
                is_meant, probability = _meets(fault.on, operations), 1 - fault.rate
            elif isinstance(fault, kinds.Error):
                error = AmqpError(fault.condition, f"{fault.description} ({_by(running)})")
                is_meant, probability = _meets(fault.on, operations), fault.probability
            elif isinstance(fault, kinds.Cannot):
                error = AmqpError(fault.condition, f"cannot {fault.operation} ({_by(running)})")
                is_meant, probability = fault.operation in operations, 1.0
            else:
                continue
            if is_meant and running.covers(entity) and running.strikes(probability):
                return error
        return None

    def refusal_of_link(self, entity: str, *, receives: bool) -> AmqpError | None:
        """Returns the error that closes, or refuses, every link to the entity."""
        for running in self._faults:
            fault = running.fault
            if isinstance(fault, kinds.CannotReceive):
                if receives and running.covers(entity):
                    running.hits += 1
                    return AmqpError(fault.condition, f"cannot receive ({_by(running)})")
            elif running.scope is not None and _closes(fault) and running.covers(entity):
                running.hits += 1
                return AmqpError(_DETACH_FORCED, f"{entity!r} cannot be reached ({_by(running)})")
        return None

    @property
    def is_cut_off(self) -> bool:
        """A client that sends anything loses its connection."""
        return any(self._of(kinds.CannotContact, None))

    @property
    def is_refusing(self) -> bool:
        """The port is closed."""
        return any(
            running.scope is None and _closes(running.fault)
            for running in self._faults
            if not isinstance(running.fault, kinds.CannotContact)
        )

    # bytes: of the whole namespace if the entity is None, else of that entity

    def silence(self, entity: str | None) -> Silence | None:
        for _, fault in self._of(kinds.Unreachable, entity):
            if fault.mode is Mode.DROP:
                return Silence.DROP
        return Silence.HANG if any(self._of(kinds.Hang, entity)) else None

    def is_slow(self, entity: str | None) -> bool:
        return any(self._of(kinds.Slow, entity))

    def latency_seconds(self, entity: str | None) -> float:
        return sum(
            running.draw_seconds(fault.latency_seconds, fault.distribution)
            for running, fault in self._of(kinds.Slow, entity)
            if fault.latency_seconds
        )

    def transmission_seconds(self, entity: str | None, size_bytes: int) -> float:
        """How long the bytes take at the limited bandwidth."""
        rates = [
            fault.bytes_per_second
            for _, fault in self._of(kinds.Slow, entity)
            if fault.bytes_per_second is not None
        ]
        return size_bytes / min(rates) if rates else 0.0

    # messages

    def visible_at_ms(self, entity: str, *, now_ms: int) -> int | None:
        """When a message that is sent now becomes visible. None: at once."""
        delays = []
        for running, fault in self._of_any(kinds.DelayedVisibility, entity):
            running.hits += 1
            delays.append(fault.delay_seconds)
        return now_ms + int(max(delays) * 1000) if delays else None

    def cuts_after_accept(self, entity: str) -> bool:
        return self._cuts(kinds.CutAfterAccept, entity)

    def cuts_in_transfer(self, entity: str) -> bool:
        return self._cuts(kinds.CutInTransfer, entity)

    def _cuts(self, kind: type[kinds.Cut], entity: str) -> bool:
        return any(
            running.strikes(fault.probability) for running, fault in self._of_any(kind, entity)
        )

    # the namespace

    @property
    def has_disk_faults(self) -> bool:
        return any(self._of(kinds.DiskFull, None)) or any(self._of(kinds.SlowDisk, None))

    def is_disk_full(self) -> bool:
        full = [running for running, _ in self._of(kinds.DiskFull, None)]
        for running in full:
            running.hits += 1
        return bool(full)

    def commit_seconds(self) -> float:
        return sum(
            running.draw_seconds(fault.latency_seconds, fault.distribution)
            for running, fault in self._of(kinds.SlowDisk, None)
        )

    @property
    def clock_offset_seconds(self) -> float:
        return sum(fault.offset_seconds for _, fault in self._of(kinds.ClockJump, None))

    # which

    def _of(self, kind: type[F], entity: str | None) -> Iterator[tuple[RunningFault, F]]:
        """Those of the namespace (None), or those of this entity alone."""
        for running in self._faults:
            fault = running.fault
            if (
                isinstance(fault, kind)
                and (running.scope is None) is (entity is None)
                and (entity is None or running.covers(entity))
            ):
                yield running, fault

    def _of_any(self, kind: type[F], entity: str) -> Iterator[tuple[RunningFault, F]]:
        """Those of the entity, and those of the whole namespace."""
        for running in self._faults:
            fault = running.fault
            if isinstance(fault, kind) and running.covers(entity):
                yield running, fault


def _closes(fault: Fault) -> bool:
    """Whether the fault allows no link or connection."""
    return isinstance(fault, kinds.Restart | kinds.CannotContact) or (
        isinstance(fault, kinds.Unreachable) and fault.mode is Mode.REFUSE
    )


def _meets(some: Sequence[Operation], others: Sequence[Operation]) -> bool:
    return any(operation in others for operation in some)


def _by(running: RunningFault) -> str:
    """Part of every simulated error: a log must show that the fault was intended."""
    return f"fault {running.id} on demand: {running.fault.kind}"
