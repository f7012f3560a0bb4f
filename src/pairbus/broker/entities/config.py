"""Reads the official emulator's Config.json into the options of namespaces.

Its settings are those of `settings.py`, with the ranges of the service and not the emulator's
narrower ones. Every error names the file, the line and a correct form. Validation libraries do not
report lines. Ports, policies and data are not part of that format: the caller adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pairbus.broker.entities.config_rules import read_rules
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
    settings_of,
    subscription_path,
)
from pairbus.broker.entities.located_json import ConfigMistake, Members, Node, parse
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.settings import ValueKind, in_service_names
from pairbus.errors import ConfigError

_Entity = TypeVar("_Entity", bound=EntityDescription)

_READERS: Final[Mapping[ValueKind, Callable[[Node, str], object]]] = {
    ValueKind.BOOLEAN: Node.boolean,
    ValueKind.INTEGER: Node.integer,
    ValueKind.DURATION: Node.duration,
    ValueKind.STATUS: lambda node, what: Status(node.one_of(what, tuple(Status))),
    ValueKind.TEXT: Node.text_or_none,
    ValueKind.TARGET: Node.text_or_none,
}


def load_config(path: str | Path) -> list[NamespaceOptions]:
    """The namespaces of a Config.json, or ConfigError with `file:line: reason`."""
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")  # Windows editors write a byte order mark
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        return _namespaces(parse(text))
    except ConfigMistake as mistake:
        raise ConfigError(f"{path}:{mistake.line}: {mistake.reason}") from mistake.__cause__


def _namespaces(root: Node) -> list[NamespaceOptions]:
    top = root.members("the file", ("UserConfig", "$schema"))
    if "UserConfig" not in top:
        raise ConfigMistake(root.line, "the file has no UserConfig")
    user = top["UserConfig"].node.members("UserConfig", ("Namespaces", "Logging"))
    if "Logging" in user:  # checked and ignored: the command line decides where logs go
        user["Logging"].node.members("Logging", ("Type",))
    nodes = user.list("Namespaces", "Namespaces")
    if not nodes:
        raise ConfigMistake(top["UserConfig"].line, "UserConfig needs at least one of Namespaces")
    seen: dict[str, int] = {}
    return [_namespace(node, seen) for node in nodes]


def _namespace(node: Node, seen: dict[str, int]) -> NamespaceOptions:
    own = node.members("a namespace", ("Name", "Queues", "Topics"))
    name, line = own.name("namespace", seen)
    lines: dict[str, int] = {}
    nodes = own.list("Queues", f"Queues of namespace {name!r}")
    queues = [_queue(queue, lines) for queue in nodes]
    topics: list[EntityDescription] = []
    targets = lines.copy()
    for topic in own.list("Topics", f"Topics of namespace {name!r}"):
        described, *subscriptions = _topic_and_subscriptions(topic, lines)
        targets[described.name.lower()] = lines[described.name.lower()]
        topics += [described, *subscriptions]
    _check_targets([*queues, *topics], lines, targets)
    try:
        return NamespaceOptions(name=name, queues=tuple(queues), topics=tuple(topics))
    except ConfigError as error:
        raise ConfigMistake(line, str(error)) from error


def _check_targets(
    entities: Sequence[EntityDescription], lines: Mapping[str, int], targets: Mapping[str, int]
) -> None:
    # Otherwise all messages for a missing target would go to the transfer dead-letter queue.
    for entity in entities:
        for target in (entity.forward_to, entity.forward_dead_lettered_messages_to):
            if target is not None and target.lower() not in targets:
                raise ConfigMistake(
                    lines[entity.name.lower()],
                    f"{entity} forwards to {target!r}, which this file does not define",
                )


def _queue(node: Node, lines: dict[str, int]) -> QueueDescription:
    own = node.members("a queue", ("Name", "Properties"))
    name, line = own.name("queue", lines)
    return _entity(QueueDescription, name, line, own)


def _topic_and_subscriptions(node: Node, lines: dict[str, int]) -> list[EntityDescription]:
    own = node.members("a topic", ("Name", "Properties", "Subscriptions"))
    name, line = own.name("topic", lines)
    topic = _entity(TopicDescription, name, line, own)
    nodes = own.list("Subscriptions", f"Subscriptions of topic {name!r}")
    return [topic, *(_subscription(each, name, lines) for each in nodes)]


def _subscription(node: Node, topic: str, lines: dict[str, int]) -> SubscriptionDescription:
    own = node.members("a subscription", ("Name", "Properties", "Rules"))
    path, line = own.name("subscription", lines, before=subscription_path(topic, ""))
    more = {"rules": read_rules(own, path)}
    return _entity(SubscriptionDescription, path, line, own, more)


def _entity(
    kind: type[_Entity],
    name: str,
    line: int,
    own: Members,
    more: Mapping[str, object] = MappingProxyType({}),
) -> _Entity:
    _described(kind, name, {}, line)  # the name is checked before its settings
    values: dict[str, object] = {}
    if "Properties" in own:
        what, settings = f"{kind.noun} {name!r}", settings_of(kind)
        for member in own["Properties"].node.members(f"Properties of {what}", settings).values():
            setting = settings[member.key]
            value = _READERS[setting.kind](member.node, f"{member.key} of {what}")
            if (problem := setting.problem_with(value)) is not None:
                raise ConfigMistake(member.line, f"{what}: {member.key} {problem}")
            values[setting.field] = value
    return _described(kind, name, {**values, **more}, line)


def _described(kind: type[_Entity], name: str, values: Mapping[str, Any], line: int) -> _Entity:
    try:
        return kind(name=name, **values)
    except ConfigError as error:
        raise ConfigMistake(line, in_service_names(str(error))) from error
