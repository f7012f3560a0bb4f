"""Makes the namespaces of a broker from the options of `pairbus broker`.

Every error names the option, its value and a valid form. Only --config reads a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pairbus.broker.entities.config import load_config
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    check_name,
    subscription_path,
    topics_from_names,
)
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.errors import UsageError

_DEFAULT_NAMESPACE = "local"


def namespaces_from_options(
    *,
    namespaces: Sequence[str],
    queues: Sequence[str],
    topics: Sequence[str],
    subscriptions: Sequence[str],
    policies: Sequence[str],
    config: Path | None,
    data: Path | None,
    sku: str,
    accepts_bearer: bool,
) -> list[NamespaceOptions]:
    """A --namespace that is also in the configuration file sets the port of that namespace."""
    gathered: dict[str, NamespaceOptions] = {}
    if config is not None:
        gathered = {options.name.lower(): options for options in load_config(config)}
    if not namespaces and not gathered:
        namespaces = [_DEFAULT_NAMESPACE]

    named: set[str] = set()
    for name, port in map(parse_namespace, namespaces):
        if name.lower() in named:
            raise UsageError(f"--namespace {name} is given twice")
        named.add(name.lower())
        known = gathered.get(name.lower(), NamespaceOptions(name=name))
        gathered[name.lower()] = replace(known, port=port)

    accepted = tuple(map(parse_policy, policies)) or (default_policy(),)
    names = [policy.name for policy in accepted]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--policy {name} is given twice")
    added = topics_from_names([*topics, *map(parse_subscription, subscriptions)])
    return [
        replace(
            options,
            queues=_with_queues(options, queues),
            topics=_with_topics(options, added),
            policies=accepted,
            data=data,
            sku=sku,
            accepts_bearer=accepts_bearer,
        )
        for options in gathered.values()
    ]


def parse_namespace(text: str) -> tuple[str, int]:
    """`NAME` or `NAME:PORT`."""
    name, colon, port = text.partition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if colon and not is_number:
        raise UsageError(f"--namespace {text!r}: {port!r} is not a port between 0 and 65535")
    NamespaceOptions(name=name, port=int(port or 0))  # raises if the name or the port is invalid
    return name, int(port or 0)


def parse_subscription(text: str) -> str:
    """The path of the subscription `TOPIC/NAME`. A topic's name may contain slashes."""
    topic, slash, name = text.rpartition("/")
    topic = topic.removesuffix("/Subscriptions").removesuffix("/subscriptions")
    if not (slash and topic and name):
        raise UsageError(f"--subscription {text!r}: must be TOPIC/NAME, such as events/audit")
    return subscription_path(topic, name)


def parse_policy(text: str) -> Policy:
    """`NAME:KEY:RIGHTS`. The key may contain colons."""
    name, first, rest = text.partition(":")
    key, second, rights = rest.rpartition(":")
    # The key is a secret, so no error repeats it.
    shown = f"--policy {name or '...'}"
    if not (first and second and name and key and rights):
        raise UsageError(f"{shown}: must be NAME:KEY:RIGHTS, such as app:s3cret:Send,Listen")
    if ";" in name or ";" in key:
        raise UsageError(
            f"{shown}: name and key must not contain ';', which separates the parts of a "
            "connection string"
        )
    by_name = {right.value.lower(): right for right in Right}
    chosen = set()
    for word in rights.split(","):
        right = by_name.get(word.strip().lower())
        if right is None:
            raise UsageError(f"{shown}: {word!r} is not a right; use {', '.join(Right)}")
        chosen.add(right)
    return Policy(name=name, key=key, rights=frozenset(chosen))


def _with_queues(options: NamespaceOptions, names: Sequence[str]) -> list[QueueDescription]:
    """Adds the queues that the configuration file does not describe."""
    queues = list(options.queues)
    known = {queue.name.lower() for queue in queues}
    for name in dict.fromkeys(names):
        check_name(name)
        if name.lower() not in known:
            queues.append(QueueDescription(name=name))
            known.add(name.lower())
    return queues


def _with_topics(
    options: NamespaceOptions, added: Sequence[EntityDescription]
) -> list[EntityDescription]:
    known = {entity.name.lower() for entity in options.topics}
    fresh = {one.name.lower(): one for one in added if one.name.lower() not in known}
    return [*options.topics, *fresh.values()]
