"""Reads the official emulator's Config.json into the namespaces that a broker is to hold.

What the file may say is a table below; what a value may be is decided by the descriptions, with the
ranges of the service and not the emulator's narrower ones. Every complaint names the file, the
line and what would be right. Ports, policies and data are not in that format: the caller adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pairbus.broker.entities.config_rules import read_rules
from pairbus.broker.entities.config_values import (
    Members,
    boolean,
    duration,
    integer,
    items,
    members,
    name_of,
    once,
    status,
    text_or_none,
)
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from pairbus.broker.entities.located_json import Complaint, Node, parse
from pairbus.broker.entities.options import NamespaceOptions
from pairbus.errors import ConfigError

Properties = Mapping[str, tuple[str, Callable[[Node, str], object]]]
_Entity = TypeVar("_Entity", bound=EntityDescription)

# The file's name for a setting -> ours, and how it is read.
QUEUE_PROPERTIES: Final[Properties] = {
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", boolean),
    "DefaultMessageTimeToLive": ("default_message_time_to_live", duration),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_time_window", duration),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", text_or_none),
    "ForwardTo": ("forward_to", text_or_none),
    "LockDuration": ("lock_duration", duration),
    "MaxDeliveryCount": ("max_delivery_count", integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", boolean),
    "RequiresSession": ("requires_session", boolean),
    "AutoDeleteOnIdle": ("auto_delete_on_idle", duration),
    "EnableBatchedOperations": ("enable_batched_operations", boolean),
    "EnableExpress": ("enable_express", boolean),
    "EnablePartitioning": ("enable_partitioning", boolean),
    "MaxMessageSizeInKilobytes": ("max_message_size_in_kilobytes", integer),
    "MaxSizeInMegabytes": ("max_size_in_megabytes", integer),
    "Status": ("status", status),
    "UserMetadata": ("user_metadata", text_or_none),
}
EMULATOR_PROPERTIES: Final = frozenset(list(QUEUE_PROPERTIES)[:9])
"""Those that the emulator has too; the rest are the service's names for what it lacks."""

# A topic keeps no messages, so nothing about locks, deliveries and dead letters is said of it.
TOPIC_PROPERTIES: Final[Properties] = {
    **{
        key: QUEUE_PROPERTIES[key]
        for key in (
            "DefaultMessageTimeToLive",
            "DuplicateDetectionHistoryTimeWindow",
            "RequiresDuplicateDetection",
            "AutoDeleteOnIdle",
            "EnableBatchedOperations",
            "EnableExpress",
            "EnablePartitioning",
            "MaxMessageSizeInKilobytes",
            "MaxSizeInMegabytes",
            "Status",
            "UserMetadata",
        )
    },
    "SupportOrdering": ("support_ordering", boolean),
}
SUBSCRIPTION_PROPERTIES: Final[Properties] = {
    **{
        key: QUEUE_PROPERTIES[key]
        for key in (
            "DeadLetteringOnMessageExpiration",
            "DefaultMessageTimeToLive",
            "ForwardDeadLetteredMessagesTo",
            "ForwardTo",
            "LockDuration",
            "MaxDeliveryCount",
            "RequiresSession",
            "AutoDeleteOnIdle",
            "EnableBatchedOperations",
            "Status",
            "UserMetadata",
        )
    },
    "DeadLetteringOnFilterEvaluationExceptions": (
        "dead_lettering_on_filter_evaluation_exceptions",
        boolean,
    ),
}


def load_config(path: str | Path) -> list[NamespaceOptions]:
    """The namespaces of a Config.json, or ConfigError with `file:line: reason`."""
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")  # Windows editors put a byte order mark there
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        return _namespaces(parse(text))
    except Complaint as complaint:
        raise ConfigError(f"{path}:{complaint.line}: {complaint.reason}") from complaint.__cause__


def _namespaces(root: Node) -> list[NamespaceOptions]:
    top = members(root, "the file", ("UserConfig", "$schema"))
    if "UserConfig" not in top:
        raise Complaint(root.line, "the file has no UserConfig")
    user = members(top["UserConfig"].node, "UserConfig", ("Namespaces", "Logging"))
    if "Logging" in user:  # read and not heeded: where logs go is the command line's business
        members(user["Logging"].node, "Logging", ("Type",))
    nodes = items(user, "Namespaces", "Namespaces")
    if not nodes:
        raise Complaint(top["UserConfig"].line, "UserConfig needs at least one of Namespaces")
    seen: dict[str, int] = {}
    return [_namespace(node, seen) for node in nodes]


def _namespace(node: Node, seen: dict[str, int]) -> NamespaceOptions:
    own = members(node, "a namespace", ("Name", "Queues", "Topics"))
    name, line = name_of(own, node, "namespace")
    once(seen, name, line, "namespace")
    lines: dict[str, int] = {}
    nodes = items(own, "Queues", f"Queues of namespace {name!r}")
    queues = [_queue(queue, lines) for queue in nodes]
    topics: list[EntityDescription] = []
    targets = lines.copy()
    for topic in items(own, "Topics", f"Topics of namespace {name!r}"):
        described, *subscriptions = _topic_and_subscriptions(topic, lines)
        targets[described.name.lower()] = lines[described.name.lower()]
        topics += [described, *subscriptions]
    _check_targets([*queues, *topics], lines, targets)
    try:
        return NamespaceOptions(name=name, queues=tuple(queues), topics=tuple(topics))
    except ConfigError as error:
        raise Complaint(line, str(error)) from error


def _check_targets(
    entities: Sequence[EntityDescription], lines: Mapping[str, int], targets: Mapping[str, int]
) -> None:
    # Messages for a missing target would all end in the transfer dead-letter queue, unnoticed.
    for entity in entities:
        for target in (entity.forward_to, entity.forward_dead_lettered_messages_to):
            if target is not None and target.lower() not in targets:
                raise Complaint(
                    lines[entity.name.lower()],
                    f"{entity} forwards to {target!r}, which this file does not define",
                )


def _queue(node: Node, lines: dict[str, int]) -> QueueDescription:
    own = members(node, "a queue", ("Name", "Properties"))
    name, line = name_of(own, node, "queue")
    once(lines, name, line, "queue")
    return _entity(QueueDescription, name, line, own, QUEUE_PROPERTIES)


def _topic_and_subscriptions(node: Node, lines: dict[str, int]) -> list[EntityDescription]:
    own = members(node, "a topic", ("Name", "Properties", "Subscriptions"))
    name, line = name_of(own, node, "topic")
    once(lines, name, line, "topic")
    topic = _entity(TopicDescription, name, line, own, TOPIC_PROPERTIES)
    nodes = items(own, "Subscriptions", f"Subscriptions of topic {name!r}")
    return [topic, *(_subscription(each, name, lines) for each in nodes)]


def _subscription(node: Node, topic: str, lines: dict[str, int]) -> SubscriptionDescription:
    own = members(node, "a subscription", ("Name", "Properties", "Rules"))
    name, line = name_of(own, node, "subscription")
    path = subscription_path(topic, name)
    once(lines, path, line, "subscription")
    more = {"rules": read_rules(own, path)}
    return _entity(SubscriptionDescription, path, line, own, SUBSCRIPTION_PROPERTIES, more)


def _entity(
    kind: type[_Entity],
    name: str,
    line: int,
    own: Members,
    known: Properties,
    more: Mapping[str, object] = MappingProxyType({}),
) -> _Entity:
    _described(kind, name, {}, line, known)
    settings: dict[str, object] = {}
    if "Properties" in own:
        what = f"{kind.noun} {name!r}"
        given = members(own["Properties"].node, f"Properties of {what}", known)
        for member in given.values():
            field, read = known[member.key]
            settings[field] = read(member.node, f"{member.key} of {what}")
            # By itself first, so that a value out of its range is reported on its own line.
            _described(kind, name, {field: settings[field]}, member.line, known)
    return _described(kind, name, {**settings, **more}, line, known)


def _described(
    kind: type[_Entity], name: str, settings: Mapping[str, Any], line: int, known: Properties
) -> _Entity:
    try:
        return kind(name=name, **settings)
    except ConfigError as error:
        reason = str(error)
        for key, (field, _) in known.items():
            # Whoever wrote the file knows a setting by the file's name for it.
            if field in settings:
                reason = reason.replace(field, key)
        raise Complaint(line, reason) from error
