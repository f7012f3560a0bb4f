"""The properties of a message that rules can use, read from its bytes on first use.

One Facts serves all rules of all subscriptions of a topic. Names are compared without case, as
Service Bus does; of two application properties that differ by case alone, the first counts. Knows
the fields of AMQP, but nothing of queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self
from uuid import UUID

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.sections import (
    Parts,
    read_annotations,
    read_application_properties,
    read_property,
)
from pairbus.amqp.codec.types import Timestamp
from pairbus.amqp.codec.values import MalformedMessage
from pairbus.broker.rules.filters import EvaluationError, WorkBudget
from pairbus.broker.rules.values import from_ms, to_python

_WORK_OF_A_PROPERTY: Final = 10
"""An action writes all application properties again."""
TTL_MAX: Final = timedelta(days=10_675_199, seconds=10_085, microseconds=477_580)
"""What .NET shows for a message without a time to live."""

# Names in the documentation and in today's clients -> the name used here.
_NAMES: Final = (
    "MessageId", "To", "Label", "ReplyTo", "CorrelationId", "ContentType", "SessionId",
    "ReplyToSessionId", "TimeToLive", "PartitionKey", "ViaPartitionKey", "ScheduledEnqueueTimeUtc",
    "EnqueuedTimeUtc", "EnqueuedSequenceNumber", "ExpiresAtUtc", "DeliveryCount", "SequenceNumber",
    "Size", "State", "DeadLetterSource", "LockedUntilUtc", "LockToken", "ForcePersistence",
)  # fmt: skip
SYSTEM_NAMES: Final = {
    **{name.lower(): name for name in _NAMES},
    "subject": "Label",
    "transactionpartitionkey": "ViaPartitionKey",
    "scheduledenqueuetime": "ScheduledEnqueueTimeUtc",
    "enqueuedtime": "EnqueuedTimeUtc",
    "expiresat": "ExpiresAtUtc",
    "lockeduntil": "LockedUntilUtc",
}

# Name -> its place in the properties section.
FIELDS: Final = {
    "MessageId": sections.MESSAGE_ID,
    "To": sections.TO,
    "Label": sections.SUBJECT,
    "ReplyTo": sections.REPLY_TO,
    "CorrelationId": sections.CORRELATION_ID,
    "ContentType": sections.CONTENT_TYPE,
    "SessionId": sections.GROUP_ID,
    "ReplyToSessionId": sections.REPLY_TO_GROUP_ID,
}
ANNOTATIONS: Final = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "ScheduledEnqueueTimeUtc": "x-opt-scheduled-enqueue-time",
}


class SystemValues(dict[str, object]):
    """System properties by their name in SYSTEM_NAMES, each read on first use."""

    __slots__ = ("annotations", "given", "parts")

    def __init__(self, parts: Parts, given: Mapping[str, int | str | None]) -> None:
        self.parts = parts
        self.given = given
        self.annotations: dict[str, Any] | None = None

    def __missing__(self, name: str) -> object:
        reader = _READERS.get(name)
        if reader is None:
            raise EvaluationError(f"there is no system property {name!r}")
        try:
            value = self[name] = reader(self)
        except MalformedMessage as error:
            raise EvaluationError(f"sys.{name} cannot be read: {error}") from error
        return value

    def annotation(self, key: str) -> Any:
        if self.annotations is None:
            self.annotations = read_annotations(self.parts.annotations)
        return self.annotations.get(key)

    def draft(self) -> SystemValues:
        copy = SystemValues(self.parts, self.given)
        copy.annotations = self.annotations
        copy.update(self)
        return copy


def _field(name: str) -> Callable[[SystemValues], object]:
    index = FIELDS[name]

    def read(values: SystemValues) -> str | None:
        value = read_property(values.parts.bare, values.parts.properties, index)
        match value:
            case None:
                return None
            case str() | UUID():
                return str(value)
            case int():
                return str(int(value))
            case bytes():
                return value.hex()
        raise EvaluationError(f"sys.{name} is not a string: {value!r}")

    return read


def _annotated(name: str) -> Callable[[SystemValues], object]:
    key = ANNOTATIONS[name]

    def read(values: SystemValues) -> object:
        value = values.annotation(key)
        expected = Timestamp if key == ANNOTATIONS["ScheduledEnqueueTimeUtc"] else str
        return to_python(value) if isinstance(value, expected) else None

    return read


def _time_to_live(values: SystemValues) -> timedelta:
    ttl_ms = values.parts.ttl_ms
    return TTL_MAX if ttl_ms is None else timedelta(milliseconds=ttl_ms)


def _given(key: str) -> Callable[[SystemValues], object]:
    return lambda values: values.given.get(key)


def _moment(key: str) -> Callable[[SystemValues], object]:
    def read(values: SystemValues) -> datetime | None:
        given = values.given.get(key)
        return from_ms(given) if isinstance(given, int) else None

    return read


_READERS: Final[dict[str, Callable[[SystemValues], object]]] = {
    **{name: _field(name) for name in FIELDS},
    **{name: _annotated(name) for name in ANNOTATIONS},
    "TimeToLive": _time_to_live,
    "EnqueuedTimeUtc": _moment("enqueued_ms"),
    "ExpiresAtUtc": _moment("expires_ms"),
    "EnqueuedSequenceNumber": _given("enqueued_sequence"),
    "SequenceNumber": _given("sequence"),
    "DeliveryCount": _given("delivery_count"),
    "Size": _given("size"),
    "State": _given("state"),
    "DeadLetterSource": _given("dead_letter_source"),
    # A message that is being distributed has no lock, and none is express.
    "LockedUntilUtc": lambda values: None,
    "LockToken": lambda values: None,
    "ForcePersistence": lambda values: False,
}


class UserValues(dict[str, object]):
    """Application properties by lower-case name, as Python values. A missing one is None."""

    __slots__ = ("_unread", "amqp", "spelling")

    spelling: dict[str, str]
    amqp: dict[str, Any]
    """The values with their AMQP types, for SET to keep. `read` sets both."""

    def __init__(self, parts: Parts | None) -> None:
        self._unread = parts

    def __missing__(self, name: str) -> object:
        if self._unread is None:
            return None
        self.read()
        return self.get(name)

    def read(self) -> Self:
        """Decode them all, once. Call this before any access other than by []."""
        parts = self._unread
        if parts is not None:
            try:
                found = read_application_properties(parts.bare, parts.application_properties)
            except MalformedMessage as error:
                reason = f"the application properties cannot be read: {error}"
                raise EvaluationError(reason) from error
            self._unread = None
            self.spelling, self.amqp = {}, {}
            for name, value in found.items():
                if (lower := name.lower()) not in self:
                    self.put(lower, name, value)
        return self

    def put(self, lower: str, name: str, value: Any) -> None:
        self[lower] = to_python(value)
        self.amqp[lower] = value
        self.spelling[lower] = name

    def draft(self) -> UserValues:
        self.read()
        copy = UserValues(None)
        copy.update(self)
        copy.spelling, copy.amqp = self.spelling.copy(), self.amqp.copy()
        return copy


@dataclass(slots=True, eq=False)
class Facts:
    system: SystemValues
    """By the names of SYSTEM_NAMES."""
    user: UserValues
    """By lower-case names."""
    budget: WorkBudget

    @classmethod
    def from_parts(cls, parts: Parts, **given: int | str | None) -> Facts:
        """`given`: what the broker knows of the message, by the keys in `_READERS`."""
        known = {"delivery_count": 0, "state": 0, **given}
        return cls(SystemValues(parts, known), UserValues(parts), WorkBudget())

    def draft(self) -> Facts:
        """A copy for an action to change."""
        draft = Facts(self.system.draft(), self.user.draft(), self.budget)
        self.budget.spend(len(draft.user) * _WORK_OF_A_PROPERTY)
        return draft
