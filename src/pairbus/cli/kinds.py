"""The kinds of entities, and how their paths are said. Imports nothing that takes time."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Kind(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    RULE = "rule"

    @property
    def parents(self) -> tuple[Kind, ...]:
        """What must be named before an entity of this kind."""
        return {
            Kind.SUBSCRIPTION: (Kind.TOPIC,),
            Kind.RULE: (Kind.TOPIC, Kind.SUBSCRIPTION),
        }.get(self, ())


def spoken(kind: Kind, path: Sequence[str]) -> str:
    """`rule 'only-eu' of subscription 'events/audit'`"""
    *parents, own = path
    return f"{kind} {own!r}" + (f" of {kind.parents[-1]} {'/'.join(parents)!r}" if parents else "")
