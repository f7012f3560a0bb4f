"""Queues, topics and subscriptions as XML, both ways.

The elements are in the order of the service, which some clients rely on. Each is a setting
(`settings.py`), which a client may write, or a read-only value. Clients send back read-only values,
so these are ignored. Unknown elements are refused, because they would have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element

from pairbus.broker.admin import atom, rule_xml
from pairbus.broker.admin.access import bad_request
from pairbus.broker.admin.atom import RequestAddress, escape, moment, own_name
from pairbus.broker.admin.rule_xml import boolean
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
    settings_of,
)
from pairbus.broker.entities.durations import format_duration, parse_duration
from pairbus.broker.entities.settings import Setting, ValueKind
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Topic
from pairbus.broker.rules import CorrelationFilter

_COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
MESSAGE_SIZE: Final = "MaxMessageSizeInKilobytes"


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written and read."""

    read: Callable[[str], Any]
    """Raises ValueError."""
    write: Callable[[Any], str | None]
    """As XML; None leaves the element out."""
    wanted: str


@dataclass(frozen=True, slots=True)
class Keys:
    name: str = "AuthorizationRules"


@dataclass(frozen=True, slots=True)
class Shown:
    name: str
    write: Callable[[Queue], str]
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A setting of the service that has only one value here. Another value is refused."""

    name: str
    value: bool


Row = Setting | Keys | Shown | Fixed


# -- forms ------------------------------------------------------------------------------------


def _read_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _read_target(text: str, address: RequestAddress) -> str | None:
    """The path of an entity of this namespace; clients write it as an absolute address."""
    _, found, rest = text.partition("://")
    if not found:
        return text.strip("/") or None
    host, _, path = rest.partition("/")
    ours = address.host.lower()
    if host.lower() not in (ours, ours.rpartition(":")[0] or ours) or not path.strip("/"):
        raise ValueError(text)
    return path.strip("/")


def _write_target(path: str | None, address: RequestAddress) -> str | None:
    return None if path is None else escape(f"sb://{address.host}/{path}")


_FORMS: Final[Mapping[ValueKind, Form]] = {
    ValueKind.DURATION: Form(
        parse_duration, format_duration, "an ISO 8601 duration such as PT1M or P14D"
    ),
    ValueKind.INTEGER: Form(_read_whole, str, "a whole number"),
    ValueKind.BOOLEAN: Form(boolean, lambda value: str(value).lower(), "true or false"),
    ValueKind.STATUS: Form(Status, str, f"one of {', '.join(Status)}"),
    ValueKind.TEXT: Form(
        lambda text: text or None,
        lambda value: None if value is None else escape(value),
        "a string",
    ),
}


def _form(kind: ValueKind, address: RequestAddress) -> Form:
    """A target is an address of this broker, as the client writes it."""
    return _FORMS.get(kind) or Form(
        partial(_read_target, address=address),
        partial(_write_target, address=address),
        "the name or address of a queue or topic of this namespace",
    )


# -- what is only shown -----------------------------------------------------------------------


def _counts(entity: Queue) -> dict[str, int]:
    counts = entity.message_counts
    return {
        # The service counts a deferred message as active.
        "ActiveMessageCount": counts["active"] + counts["deferred"],
        "DeadLetterMessageCount": counts["dead_letter"],
        "ScheduledMessageCount": counts["scheduled"],
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": counts["transfer_dead_letter"],
    }


def _count_details(entity: Queue) -> str:
    return "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in _counts(entity).items())


def _filter_count(entity: Queue, *, is_correlation: bool) -> str:
    assert isinstance(entity, Topic)
    rules = (rule for one in entity.subscriptions.values() for rule in one.description.rules)
    found = sum(isinstance(rule.filter, CorrelationFilter) is is_correlation for rule in rules)
    return str(found)


def _subscription_count(entity: Queue) -> str:
    assert isinstance(entity, Topic)
    return str(len(entity.subscriptions))


_MESSAGE_COUNT: Final = Shown("MessageCount", lambda entity: str(sum(_counts(entity).values())))
_SIZE: Final = Shown("SizeInBytes", lambda entity: str(entity.size_bytes))
_TIMES: Final = (
    Shown("CreatedAt", lambda entity: moment(entity.created_ms)),
    Shown("UpdatedAt", lambda entity: moment(entity.updated_ms)),
    Shown("AccessedAt", lambda entity: moment(entity.accessed_ms or None)),
)
_COUNT_DETAILS: Final = Shown("CountDetails", _count_details, f' xmlns:d2p1="{_COUNTS}"')
_AVAILABLE: Final = Shown("EntityAvailabilityStatus", lambda entity: "Available")
_ORDERED: Final = Shown("SupportOrdering", lambda entity: "true")

_ANONYMOUS: Final = Fixed("IsAnonymousAccessible", False)

# -- the order of the elements, in which a text stands for the setting of that name -----------

_ORDER: Final[Mapping[type[EntityDescription], Sequence[str | Keys | Shown | Fixed]]] = {
    QueueDescription: (
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        *(_SIZE, _MESSAGE_COUNT, _ANONYMOUS, Keys()),
        "Status",
        *(*_TIMES, _ORDERED, _COUNT_DETAILS),
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        _AVAILABLE,
        "EnableExpress",
        "ForwardTo",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        MESSAGE_SIZE,
    ),
    TopicDescription: (
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        *(_SIZE, Fixed("FilteringMessagesBeforePublishing", False), _ANONYMOUS, Keys()),
        "Status",
        *_TIMES,
        "SupportOrdering",
        *(_COUNT_DETAILS, Shown("SubscriptionCount", _subscription_count)),
        Shown("SqlFilterCount", lambda entity: _filter_count(entity, is_correlation=False)),
        Shown("CorrelationFilterCount", lambda entity: _filter_count(entity, is_correlation=True)),
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        *(_AVAILABLE, Fixed("EnableSubscriptionPartitioning", False)),
        "EnableExpress",
        "UserMetadata",
        MESSAGE_SIZE,
    ),
    SubscriptionDescription: (
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        _MESSAGE_COUNT,
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        *(*_TIMES, _COUNT_DETAILS),
        "ForwardDeadLetteredMessagesTo",
        "AutoDeleteOnIdle",
        _AVAILABLE,
        "UserMetadata",
    ),
}
TABLES: Final[Mapping[type[EntityDescription], Sequence[Row]]] = {
    kind: tuple(settings_of(kind)[row] if isinstance(row, str) else row for row in rows)
    for kind, rows in _ORDER.items()
}
DEFAULT_RULE: Final = "DefaultRuleDescription"
# The second comes from later versions of the service. Clients send back all elements.
_IGNORED: Final = frozenset({DEFAULT_RULE, "IsClientAffine"})
_KINDS: Final = {kind.__name__: kind for kind in TABLES}


# -- the two directions -----------------------------------------------------------------------


def kind_of(content: Element) -> type[EntityDescription]:
    """Returns the type of the description in the request's body."""
    kind = _KINDS.get(own_name(content))
    if kind is None:
        known = ", ".join(_KINDS)
        raise bad_request(f"The content is {own_name(content)[:100]!r}, but must be one of {known}")
    return kind


def read_settings(content: Element, address: RequestAddress) -> dict[str, Any]:
    """The settings in the body, by the fields of the description."""
    rows = {row.name: row for row in TABLES[kind_of(content)]}
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    for element in content:
        name = own_name(element)
        if name in seen:
            raise bad_request(f"{name} occurs twice")
        seen.add(name)
        row = rows.get(name)
        text = element.text or ""
        match row:
            case Setting():
                settings[row.field] = _read(row.name, row.kind, text, address)
            case Keys():
                settings["authorization_rules"] = rule_xml.read_keys(element)
            case Fixed() if _read(row.name, ValueKind.BOOLEAN, text, address) is not row.value:
                raise bad_request(f"{name} must be {str(row.value).lower()} in this broker")
            case None if name not in _IGNORED:
                raise bad_request(f"{name[:100]!r} is not a property of a {own_name(content)}")
    return settings


def _read(name: str, kind: ValueKind, text: str, address: RequestAddress) -> Any:
    form = _form(kind, address)
    try:
        return form.read(text if kind is ValueKind.TEXT else text.strip())
    except ValueError as error:
        raise bad_request(f"{name} is {text[:100]!r}, but must be {form.wanted}") from error


def write_entity(entity: Queue, address: RequestAddress, *, has_message_size: bool) -> str:
    kind = type(entity.description)
    pieces = []
    for row in TABLES[kind]:
        attributes = ""
        inner: str | None
        match row:
            case Setting():
                inner = _form(row.kind, address).write(getattr(entity.description, row.field))
            case Keys():
                inner = rule_xml.write_keys(
                    entity.description.authorization_rules,
                    created_ms=entity.created_ms,
                    updated_ms=entity.updated_ms,
                )
            case Shown():
                inner, attributes = row.write(entity), row.attributes
            case Fixed():
                inner = str(row.value).lower()
        if inner is not None and (has_message_size or row.name != MESSAGE_SIZE):
            pieces.append(f"<{row.name}{attributes}>{inner}</{row.name}>")
    return atom.description(kind.__name__, "".join(pieces))
