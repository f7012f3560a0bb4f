"""Where messages are: a queue or a subscription, or what is set aside in it. Pure.

A name may hold slashes, so `events/audit` is a queue of that name; a subscription takes two words,
`events audit`, or the service's own path, `events/Subscriptions/audit`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from pairbus.errors import UsageError


class Part(StrEnum):
    """Of an entity: its messages, or what was put aside."""

    MESSAGES = ""
    DEAD_LETTERS = "/$DeadLetterQueue"
    TRANSFER_DEAD_LETTERS = "/$Transfer/$DeadLetterQueue"


class SubQueue(StrEnum):
    """As it is typed."""

    DEAD_LETTER = "dead-letter"
    TRANSFER = "transfer-dead-letter"

    @property
    def part(self) -> Part:
        return Part.DEAD_LETTERS if self is SubQueue.DEAD_LETTER else Part.TRANSFER_DEAD_LETTERS


_PARTS: Final = {part.value.lower(): part for part in reversed(Part)}
# The service decides what is a name; these could not even be asked for.
_NO_NAME: Final = re.compile(r"[\s?#%;=\"'\\\x00-\x1f\ud800-\udfff]|//")
_SUBSCRIPTION: Final = re.compile(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    entity: str
    """A queue or a topic."""
    subscription: str | None = None
    part: Part = Part.MESSAGES

    @property
    def path(self) -> str:
        own = "" if self.subscription is None else f"/Subscriptions/{self.subscription}"
        return f"{self.entity}{own}{self.part}"

    @property
    def spoken(self) -> str:
        if self.subscription is None:
            name = repr(self.entity)
        else:
            name = f"subscription {self.subscription!r} of topic {self.entity!r}"
        return {
            Part.MESSAGES: name,
            Part.DEAD_LETTERS: f"the dead-letter queue of {name}",
            Part.TRANSFER_DEAD_LETTERS: f"the transfer dead-letter queue of {name}",
        }[self.part]

    @property
    def hint(self) -> str:
        """For who is told that it is not there."""
        topic, slash, name = self.entity.rpartition("/")
        if self.subscription is not None or not slash:
            return ""
        return f"; if a subscription is meant, it takes two words: {topic} {name}"

    def within(self, part: Part) -> Self:
        return replace(self, part=part)


def parse_place(
    entity: str, subscription: str | None = None, sub_queue: SubQueue | None = None
) -> Place:
    """Raises UsageError."""
    path, part = entity.strip().strip("/"), sub_queue.part if sub_queue else Part.MESSAGES
    for ending, one in _PARTS.items():
        if ending and path.lower().endswith(ending):
            path, part = path[: -len(ending)], one
            break
    match = _SUBSCRIPTION.fullmatch(path)
    if match is not None and subscription is None:
        path, subscription = match["topic"], match["name"]
    if not path or (subscription is not None and not subscription.strip()):
        raise UsageError(
            "which entity? Name a queue, such as orders, or a topic and a subscription, such as "
            "events audit"
        )
    for name in filter(None, (path, subscription)):
        if _NO_NAME.search(name):
            raise UsageError(
                f"{name!r} is no entity's name: letters, digits, '.', '-', '_' and '/' are expected"
            )
    return Place(entity=path, subscription=subscription, part=part)
