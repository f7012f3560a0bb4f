"""Where messages are: in a queue or a subscription, or in one of its sub-queues. Pure.

A name may contain slashes, so `events/audit` is a queue of that name. A subscription is two words,
`events audit`, or the service's own path, `events/Subscriptions/audit`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pairbus.errors import UsageError


class SubQueue(StrEnum):
    """As it is typed."""

    DEAD_LETTER = "dead-letter"
    TRANSFER_DEAD_LETTER = "transfer-dead-letter"

    @property
    def path(self) -> str:
        """What the service appends to the path of the entity."""
        is_transfer = self is SubQueue.TRANSFER_DEAD_LETTER
        return "/$Transfer/$DeadLetterQueue" if is_transfer else "/$DeadLetterQueue"


# The service decides what a name is; these could not even be put into a request.
_NO_NAME: Final = re.compile(r"[\s?#%;=\"'\\\x00-\x1f\ud800-\udfff]|//")
_SUBSCRIPTION: Final = re.compile(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityPath:
    entity: str
    """A queue or a topic."""
    subscription: str | None = None
    sub_queue: SubQueue | None = None

    @property
    def path(self) -> str:
        own = "" if self.subscription is None else f"/Subscriptions/{self.subscription}"
        return f"{self.entity}{own}{self.sub_queue.path if self.sub_queue else ''}"

    @property
    def accepts_messages(self) -> bool:
        """Only queues and topics accept messages."""
        return self.subscription is None and self.sub_queue is None

    @property
    def description(self) -> str:
        if self.subscription is None:
            name = repr(self.entity)
        else:
            name = f"subscription {self.subscription!r} of topic {self.entity!r}"
        return f"the {self.sub_queue} queue of {name}" if self.sub_queue else name

    @property
    def hint(self) -> str:
        """A suggestion for the user, if the entity does not exist."""
        topic, slash, name = self.entity.rpartition("/")
        if self.subscription is not None or not slash:
            return ""
        return f"; if you mean a subscription, write two words: {topic} {name}"


def parse_entity_path(
    entity: str, subscription: str | None = None, sub_queue: SubQueue | None = None
) -> EntityPath:
    """Raises UsageError."""
    path = entity.strip().strip("/")
    for one in reversed(SubQueue):  # the longer path first: one ends with the other
        if path.lower().endswith(one.path.lower()):
            path, sub_queue = path[: -len(one.path)], one
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
                f"{name!r} is not a valid name of an entity: use letters, digits, '.', '-', '_' "
                "and '/'"
            )
    return EntityPath(entity=path, subscription=subscription, sub_queue=sub_queue)
