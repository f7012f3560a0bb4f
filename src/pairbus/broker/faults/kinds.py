"""The kinds of faults: one frozen description each, checked when it is made.

A description says what goes wrong, for the namespace or for one entity, and for how long. It does
not know when it starts, or which requests it hits. Durations are by the broker's clock; latencies
are real time.
"""

# ruff: noqa: RUF009 - the functions called for defaults make fields, once for all.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pairbus.broker.entities.policies import Right
from pairbus.errors import ConfigError

_SECONDS_MIN: Final = 0.001
_SECONDS_MAX: Final = 30 * 86_400
DEFAULT_SECONDS: Final = 600.0
"""How long a fault lasts that was started over HTTP, unless it says otherwise."""
_LATENCY_SECONDS_MAX: Final = 3600
_CLOCK_SECONDS_MAX: Final = 3650 * 86_400
_BYTES_MAX: Final = 10**12
_TIMES_MAX: Final = 10**9
SEED_MAX: Final = 2**53
"""The largest integer that is exact in every JSON parser."""
INTERNAL_ERROR: Final = "amqp:internal-error"


class Operation(StrEnum):
    """What a client asks for and a fault can refuse."""

    SEND = "send"
    """A message or a batch, including one that is scheduled over `$management`."""
    RECEIVE = "receive"
    """Credit for messages, and peek, renew and the like over `$management`."""
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
"""What a request to `$management` counts as, by the claim that it needs."""


class Mode(StrEnum):
    """How a namespace is unreachable."""

    REFUSE = "refuse"
    """Connections are reset, and new ones are refused."""
    DROP = "drop"
    """Connections are accepted and nothing is answered; what is sent is lost."""


class Distribution(StrEnum):
    """How latencies are distributed. `latency_seconds` is the mean of each."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    """Between 0 and twice the mean."""
    EXPONENTIAL = "exponential"
    """Mostly below the mean, sometimes several times the mean."""


# -- fields that check themselves: a default, a check, and one spelling of a value ------------

CHECK: Final = "check"
"""In a field's metadata: value -> what would be right, or None if the value is right."""
MAKE: Final = "make"
"""In a field's metadata: a right value -> the form in which it is kept."""
TEXT_LENGTH_MAX: Final = 1024

Check = Callable[[Any], str | None]


def _checked(default: Any, check: Check, make: Callable[[Any], Any] | None = None) -> Any:
    metadata: dict[str, Any] = {CHECK: check}
    if make is not None:
        metadata[MAKE] = make
    return field(default=default, kw_only=True, metadata=metadata)


def number(default: float | None, *, least: float, most: float, is_whole: bool = False) -> Any:
    """With a default of None, the value may be left out."""
    noun = "a whole number" if is_whole else "a number"
    right = f"{noun} from {_plain(least)} to {_plain(most)}"

    def check(value: Any) -> str | None:
        if value is None and default is None:
            return None
        is_number = isinstance(value, int if is_whole else int | float)
        if is_number and not isinstance(value, bool) and least <= value <= most:
            return None
        return f"{right}, or nothing" if default is None else right

    return _checked(default, check)


def choice(default: StrEnum) -> Any:
    options = [str(option) for option in type(default)]

    def check(value: Any) -> str | None:
        is_right = isinstance(value, str) and value in options
        return None if is_right else f"one of {', '.join(options)}"

    return _checked(default, check, type(default))


def choices(kind: type[StrEnum], *default: StrEnum) -> Any:
    """One value, or a list of them."""
    options = [str(option) for option in kind]

    def listed(value: Any) -> list[Any]:
        return list(value) if isinstance(value, list | tuple) else [value]

    def check(value: Any) -> str | None:
        given = listed(value)
        is_right = given and all(isinstance(one, str) and one in options for one in given)
        return None if is_right else f"one or more of {', '.join(options)}"

    def make(value: Any) -> tuple[StrEnum, ...]:
        return tuple(dict.fromkeys(kind(one) for one in listed(value)))

    return _checked(default, check, make)


def text(default: str) -> Any:
    def check(value: Any) -> str | None:
        is_right = isinstance(value, str) and 0 < len(value) <= TEXT_LENGTH_MAX
        return None if is_right else f"text of 1 to {TEXT_LENGTH_MAX} characters"

    return _checked(default, check)


def path(value: Any) -> str | None:
    """The check of the only field that may be given without its name."""
    if value is None:
        return None
    if isinstance(value, str) and value.strip("/") and len(value) <= TEXT_LENGTH_MAX:
        return None
    return "the path of an entity, like 'orders' or 'events/Subscriptions/audit', or nothing"


def _plain(value: float) -> str:
    return f"{value:,.0f}".replace(",", "_") if value == int(value) else f"{value:g}"


# -- the kinds --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """The settings that all kinds of faults have."""

    kind: ClassVar[str]
    """Its name in JSON, on the command line, and as a method of `broker.faults`. It is derived
    from the name of the class."""
    is_for_entities: ClassVar[bool] = True

    entity: str | None = field(default=None, metadata={CHECK: path})
    """The path of the entity that it hits; upper and lower case are the same. A fault of a topic
    hits its subscriptions, too. None: the whole namespace."""
    seconds: float | None = number(None, least=_SECONDS_MIN, most=_SECONDS_MAX)
    """How long it lasts. None: until it is cleared."""
    seed: int | None = number(None, least=0, most=SEED_MAX, is_whole=True)
    """The same seed makes the same choices. None: a random seed, which the listing shows."""

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"\B(?=[A-Z])", "_", cls.__name__).lower()

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
                f"{self.kind} hits the whole namespace: leave out the entity {self.entity!r}"
            )
        problem = self._problem()
        if problem is not None:
            raise ConfigError(f"{self.kind}: {problem}")

    def _problem(self) -> str | None:
        """What is wrong with the fields together when each is right by itself."""
        return None

    def __str__(self) -> str:
        """As the log shows it, in the words of the command line."""
        words = [self.kind, f"on {self.entity or 'all entities'}"]
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None or each.name in ("entity", "seconds", "seed"):
                continue
            if isinstance(value, tuple):
                value = ",".join(value)
            elif isinstance(value, float):
                value = f"{value:g}"
            words.append(f"{each.name.replace('_', '-')}={value}")
        until = "until it is cleared" if self.seconds is None else f"for {self.seconds:g} s"
        return f"{' '.join(words)}, {until}"


@dataclass(frozen=True, slots=True)
class Unreachable(Fault):
    """The namespace cannot be reached. For an entity: its links are closed or not answered."""

    mode: Mode = choice(Mode.REFUSE)


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """Nothing is answered. What clients send is kept and handled when the fault is over."""


@dataclass(frozen=True, slots=True)
class Throttle(Fault):
    """Requests are refused with "server busy", except for the share `rate`."""

    rate: float = number(0.0, least=0, most=1)
    """The share of requests that succeed."""
    on: tuple[Operation, ...] = choices(
        Operation, Operation.SEND, Operation.MANAGEMENT, Operation.MANAGE
    )
    """`receive` is not in the default: a receiver of the Python SDK does not recover by itself
    when its link is closed with "server busy"."""


@dataclass(frozen=True, slots=True)
class Error(Fault):
    """Requests fail with an AMQP error of your choice."""

    condition: str = text(INTERNAL_ERROR)
    description: str = text("a fault on demand")
    probability: float = number(1.0, least=0, most=1)
    times: int | None = number(None, least=1, most=_TIMES_MAX, is_whole=True)
    """The fault is over after this many errors."""
    on: tuple[Operation, ...] = choices(Operation, Operation.SEND)


@dataclass(frozen=True, slots=True)
class Slow(Fault):
    """What clients send arrives late and in order; bandwidth is limited."""

    latency_seconds: float = number(0.0, least=0, most=_LATENCY_SECONDS_MAX)
    distribution: Distribution = choice(Distribution.CONSTANT)
    bytes_per_second: float | None = number(None, least=1, most=_BYTES_MAX)
    """For each connection, in either direction. None: no limit."""

    def _problem(self) -> str | None:
        if self.latency_seconds or self.bytes_per_second is not None:
            return None
        return "set latency_seconds, bytes_per_second, or both"


@dataclass(frozen=True, slots=True)
class Restart(Fault):
    """The namespace restarts: connections are closed with an error, locks run on."""

    seconds: float | None = number(5.0, least=_SECONDS_MIN, most=_SECONDS_MAX)
    """How long the restart takes."""


@dataclass(frozen=True, slots=True)
class DelayedVisibility(Fault):
    """Messages are accepted and durable, but appear later. They keep their delay when the fault
    is over."""

    delay_seconds: float = number(900.0, least=_SECONDS_MIN, most=_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """The connection of a sender is cut."""

    probability: float = number(1.0, least=0, most=1)
    times: int | None = number(None, least=1, most=_TIMES_MAX, is_whole=True)
    """The fault is over after this many cuts."""


@dataclass(frozen=True, slots=True)
class CutAfterAccept(Cut):
    """The message is stored, and the connection is cut before the sender gets the answer."""


@dataclass(frozen=True, slots=True)
class CutInTransfer(Cut):
    """The connection is cut while a message arrives. Nothing of the message is stored."""


@dataclass(frozen=True, slots=True)
class Cannot(Fault):
    """One kind of operation is refused."""

    operation: ClassVar[Operation]
    condition: str = text(INTERNAL_ERROR)


@dataclass(frozen=True, slots=True)
class CannotSend(Cannot):
    """Sends are refused. Everything else works."""

    operation: ClassVar[Operation] = Operation.SEND


@dataclass(frozen=True, slots=True)
class CannotReceive(Cannot):
    """Receivers get nothing. Everything else works."""

    operation: ClassVar[Operation] = Operation.RECEIVE


@dataclass(frozen=True, slots=True)
class CannotManage(Cannot):
    """Administration is refused. Sending and receiving work."""

    operation: ClassVar[Operation] = Operation.MANAGE


@dataclass(frozen=True, slots=True)
class CannotContact(Fault):
    """Clients that send anything are cut off. `/$faults` and `/$health` still work."""


@dataclass(frozen=True, slots=True)
class DiskFull(Fault):
    """Nothing can be stored. Whatever needs to be stored is refused."""

    is_for_entities: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SlowDisk(Fault):
    """Each commit takes longer."""

    is_for_entities: ClassVar[bool] = False
    latency_seconds: float = number(1.0, least=_SECONDS_MIN, most=_LATENCY_SECONDS_MAX)
    distribution: Distribution = choice(Distribution.CONSTANT)


@dataclass(frozen=True, slots=True)
class ClockJump(Fault):
    """The namespace's clock is wrong, and jumps back when the fault is over."""

    is_for_entities: ClassVar[bool] = False
    offset_seconds: float = number(0.0, least=-_CLOCK_SECONDS_MAX, most=_CLOCK_SECONDS_MAX)

    def _problem(self) -> str | None:
        return None if self.offset_seconds else "set offset_seconds (negative: back in time)"


KINDS: Final[Mapping[str, type[Fault]]] = MappingProxyType(
    {
        kind.kind: kind
        for kind in (
            *(Unreachable, Hang, Throttle, Error, Slow, Restart, DelayedVisibility),
            *(CutAfterAccept, CutInTransfer),
            *(CannotSend, CannotReceive, CannotManage, CannotContact),
            *(DiskFull, SlowDisk, ClockJump),
        )
    }
)
