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
from pairbus.cli.broker.options import BrokerOptions
from pairbus.errors import UsageError

_DEFAULT_NAMESPACE = "local"
# The ports of the official emulator: AMQP; administration and health.
_EMULATOR_PORT = 5672
_EMULATOR_ADMINISTRATION_PORT = 5300


def namespaces_from_options(options: BrokerOptions) -> list[NamespaceOptions]:
    gathered = _gather(options.namespace or (), options.config)
    if options.administration_port is not None:
        if len(gathered) > 1:
            raise UsageError("--administration-port needs a broker with one namespace")
        gathered = [replace(gathered[0], administration_port=options.administration_port)]
    policies = [*(options.policy or ()), *read_policies(options.policy_file)]
    accepted = tuple(map(parse_policy, policies)) or (default_policy(),)
    names = [policy.name for policy in accepted]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--policy {name} is given twice")
    subscriptions = map(parse_subscription, options.subscription or ())
    added = topics_from_names([*(options.topic or ()), *subscriptions])
    return [
        replace(
            one,
            queues=_with_queues(one, options.queue or ()),
            topics=_with_topics(one, added),
            policies=accepted,
            data=options.folder,
            sku=options.sku.value,
            accepts_bearer=options.accept_bearer,
            allows_faults=options.allow_faults,
        )
        for one in gathered
    ]


def _gather(namespaces: Sequence[str], config: Path | None) -> list[NamespaceOptions]:
    """The namespaces of the file and of --namespace, with their ports.

    A --namespace sets the port of the file's namespace of that name, or renames the only one of the
    file. A broker with one namespace from a file has the ports of the official emulator.
    """
    of_file = [] if config is None else load_config(config)
    wanted: dict[str, tuple[str, int | None]] = {}
    for name, port in map(parse_namespace, namespaces or ([] if of_file else [_DEFAULT_NAMESPACE])):
        if name.lower() in wanted:
            raise UsageError(f"--namespace {name} is given twice")
        wanted[name.lower()] = (name, port)

    unnamed = [one.name for one in of_file if one.name.lower() not in wanted]
    known = {one.name.lower() for one in of_file}
    unknown = [name for key, (name, _) in wanted.items() if key not in known]
    if unnamed and unknown:
        if len(of_file) > 1 or len(wanted) > 1:
            raise UsageError(
                f"--namespace {unknown[0]}: {config} has no namespace of this name; its "
                f"namespaces are {', '.join(one.name for one in of_file)}"
            )
        of_file = [replace(of_file[0], name=unknown[0])]

    gathered = {one.name.lower(): one for one in of_file}
    for key, (name, _) in wanted.items():
        gathered.setdefault(key, NamespaceOptions(name=name))
    is_emulator = bool(of_file) and len(gathered) == 1
    for key, options in gathered.items():
        port = wanted[key][1] if key in wanted else None
        if port is None:
            port = _EMULATOR_PORT if is_emulator else 0
        has_both = is_emulator and port == _EMULATOR_PORT
        gathered[key] = replace(
            options,
            port=port,
            administration_port=_EMULATOR_ADMINISTRATION_PORT if has_both else None,
        )
    return list(gathered.values())


def parse_namespace(text: str) -> tuple[str, int | None]:
    """`NAME` or `NAME:PORT`."""
    name, colon, port = text.partition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if colon and not is_number:
        raise UsageError(f"--namespace {text!r}: {port!r} is not a port between 0 and 65535")
    NamespaceOptions(name=name, port=int(port or 0))  # raises if the name or the port is invalid
    return name, int(port) if colon else None


def parse_subscription(text: str) -> str:
    """The path of the subscription `TOPIC/NAME`. A topic's name may contain slashes."""
    topic, slash, name = text.rpartition("/")
    topic = topic.removesuffix("/Subscriptions").removesuffix("/subscriptions")
    if not (slash and topic and name):
        raise UsageError(f"--subscription {text!r}: must be TOPIC/NAME, such as events/audit")
    return subscription_path(topic, name)


def read_policies(file: Path | None) -> list[str]:
    """The lines of a file of policies, without empty ones and comments."""
    if file is None:
        return []
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--policy-file {file}: cannot be read: {reason}") from error
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"--policy-file {file}: has no policy; write NAME:KEY:RIGHTS on a line")
    return found


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
