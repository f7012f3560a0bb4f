"""What a queue, a policy and a namespace are told to be, and the ranges that Service Bus allows.

Descriptions are plain frozen values, checked once when they are made: an impossible one cannot
exist. This module knows nothing of messages, storage or the wire.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from pairbus.errors import ConfigError

INFINITE: Final = timedelta.max
"""Service Bus writes 'never' as the largest .NET TimeSpan; from 10,675,199 days on, it is that."""
_INFINITE_FROM: Final = timedelta(days=10_675_199)

INT32_MAX: Final = 2**31 - 1
DEFAULT_POLICY_NAME: Final = "RootManageSharedAccessKey"
DEFAULT_KEY: Final = "SAS_KEY_VALUE"
"""The well-known key of the official emulator: fine on loopback, refused elsewhere."""

SKUS: Final = ("Standard", "Premium")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_NAME_LENGTH_MAX = 260
_METADATA_LENGTH_MAX = 1024
_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


class Status(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


class Right(StrEnum):
    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


def parse_duration(text: str) -> timedelta:
    """ISO 8601 as Service Bus writes it (`PT1M`, `P14D`); raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or text in ("P", "PT") or text.endswith("T"):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1M or P14D")
    parts = {unit: float(value) for unit, value in match.groupdict().items() if value}
    if parts.get("days", 0) >= _INFINITE_FROM.days:
        return INFINITE
    try:
        return timedelta(**parts)
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration can be") from None


def format_duration(value: timedelta) -> str:
    if value >= _INFINITE_FROM:
        return "P10675199DT2H48M5.4775807S"
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    clock = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    days = f"{value.days}D" if value.days else ""
    return f"P{days}" + (f"T{clock}" if clock else "") if days or clock else "PT0S"


def milliseconds(value: timedelta) -> int | None:
    """A duration for arithmetic on message times; None stands for 'never'."""
    return None if value >= _INFINITE_FROM else round(value.total_seconds() * 1000)


def check_name(name: str, kind: str = "queue") -> None:
    if not _NAME.fullmatch(name) or len(name) > _NAME_LENGTH_MAX or "//" in name:
        raise ConfigError(
            f"{kind} name {name!r} is not valid: 1 to {_NAME_LENGTH_MAX} letters, digits, '.', "
            "'-', '_' and '/', starting and ending with a letter or digit"
        )


# name -> (least, most); the ranges of the service
_DURATIONS: Final[dict[str, tuple[timedelta, timedelta]]] = {
    "lock_duration": (timedelta(seconds=1), timedelta(minutes=5)),
    "default_message_time_to_live": (timedelta(seconds=1), INFINITE),
    "duplicate_detection_history_time_window": (timedelta(seconds=20), timedelta(days=7)),
    "auto_delete_on_idle": (timedelta(minutes=5), INFINITE),
}
_INTEGERS: Final[dict[str, tuple[int, int]]] = {
    "max_size_in_megabytes": (1, 81_920),
    "max_delivery_count": (1, INT32_MAX),
    "max_message_size_in_kilobytes": (1, 102_400),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDescription:
    """What entities have in common. The defaults are the service's."""

    noun: ClassVar[str] = "entity"

    name: str
    lock_duration: timedelta = timedelta(minutes=1)
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: timedelta = INFINITE
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: timedelta = timedelta(minutes=10)
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: Status = Status.ACTIVE
    auto_delete_on_idle: timedelta = INFINITE
    enable_partitioning: bool = False
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int = 256
    authorization_rules: tuple[Policy, ...] = ()
    """Keys of this entity alone, besides those of the namespace."""
    enable_express: bool = False
    """Permission to keep messages in memory for a while. This broker makes no use of it."""

    lacks: ClassVar[frozenset[str]] = frozenset()
    """Settings that this kind of entity does not have."""

    def __post_init__(self) -> None:
        self._check_name()
        for setting in fields(self):
            if setting.name in self.lacks and getattr(self, setting.name) != setting.default:
                raise ConfigError(f"{self}: a {self.noun} has no {setting.name}")
        if self.enable_express and self.requires_duplicate_detection:
            raise ConfigError(
                f"{self}: enable_express and requires_duplicate_detection exclude each other"
            )
        if self.user_metadata is not None and len(self.user_metadata) > _METADATA_LENGTH_MAX:
            raise ConfigError(
                f"{self}: user_metadata has {len(self.user_metadata)} characters, at most "
                f"{_METADATA_LENGTH_MAX} are possible"
            )
        for name, (least, most) in _DURATIONS.items():
            value = getattr(self, name)
            if not isinstance(value, timedelta) or not least <= value <= most:
                shown = format_duration(value) if isinstance(value, timedelta) else repr(value)
                raise ConfigError(
                    f"{self.noun} {self.name!r}: {name} is {shown}, but must be between "
                    f"{format_duration(least)} and {format_duration(most)}"
                )
        for name, (low, high) in _INTEGERS.items():
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
                raise ConfigError(
                    f"{self}: {name} is {number!r}, but must be between {low} and {high}"
                )

    def _check_name(self) -> None:
        check_name(self.name, self.noun)
        if "/subscriptions/" in self.name.lower():
            raise ConfigError(
                f"{self.noun} name {self.name!r} is not valid: '/subscriptions/' stands between a "
                "topic and its subscription"
            )

    @property
    def reads_identifiers(self) -> bool:
        """Must the message and session ids be known to take a message in?"""
        return bool(
            self.requires_session
            or self.requires_duplicate_detection
            or self.enable_partitioning
            or self.forward_to
        )

    def __str__(self) -> str:
        return f"{self.noun} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription(EntityDescription):
    """One queue."""

    noun: ClassVar[str] = "queue"


QUEUE_SETTINGS: Final = frozenset(f.name for f in fields(QueueDescription)) - {"name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A shared access key and what its holder may do. Manage includes the other two."""

    name: str
    key: str
    rights: frozenset[Right]
    secondary_key: str | None = None
    """Works as well, so that keys can be changed one after the other."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if self.secondary_key is None else (self.key, self.secondary_key)

    def allows(self, right: Right) -> bool:
        return right in self.rights or Right.MANAGE in self.rights


def default_policy() -> Policy:
    return Policy(name=DEFAULT_POLICY_NAME, key=DEFAULT_KEY, rights=frozenset(Right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What protects the broker from its peers; of one connection where nothing else is said."""

    connections_max: int = 2000
    """Of one namespace. A connection more is closed at once."""
    links_max: int = 256
    unsettled_max: int = 10_000
    """Deliveries without settlement, each way: receivers get no more until some are settled."""
    write_buffer_bytes_max: int = 4 * 1024 * 1024
    """What may wait for a slow reader; beyond it, nothing more is delivered to it."""
    handshake_seconds: float = 30.0
    """From the first byte (or none) to a finished AMQP open, TLS included."""
    idle_timeout_seconds: float = 240.0
    frame_size_max: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions:
    """One namespace of a broker."""

    name: str = "local"
    port: int = 0
    """0: the system picks one."""
    queues: Sequence[QueueDescription] = ()
    topics: Sequence[EntityDescription] = ()
    """Topics first, then their subscriptions."""
    policies: Sequence[Policy] = field(default_factory=lambda: (default_policy(),))
    data: Path | None = None
    """The folder of the data file; None keeps nothing beyond the process."""
    limits: Limits = field(default_factory=Limits)
    accepts_bearer: bool = False
    """Take any bearer token (JWT) without a check, for applications that use azure-identity."""
    sku: str = "Standard"
    """The service's tier: Standard takes messages of 256 KB, Premium up to 100 MB."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]|[A-Za-z]", self.name):
            raise ConfigError(
                f"namespace name {self.name!r} is not valid: up to 50 letters, digits and '-', "
                "starting with a letter and ending with a letter or digit"
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError(
                f"namespace {self.name!r}: port {self.port} is not between 0 and 65535"
            )
        seen: set[str] = set()
        for entity in self.entities:
            if entity.name.lower() in seen:
                raise ConfigError(
                    f"namespace {self.name!r}: {entity.noun} {entity.name!r} is defined twice"
                )
            seen.add(entity.name.lower())
        if self.sku not in SKUS:
            raise ConfigError(
                f"namespace {self.name!r}: sku {self.sku!r} is not one of {', '.join(SKUS)}"
            )
        if not self.policies:
            raise ConfigError(f"namespace {self.name!r} needs at least one policy")

    @property
    def entities(self) -> list[EntityDescription]:
        return [*self.queues, *self.topics]
