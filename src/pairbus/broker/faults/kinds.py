"""The faults there are: one frozen description each, checked when it is made.

A description says what goes wrong, for the namespace or for one entity, and for how long. It knows
nothing of when it starts or of who is hit. Durations are those of the broker's clock; latencies are
really waited for.
"""

# ruff: noqa: RUF009 - the functions called for defaults make fields, once for all.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, get_args

from pairbus.broker.entities.policies import Right
from pairbus.broker.faults.checks import CHECK, MAKE, choice, choices, number, path, text
from pairbus.errors import ConfigError

_SECONDS_MIN: Final = 0.001
_SECONDS_MAX: Final = 30 * 86_400
_LATENCY_SECONDS_MAX: Final = 3600
_CLOCK_SECONDS_MAX: Final = 3650 * 86_400
_BYTES_MAX: Final = 10**12
_TIMES_MAX: Final = 10**9
SEED_MAX: Final = 2**53
"""As far as a number of JSON is exact everywhere."""
INTERNAL_ERROR: Final = "amqp:internal-error"


class Operation(StrEnum):
    """What a client asks for, and a fault can refuse."""

    SEND = "send"
    """A message or a batch, also one that is scheduled over `$management`."""
    RECEIVE = "receive"
    """Credit for messages; and peeking, renewing and the like over `$management`."""
    SETTLE = "settle"
    """Complete, abandon, defer or dead-letter on the receiver's link."""
    ATTACH = "attach"
    """A new link."""
    MANAGEMENT = "management"
    """Any request to `<entity>/$management`."""
    MANAGE = "manage"
    """Administration over HTTP, and rules over AMQP."""


OPERATION_OF_RIGHT: Final = {
    Right.SEND: Operation.SEND,
    Right.LISTEN: Operation.RECEIVE,
    Right.MANAGE: Operation.MANAGE,
}
"""What a request to `$management` amounts to, by the claim that it needs."""


class Mode(StrEnum):
    """How an unreachable namespace is unreachable."""

    REFUSE = "refuse"
    """Connections are reset and new ones refused at once."""
    DROP = "drop"
    """Nothing is refused and nothing answered: what is sent is lost."""


class Distribution(StrEnum):
    """Of a latency. `latency_seconds` is the mean of each."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    """From nothing to twice the mean."""
    EXPONENTIAL = "exponential"
    """Mostly less than the mean, now and then several times that."""


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: ClassVar[str]
    """Its name in JSON, on the command line, and as a method of `broker.faults`."""
    is_for_entities: ClassVar[bool] = True

    entity: str | None = field(default=None, metadata={CHECK: path})
    """Whom it hits: a path, in any case of letters. What hits a topic hits its subscriptions, too.
    None: the whole namespace."""
    seconds: float | None = number(None, least=_SECONDS_MIN, most=_SECONDS_MAX)
    """For how long. None: until it is cleared."""
    seed: int | None = number(None, least=0, most=SEED_MAX, is_whole=True)
    """The same seed makes the same choices. None: by chance; the listing shows which it was."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            right = each.metadata[CHECK](value)
            if right is not None:
                raise ConfigError(f"{self.kind}: {each.name} is {value!r}, but must be {right}")
            if MAKE in each.metadata:
                object.__setattr__(self, each.name, each.metadata[MAKE](value))
        if self.entity is not None and not self.is_for_entities:
            raise ConfigError(
                f"{self.kind} concerns the whole namespace: leave out the entity {self.entity!r}"
            )
        problem = self._problem()
        if problem is not None:
            raise ConfigError(f"{self.kind}: {problem}")

    def _problem(self) -> str | None:
        """What is wrong between fields that are right each."""
        return None


@dataclass(frozen=True, slots=True)
class Unreachable(_Fault):
    """The datacenter is lost. For an entity: its links are closed, or nobody answers them."""

    kind: ClassVar[str] = "unreachable"
    mode: Mode = choice(Mode.REFUSE)


@dataclass(frozen=True, slots=True)
class Hang(_Fault):
    """What clients say is kept, and worked on only when the fault is over."""

    kind: ClassVar[str] = "hang"


@dataclass(frozen=True, slots=True)
class Throttle(_Fault):
    """What is asked of it is refused with server busy, but for the share `rate`."""

    kind: ClassVar[str] = "throttle"
    rate: float = number(0.0, least=0, most=1)
    """The share that gets through."""
    on: tuple[Operation, ...] = choices(
        Operation, Operation.SEND, Operation.MANAGEMENT, Operation.MANAGE
    )
    """Not `receive` unless asked for: a receiver of Python's SDK does not recover by itself when
    its link is closed with "server busy"."""


@dataclass(frozen=True, slots=True)
class Error(_Fault):
    """Any AMQP error."""

    kind: ClassVar[str] = "error"
    condition: str = text(INTERNAL_ERROR)
    description: str = text("a fault on demand")
    probability: float = number(1.0, least=0, most=1)
    times: int | None = number(None, least=1, most=_TIMES_MAX, is_whole=True)
    """After so many errors it is over."""
    on: tuple[Operation, ...] = choices(Operation, Operation.SEND)


@dataclass(frozen=True, slots=True)
class Slow(_Fault):
    """Everything a client says arrives late, in its order; and only so many bytes a second."""

    kind: ClassVar[str] = "slow"
    latency_seconds: float = number(0.0, least=0, most=_LATENCY_SECONDS_MAX)
    distribution: Distribution = choice(Distribution.CONSTANT)
    bytes_per_second: float | None = number(None, least=1, most=_BYTES_MAX)
    """Of each connection, in either direction. None: no bound."""

    def _problem(self) -> str | None:
        if self.latency_seconds or self.bytes_per_second is not None:
            return None
        return "give latency_seconds, bytes_per_second, or both"


@dataclass(frozen=True, slots=True)
class Restart(_Fault):
    """Links and connections are closed, with an error that says so; locks run on."""

    kind: ClassVar[str] = "restart"
    seconds: float | None = number(5.0, least=_SECONDS_MIN, most=_SECONDS_MAX)
    """Until it is back."""


@dataclass(frozen=True, slots=True)
class DelayedVisibility(_Fault):
    """Messages are acknowledged and durable, and appear later. They keep their delay when the
    fault is over."""

    kind: ClassVar[str] = "delayed_visibility"
    delay_seconds: float = number(900.0, least=_SECONDS_MIN, most=_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class CutAfterAccept(_Fault):
    """The message is stored, and the connection is cut before the sender is told."""

    kind: ClassVar[str] = "cut_after_accept"
    probability: float = number(1.0, least=0, most=1)
    times: int | None = number(None, least=1, most=_TIMES_MAX, is_whole=True)
    """After so many cuts it is over."""


@dataclass(frozen=True, slots=True)
class CutInTransfer(_Fault):
    """The connection is cut while a message arrives; nothing of it is stored."""

    kind: ClassVar[str] = "cut_in_transfer"
    probability: float = number(1.0, least=0, most=1)
    times: int | None = number(None, least=1, most=_TIMES_MAX, is_whole=True)
    """After so many cuts it is over."""


@dataclass(frozen=True, slots=True)
class CannotSend(_Fault):
    """Sends are refused; all else works."""

    kind: ClassVar[str] = "cannot_send"
    condition: str = text(INTERNAL_ERROR)


@dataclass(frozen=True, slots=True)
class CannotReceive(_Fault):
    """Nothing is given out; all else works."""

    kind: ClassVar[str] = "cannot_receive"
    condition: str = text(INTERNAL_ERROR)


@dataclass(frozen=True, slots=True)
class CannotManage(_Fault):
    """Administration is refused; sending and receiving work."""

    kind: ClassVar[str] = "cannot_manage"
    condition: str = text(INTERNAL_ERROR)


@dataclass(frozen=True, slots=True)
class CannotContact(_Fault):
    """Whoever speaks is cut off. The port stays open, for `/$faults` and `/$health`."""

    kind: ClassVar[str] = "cannot_contact"


@dataclass(frozen=True, slots=True)
class DiskFull(_Fault):
    """Nothing can be stored; all that needs to be is refused."""

    kind: ClassVar[str] = "disk_full"
    is_for_entities: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SlowDisk(_Fault):
    """Each commit takes that much longer."""

    kind: ClassVar[str] = "slow_disk"
    is_for_entities: ClassVar[bool] = False
    latency_seconds: float = number(1.0, least=_SECONDS_MIN, most=_LATENCY_SECONDS_MAX)
    distribution: Distribution = choice(Distribution.CONSTANT)


@dataclass(frozen=True, slots=True)
class ClockJump(_Fault):
    """The namespace's clock is off by so much, and jumps back when the fault is over."""

    kind: ClassVar[str] = "clock_jump"
    is_for_entities: ClassVar[bool] = False
    offset_seconds: float = number(0.0, least=-_CLOCK_SECONDS_MAX, most=_CLOCK_SECONDS_MAX)

    def _problem(self) -> str | None:
        return None if self.offset_seconds else "give offset_seconds, forward or (negative) back"


Fault = (
    Unreachable
    | Hang
    | Throttle
    | Error
    | Slow
    | Restart
    | DelayedVisibility
    | CutAfterAccept
    | CutInTransfer
    | CannotSend
    | CannotReceive
    | CannotManage
    | CannotContact
    | DiskFull
    | SlowDisk
    | ClockJump
)

KINDS: Final[Mapping[str, type[Fault]]] = MappingProxyType(
    {kind.kind: kind for kind in get_args(Fault)}
)
