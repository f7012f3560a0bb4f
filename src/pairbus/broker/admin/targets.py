"""What a request's path points to: an entity, a list of them, or the namespace itself.

A slash inside a name comes as `%2F` from most clients and as it is from Node's, so the path is
split before it is decoded, and read from its end. Whether the target exists is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from pairbus.broker.admin.errors import bad_request, not_found
from pairbus.broker.entities.descriptions import SUBSCRIPTIONS, subscription_path

_LENGTH_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    path = address = "$namespaceinfo"


@dataclass(frozen=True, slots=True)
class Queues:
    path = address = "$Resources/Queues"


@dataclass(frozen=True, slots=True)
class Topics:
    path = address = "$Resources/Topics"


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue or a topic: the path does not tell which."""

    path: str

    @property
    def address(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Subscriptions:
    topic: str

    @property
    def path(self) -> str:
        return self.topic

    @property
    def address(self) -> str:
        return f"{self.topic}/{SUBSCRIPTIONS}"


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    name: str

    @property
    def path(self) -> str:
        return subscription_path(self.topic, self.name)

    @property
    def address(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Rules:
    topic: str
    subscription: str

    @property
    def path(self) -> str:
        return subscription_path(self.topic, self.subscription)

    @property
    def address(self) -> str:
        return f"{self.path}/Rules"


@dataclass(frozen=True, slots=True)
class Rule:
    topic: str
    subscription: str
    name: str

    @property
    def path(self) -> str:
        return subscription_path(self.topic, self.subscription)

    @property
    def address(self) -> str:
        return f"{self.path}/Rules/{self.name}"


List = Queues | Topics | Subscriptions | Rules
Target = NamespaceInfo | Entity | Subscription | Rule | List
"""Each has a `path`, of the entity that it belongs to, and an `address`, where itself is."""


def parse(raw_path: bytes) -> Target:
    """The path as it stands in the request line, without its query."""
    if len(raw_path) > _LENGTH_MAX:
        raise bad_request(f"A path of {len(raw_path)} bytes is longer than any name can be")
    parts = [unquote(part) for part in raw_path.decode("latin-1").strip("/").split("/")]
    match [part.lower() for part in parts]:
        case [""]:
            raise bad_request("The name of a queue, topic or subscription is missing")
        case ["$namespaceinfo"]:
            return NamespaceInfo()
        case ["$resources", "queues"]:
            return Queues()
        case ["$resources", "topics"]:
            return Topics()
        case [first, *_] if first.startswith("$"):
            raise not_found(f"resource {shown('/'.join(parts))!r}")
        case [_, *_, "subscriptions", _, "rules", _]:
            return Rule("/".join(parts[:-4]), parts[-3], parts[-1])
        case [_, *_, "subscriptions", _, "rules"]:
            return Rules("/".join(parts[:-3]), parts[-2])
        case [_, *_, "subscriptions", _]:
            return Subscription("/".join(parts[:-2]), parts[-1])
        case [_, *_, "subscriptions"]:
            return Subscriptions("/".join(parts[:-1]))
    return Entity("/".join(parts))


def shown(text: str) -> str:
    """A name from outside, for an error: XML has no place for control characters."""
    return "".join(character for character in text[:200] if character.isprintable())
