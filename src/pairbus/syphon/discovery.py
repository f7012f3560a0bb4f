"""Which backlog queues there are on a secondary namespace, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

_NAME = re.compile(r"(?P<namespace>.+)/x-servicebus-transfer/(?P<index>\d+)", re.IGNORECASE)


class Discovery(Protocol):
    def queues(self) -> Sequence[str]: ...


class Listed:
    """Those that the administration client lists, of one primary namespace."""

    def __init__(self, manager: Any, namespace: str) -> None:
        self._manager = manager
        self._namespace = namespace

    def queues(self) -> Sequence[str]:
        listed: Iterable[Any] = self._manager.list_queues()
        return backlog_queues((queue.name for queue in listed), self._namespace)


class Named:
    """Those that were named: for who may not list queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(queues)

    def queues(self) -> Sequence[str]:
        return self._queues


def backlog_queues(names: Iterable[str], namespace: str) -> list[str]:
    """Of all queues, those of one primary, in the order of their numbers."""
    found: list[tuple[int, str]] = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match["namespace"].lower() == namespace.lower():
            found.append((int(match["index"]), name))
    return [name for _, name in sorted(found)]
