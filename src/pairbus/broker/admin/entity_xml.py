"""Queues, topics and subscriptions as XML, both ways, by one table each.

The tables are in the order of the service, which some clients rely on. A row is either a setting
that a client may write, or something that is only shown: clients send back all that they were
shown, so it is passed over. What nobody knows is refused, as it would have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element

from pairbus.broker.admin import atom, rule_xml
from pairbus.broker.admin.access import bad_request
from pairbus.broker.admin.atom import RequestAddress, child, escape, moment, own_name
from pairbus.broker.admin.rule_xml import boolean
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entities.durations import format_duration, parse_duration
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Topic
from pairbus.broker.rules import CorrelationFilter

_COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
MESSAGE_SIZE: Final = "MaxMessageSizeInKilobytes"


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written and read."""

    read: Callable[[str, RequestAddress], Any]
    """Raises ValueError."""
    write: Callable[[Any, RequestAddress], str | None]
    """As XML; None leaves the element out."""
    wanted: str


@dataclass(frozen=True, slots=True)
class Setting:
    element: str
    attribute: str
    form: Form


@dataclass(frozen=True, slots=True)
class Keys:
    element: str = "AuthorizationRules"


@dataclass(frozen=True, slots=True)
class Shown:
    element: str
    write: Callable[[Queue], str]
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A setting of the service that has one value here; another is refused, not forgotten."""

    element: str
    value: bool


Row = Setting | Keys | Shown | Fixed


# -- forms ------------------------------------------------------------------------------------


def _read_whole(text: str, address: RequestAddress) -> int:
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


_DURATION: Final = Form(
    lambda text, address: parse_duration(text),
    lambda value, address: format_duration(value),
    "an ISO 8601 duration such as PT1M or P14D",
)
_INTEGER: Final = Form(_read_whole, lambda value, address: str(value), "a whole number")
_BOOLEAN: Final = Form(
    lambda text, address: boolean(text), lambda value, address: str(value).lower(), "true or false"
)
_STATUS: Final = Form(
    lambda text, address: Status(text),
    lambda value, address: str(value),
    f"one of {', '.join(Status)}",
)
_TEXT: Final = Form(
    lambda text, address: text or None,
    lambda value, address: None if value is None else escape(value),
    "a text",
)
_TARGET: Final = Form(
    _read_target, _write_target, "the name or address of a queue or topic of this namespace"
)


# -- what is only shown -----------------------------------------------------------------------


def _counts(entity: Queue) -> dict[str, int]:
    main = entity.mailboxes[MailboxKind.MAIN].counters
    dead = entity.mailboxes[MailboxKind.DEAD_LETTER].counters
    transfer_dead = entity.mailboxes[MailboxKind.TRANSFER_DEAD_LETTER].counters
    return {
        # To the service a deferred message is an active one that waits for its number to be asked.
        "ActiveMessageCount": main.active + main.deferred,
        "DeadLetterMessageCount": dead.active + dead.deferred,
        "ScheduledMessageCount": main.scheduled,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": transfer_dead.active + transfer_dead.deferred,
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

# -- settings of several kinds ----------------------------------------------------------------

_LOCK: Final = Setting("LockDuration", "lock_duration", _DURATION)
_CAPACITY: Final = Setting("MaxSizeInMegabytes", "max_size_in_megabytes", _INTEGER)
_DUPLICATES: Final = Setting("RequiresDuplicateDetection", "requires_duplicate_detection", _BOOLEAN)
_SESSIONS: Final = Setting("RequiresSession", "requires_session", _BOOLEAN)
_TTL: Final = Setting("DefaultMessageTimeToLive", "default_message_time_to_live", _DURATION)
_EXPIRED: Final = Setting(
    "DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", _BOOLEAN
)
_WINDOW: Final = Setting(
    "DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window", _DURATION
)
_DELIVERIES: Final = Setting("MaxDeliveryCount", "max_delivery_count", _INTEGER)
_BATCHED: Final = Setting("EnableBatchedOperations", "enable_batched_operations", _BOOLEAN)
_STATE: Final = Setting("Status", "status", _STATUS)
_IDLE: Final = Setting("AutoDeleteOnIdle", "auto_delete_on_idle", _DURATION)
_PARTITIONS: Final = Setting("EnablePartitioning", "enable_partitioning", _BOOLEAN)
_FORWARD: Final = Setting("ForwardTo", "forward_to", _TARGET)
_FORWARD_DEAD: Final = Setting(
    "ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", _TARGET
)
_METADATA: Final = Setting("UserMetadata", "user_metadata", _TEXT)
_MESSAGE_SIZE: Final = Setting(MESSAGE_SIZE, "max_message_size_in_kilobytes", _INTEGER)
_ANONYMOUS: Final = Fixed("IsAnonymousAccessible", False)
_EXPRESS: Final = Setting("EnableExpress", "enable_express", _BOOLEAN)

TABLES: Final[Mapping[type[EntityDescription], Sequence[Row]]] = {
    QueueDescription: (
        *(_LOCK, _CAPACITY, _DUPLICATES, _SESSIONS, _TTL, _EXPIRED, _WINDOW, _DELIVERIES),
        *(_BATCHED, _SIZE, _MESSAGE_COUNT, _ANONYMOUS, Keys(), _STATE, *_TIMES, _ORDERED),
        *(_COUNT_DETAILS, _IDLE, _PARTITIONS, _AVAILABLE, _EXPRESS, _FORWARD, _METADATA),
        *(_FORWARD_DEAD, _MESSAGE_SIZE),
    ),
    TopicDescription: (
        *(_TTL, _CAPACITY, _DUPLICATES, _WINDOW, _BATCHED, _SIZE),
        *(Fixed("FilteringMessagesBeforePublishing", False), _ANONYMOUS, Keys(), _STATE, *_TIMES),
        Setting("SupportOrdering", "support_ordering", _BOOLEAN),
        *(_COUNT_DETAILS, Shown("SubscriptionCount", _subscription_count)),
        Shown("SqlFilterCount", lambda entity: _filter_count(entity, is_correlation=False)),
        Shown("CorrelationFilterCount", lambda entity: _filter_count(entity, is_correlation=True)),
        *(_IDLE, _PARTITIONS, _AVAILABLE, Fixed("EnableSubscriptionPartitioning", False)),
        *(_EXPRESS, _METADATA, _MESSAGE_SIZE),
    ),
    SubscriptionDescription: (
        *(_LOCK, _SESSIONS, _TTL, _EXPIRED),
        Setting(
            "DeadLetteringOnFilterEvaluationExceptions",
            "dead_lettering_on_filter_evaluation_exceptions",
            _BOOLEAN,
        ),
        *(_MESSAGE_COUNT, _DELIVERIES, _BATCHED, _STATE, _FORWARD, *_TIMES, _COUNT_DETAILS),
        *(_FORWARD_DEAD, _IDLE, _AVAILABLE, _METADATA),
    ),
}
DEFAULT_RULE: Final = "DefaultRuleDescription"
# Of later versions of the service, and sent back by clients that were shown it.
_PASSED_OVER: Final = frozenset({DEFAULT_RULE, "IsClientAffine"})
_KINDS: Final = {kind.__name__: kind for kind in TABLES}
ATTRIBUTES: Final = {
    row.attribute: row.element
    for table in TABLES.values()
    for row in table
    if isinstance(row, Setting)
}


# -- the two directions -----------------------------------------------------------------------


def kind_of(content: Element) -> type[EntityDescription]:
    """Which description a request's body holds."""
    kind = _KINDS.get(own_name(content))
    if kind is None:
        known = ", ".join(_KINDS)
        raise bad_request(f"The content is {own_name(content)[:100]!r}, which is not of {known}")
    return kind


def read_settings(content: Element, address: RequestAddress) -> dict[str, Any]:
    """What the body says, by the names of the description's fields."""
    rows = {row.element: row for row in TABLES[kind_of(content)]}
    settings: dict[str, Any] = {}
    seen: set[str] = set()
    for element in content:
        name = own_name(element)
        if name in seen:
            raise bad_request(f"{name} is there twice")
        seen.add(name)
        row = rows.get(name)
        text = element.text or ""
        match row:
            case Setting():
                settings[row.attribute] = _read(row.element, row.form, text, address)
            case Keys():
                settings["authorization_rules"] = rule_xml.read_keys(element)
            case Fixed() if _read(row.element, _BOOLEAN, text, address) is not row.value:
                raise bad_request(f"{name} can only be {str(row.value).lower()} in this broker")
            case None if name not in _PASSED_OVER:
                raise bad_request(f"{name[:100]!r} is not a property of a {own_name(content)}")
    return settings


def _read(name: str, form: Form, text: str, address: RequestAddress) -> Any:
    try:
        return form.read(text if form is _TEXT else text.strip(), address)
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
                inner = row.form.write(getattr(entity.description, row.attribute), address)
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
        if inner is not None and (has_message_size or row.element != MESSAGE_SIZE):
            pieces.append(f"<{row.element}{attributes}>{inner}</{row.element}>")
    return atom.description(kind.__name__, "".join(pieces))


def default_rule(content: Element) -> Element | None:
    """A subscription may come with its first rule."""
    return child(content, DEFAULT_RULE)


def in_service_names(text: str) -> str:
    """With the names that the properties have in this API."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: ATTRIBUTES.get(found[0], found[0]), text)
