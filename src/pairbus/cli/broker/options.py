"""From the words of a command line to the namespaces of a broker. Pure, but for reading --config.

Every complaint names the option, the word and what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    check_name,
    subscription_path,
    topics_from_names,
)
from pairbus.broker.entities.options import SKUS, NamespaceOptions
from pairbus.broker.entities.policies import Policy, Right, default_policy
from pairbus.errors import UsageError

_DEFAULT_NAMESPACE = "local"


def gather_namespaces(
    *,
    namespaces: Sequence[str],
    queues: Sequence[str],
    policies: Sequence[str],
    config: Path | None,
    data: Path | None,
    topics: Sequence[str] = (),
    subscriptions: Sequence[str] = (),
    sku: str = SKUS[0],
    accepts_bearer: bool = False,
) -> list[NamespaceOptions]:
    """A --namespace that the configuration file has gets its port from the command line."""
    gathered: dict[str, NamespaceOptions] = {}
    if config is not None:
        from pairbus.broker.entities.config import load_config

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
    NamespaceOptions(name=name, port=int(port or 0))  # says what is wrong with either
    return name, int(port or 0)


def parse_subscription(text: str) -> str:
    """`TOPIC/NAME` as the path of the subscription. A topic's name may hold slashes."""
    topic, slash, name = text.rpartition("/")
    topic = topic.removesuffix("/Subscriptions").removesuffix("/subscriptions")
    if not (slash and topic and name):
        raise UsageError(f"--subscription {text!r}: must be TOPIC/NAME, such as events/audit")
    return subscription_path(topic, name)


def parse_policy(text: str) -> Policy:
    """`NAME:KEY:RIGHTS`; the key may have colons in it."""
    name, first, rest = text.partition(":")
    key, second, rights = rest.rpartition(":")
    # The key is a secret: no complaint repeats it.
    shown = f"--policy {name or '...'}"
    if not (first and second and name and key and rights):
        raise UsageError(f"{shown}: must be NAME:KEY:RIGHTS, such as app:s3cret:Send,Listen")
    if ";" in name or ";" in key:
        raise UsageError(
            f"{shown}: name and key may not hold ';', which ends them in a connection string"
        )
    by_name = {right.value.lower(): right for right in Right}
    chosen = set()
    for word in rights.split(","):
        right = by_name.get(word.strip().lower())
        if right is None:
            raise UsageError(f"{shown}: {word!r} is no right; use {', '.join(Right)}")
        chosen.add(right)
    return Policy(name=name, key=key, rights=frozenset(chosen))


def _with_queues(options: NamespaceOptions, names: Sequence[str]) -> list[QueueDescription]:
    """The file's description of a queue holds; the command line adds those it lacks."""
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
