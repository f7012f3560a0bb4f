"""Reads the official emulator's Config.json into the namespaces that a broker is to hold.

What the file may say is a table below; what a value may be is decided by entities.py, with the
ranges of the service and not the emulator's narrower ones. Every complaint names the file, the
line and what would be right. Ports, policies and data are not in that format: the caller adds them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from pairbus.broker.entities import NamespaceOptions, QueueDescription, Status, parse_duration
from pairbus.broker.located import Array, Complaint, Member, Node, Object, Scalar, parse
from pairbus.errors import ConfigError

Members = Mapping[str, Member]


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


# --- single values --------------------------------------------------------------------------------


def _text(node: Node, what: str) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    raise Complaint(node.line, f"{what} must be a text, not {node}")


def _text_or_none(node: Node, what: str) -> str | None:
    return _text(node, what) or None  # the emulator's own file writes "" for none


def _boolean(node: Node, what: str) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    raise Complaint(node.line, f"{what} must be true or false, not {node}")


def _integer(node: Node, what: str) -> int:
    if (
        isinstance(node, Scalar)
        and isinstance(node.value, int)
        and not isinstance(node.value, bool)
    ):
        return node.value
    raise Complaint(node.line, f"{what} must be a whole number, not {node}")


def _duration(node: Node, what: str) -> timedelta:
    example = 'a duration such as "PT1M" or "P14D"'
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise Complaint(node.line, f"{what} must be {example}, not {node}")
    try:
        return parse_duration(node.value)
    except (ValueError, OverflowError) as error:
        raise Complaint(node.line, f"{what} must be {example}, not {node}") from error


def _status(node: Node, what: str) -> Status:
    try:
        return Status(_text(node, what))
    except ValueError as error:
        allowed = ", ".join(Status)
        raise Complaint(node.line, f"{what} must be one of {allowed}, not {node}") from error


# --- objects and lists ----------------------------------------------------------------------------


def _members(node: Node, what: str, known: Iterable[str]) -> Members:
    """An object's members by name. A null counts as not given, as it does for the emulator."""
    if not isinstance(node, Object):
        raise Complaint(node.line, f"{what} must be an object, not {node}")
    known = sorted(known)
    members: dict[str, Member] = {}
    for member in node.members:
        if member.key not in known:
            raise Complaint(
                member.line, f"{what} has no {json.dumps(member.key)}: {_hint(member.key, known)}"
            )
        if member.key in members:
            first = members[member.key].line
            raise Complaint(member.line, f"{what} has {member.key} twice, first in line {first}")
        members[member.key] = member
    return {
        key: member
        for key, member in members.items()
        if not (isinstance(member.node, Scalar) and member.node.value is None)
    }


def _hint(key: str, known: list[str]) -> str:
    # The likeliest slip is a letter's case, which difflib would weigh like any other difference.
    alike = [name for name in known if name.lower() == key.lower()]
    alike = alike or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"


def _items(members: Members, key: str, what: str) -> list[Node]:
    if key not in members:
        return []
    node = members[key].node
    if not isinstance(node, Array):
        raise Complaint(node.line, f"{what} must be a list, not {node}")
    return node.items


def _name(members: Members, node: Node, kind: str) -> tuple[str, int]:
    if "Name" not in members:
        raise Complaint(node.line, f"this {kind} has no Name")
    return _text(members["Name"].node, f"the Name of a {kind}"), members["Name"].line


def _once(seen: dict[str, int], name: str, line: int, kind: str) -> None:
    if name.lower() in seen:
        first = seen[name.lower()]
        raise Complaint(line, f"{kind} {name!r} is defined twice, first in line {first}")
    seen[name.lower()] = line


# --- the file -------------------------------------------------------------------------------------

# The emulator has names for the first nine; the rest are the service's names for what it lacks.
_QUEUE_PROPERTIES: Final[dict[str, tuple[str, Callable[[Node, str], object]]]] = {
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", _boolean),
    "DefaultMessageTimeToLive": ("default_message_time_to_live", _duration),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_time_window", _duration),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", _text_or_none),
    "ForwardTo": ("forward_to", _text_or_none),
    "LockDuration": ("lock_duration", _duration),
    "MaxDeliveryCount": ("max_delivery_count", _integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _boolean),
    "RequiresSession": ("requires_session", _boolean),
    "AutoDeleteOnIdle": ("auto_delete_on_idle", _duration),
    "EnableBatchedOperations": ("enable_batched_operations", _boolean),
    "EnablePartitioning": ("enable_partitioning", _boolean),
    "MaxMessageSizeInKilobytes": ("max_message_size_in_kilobytes", _integer),
    "MaxSizeInMegabytes": ("max_size_in_megabytes", _integer),
    "Status": ("status", _status),
    "UserMetadata": ("user_metadata", _text_or_none),
}


def _namespaces(root: Node) -> list[NamespaceOptions]:
    top = _members(root, "the file", ("UserConfig", "$schema"))
    if "UserConfig" not in top:
        raise Complaint(root.line, "the file has no UserConfig")
    user = _members(top["UserConfig"].node, "UserConfig", ("Namespaces", "Logging"))
    if "Logging" in user:  # read and not heeded: where logs go is the command line's business
        _members(user["Logging"].node, "Logging", ("Type",))
    nodes = _items(user, "Namespaces", "Namespaces")
    if not nodes:
        raise Complaint(top["UserConfig"].line, "UserConfig needs at least one of Namespaces")
    seen: dict[str, int] = {}
    return [_namespace(node, seen) for node in nodes]


def _namespace(node: Node, seen: dict[str, int]) -> NamespaceOptions:
    members = _members(node, "a namespace", ("Name", "Queues", "Topics"))
    name, line = _name(members, node, "namespace")
    _once(seen, name, line, "namespace")
    for topic in _items(members, "Topics", f"Topics of namespace {name!r}"):
        _refuse_topic(topic)
    lines: dict[str, int] = {}
    nodes = _items(members, "Queues", f"Queues of namespace {name!r}")
    queues = [_queue(queue, lines) for queue in nodes]
    for queue in queues:
        _check_targets(queue, lines)
    try:
        return NamespaceOptions(name=name, queues=tuple(queues))
    except ConfigError as error:
        raise Complaint(line, str(error)) from error


def _check_targets(queue: QueueDescription, lines: Mapping[str, int]) -> None:
    # Messages for a missing target would all end in the transfer dead-letter queue, unnoticed.
    for target in (queue.forward_to, queue.forward_dead_lettered_messages_to):
        if target is not None and target.lower() not in lines:
            raise Complaint(
                lines[queue.name.lower()],
                f"queue {queue.name!r} forwards to {target!r}, which this file does not define",
            )


def _refuse_topic(node: Node) -> None:
    """The place for topics, their subscriptions and rules."""
    members = _members(node, "a topic", ("Name", "Properties", "Subscriptions"))
    name, line = _name(members, node, "topic")
    raise Complaint(
        line, f"topic {name!r}: this version has queues only, topics come later; leave it out"
    )


def _queue(node: Node, seen: dict[str, int]) -> QueueDescription:
    members = _members(node, "a queue", ("Name", "Properties"))
    name, line = _name(members, node, "queue")
    _once(seen, name, line, "queue")
    _description(name, {}, line)
    settings: dict[str, object] = {}
    if "Properties" in members:
        what = f"Properties of queue {name!r}"
        for member in _members(members["Properties"].node, what, _QUEUE_PROPERTIES).values():
            field, read = _QUEUE_PROPERTIES[member.key]
            settings[field] = read(member.node, f"{member.key} of queue {name!r}")
            # By itself first, so that a value out of its range is reported on its own line.
            _description(name, {field: settings[field]}, member.line)
    return _description(name, settings, line)


def _description(name: str, settings: Mapping[str, object], line: int) -> QueueDescription:
    try:
        return QueueDescription(name=name, **settings)  # type: ignore[arg-type]
    except ConfigError as error:
        reason = str(error)
        for key, (field, _) in _QUEUE_PROPERTIES.items():
            if (
                field in settings
            ):  # whoever wrote the file knows a setting by the file's name for it
                reason = reason.replace(field, key)
        raise Complaint(line, reason) from error
