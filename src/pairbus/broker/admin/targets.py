"""The target of a request: an entity, a list of entities, or the namespace itself.

Most clients write a slash inside a name as `%2F`, but Node's writes it as it is. So the path is
split before it is decoded, and read from its end. `AdminRequest` also finds the entity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request

from pairbus.broker.admin.access import bad_request, not_found
from pairbus.broker.admin.atom import RequestAddress
from pairbus.broker.entities.descriptions import (
    SUBSCRIPTIONS,
    RuleDescription,
    subscription_path,
)
from pairbus.broker.messages.queue import Queue
from pairbus.broker.messages.topic import Subscription, Topic
from pairbus.broker.namespace import Namespace

_LENGTH_MAX: Final = 2048
_API_VERSION: Final = re.compile(r"20[0-9]{2}-[01][0-9]")
_MESSAGE_SIZE_SINCE: Final = "2021-05"
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


class TargetKind(Enum):
    NAMESPACE = auto()
    QUEUES = auto()
    TOPICS = auto()
    ENTITY = auto()
    """A queue or a topic: the path does not say which."""
    SUBSCRIPTIONS = auto()
    SUBSCRIPTION = auto()
    RULES = auto()
    RULE = auto()


@dataclass(frozen=True, slots=True)
class AdminTarget:
    kind: TargetKind
    entity: str
    """The queue or topic; the address itself where there is none."""
    subscription: str | None = None
    rule: str | None = None

    @property
    def path(self) -> str:
        """The queue, topic or subscription that it belongs to. The keys of that entity are valid
        for it.
        """
        if self.subscription is None:
            return self.entity
        return subscription_path(self.entity, self.subscription)

    @property
    def address(self) -> str:
        """Its normalized path."""
        match self.kind:
            case TargetKind.SUBSCRIPTIONS:
                return f"{self.entity}/{SUBSCRIPTIONS}"
            case TargetKind.RULES:
                return f"{self.path}/Rules"
            case TargetKind.RULE:
                return f"{self.path}/Rules/{self.rule}"
        return self.path

    @property
    def is_of_entity(self) -> bool:
        return self.kind not in (TargetKind.NAMESPACE, TargetKind.QUEUES, TargetKind.TOPICS)


def parse(raw_path: bytes) -> AdminTarget:
    """Reads the path from the request line, without its query."""
    if len(raw_path) > _LENGTH_MAX:
        raise bad_request(f"A path of {len(raw_path)} bytes is longer than any name can be")
    parts = [unquote(part) for part in raw_path.decode("latin-1").strip("/").split("/")]
    match [part.lower() for part in parts]:
        case [""]:
            raise bad_request("The name of a queue, topic or subscription is missing")
        case ["$namespaceinfo"]:
            return AdminTarget(TargetKind.NAMESPACE, "$namespaceinfo")
        case ["$resources", "queues"]:
            return AdminTarget(TargetKind.QUEUES, "$Resources/Queues")
        case ["$resources", "topics"]:
            return AdminTarget(TargetKind.TOPICS, "$Resources/Topics")
        case [first, *_] if first.startswith("$"):
            raise not_found(f"resource {shown('/'.join(parts))!r}")
        case [_, *_, "subscriptions", _, "rules", _]:
            return AdminTarget(TargetKind.RULE, "/".join(parts[:-4]), parts[-3], parts[-1])
        case [_, *_, "subscriptions", _, "rules"]:
            return AdminTarget(TargetKind.RULES, "/".join(parts[:-3]), parts[-2])
        case [_, *_, "subscriptions", _]:
            return AdminTarget(TargetKind.SUBSCRIPTION, "/".join(parts[:-2]), parts[-1])
        case [_, *_, "subscriptions"]:
            return AdminTarget(TargetKind.SUBSCRIPTIONS, "/".join(parts[:-1]))
    return AdminTarget(TargetKind.ENTITY, "/".join(parts))


def shown(text: str) -> str:
    """A name from outside, for an error: XML cannot hold control characters."""
    return "".join(character for character in text[:200] if character.isprintable())


class AdminRequest:
    """One request: its target, and the entity there. Raises HttpRefused."""

    def __init__(self, namespace: Namespace, http: Request) -> None:
        self.namespace = namespace
        self.http = http
        self.address = _address(http)
        self.target = parse(http.scope["raw_path"])

    @property
    def has_message_size(self) -> bool:
        """Older versions of the API do not know MaxMessageSizeInKilobytes."""
        version = self.address.api_version
        return version is None or version >= _MESSAGE_SIZE_SINCE

    def entity(self) -> Queue:
        """A queue or a topic, or a subscription if the path says that it is one."""
        if self.target.kind is TargetKind.SUBSCRIPTION:
            return self.subscription()
        found = self.namespace.find(self.target.entity)
        if found is None or isinstance(found, Subscription):
            raise not_found(f"queue or topic {shown(self.target.entity)!r}")
        return found

    def topic(self) -> Topic:
        found = self.namespace.find(self.target.entity)
        if not isinstance(found, Topic):
            raise not_found(f"topic {shown(self.target.entity)!r}")
        return found

    def subscription(self) -> Subscription:
        topic, name = self.topic(), self.target.subscription or ""
        found = topic.subscriptions.get(name.lower())
        if found is None:
            raise not_found(f"subscription {shown(name)!r} of topic {topic.name!r}")
        return found

    def rule(self, subscription: Subscription) -> RuleDescription:
        name = self.target.rule or ""
        found = subscription.description.find_rule(name)
        if found is None:
            raise not_found(f"rule {shown(name)!r} of {subscription.description}")
        return found


def _address(http: Request) -> RequestAddress:
    version = http.query_params.get("api-version")
    if version is not None and not _API_VERSION.fullmatch(version):
        raise bad_request(f"The api-version {version[:100]!r} is not known; use 2021-05")
    host = http.headers.get("host", "localhost")
    if not _HOST.fullmatch(host):
        raise bad_request("The Host header is not the name of a host")
    return RequestAddress(scheme=http.scope["scheme"], host=host, api_version=version)
