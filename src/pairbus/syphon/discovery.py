"""Which backlog queues there are on a secondary namespace, by their names."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

_NAME = re.compile(r"(?P<namespace>.+)/x-servicebus-transfer/(?P<index>\d+)", re.IGNORECASE)


class Discovery(Protocol):
    def queues(self) -> Sequence[str]: ...


class Listed:
    """Those that the administration client lists, of one primary namespace or of several."""

    def __init__(self, manager: Any, *namespaces: str) -> None:
        self._manager = manager
        self._namespaces = namespaces
        self.others: Mapping[str, int] = {}
        """How many backlog queues of other primaries the last list had, which are left alone."""

    def queues(self) -> Sequence[str]:
        listed: Iterable[Any] = self._manager.list_queues()
        names = [queue.name for queue in listed]
        ours = {namespace.lower() for namespace in self._namespaces}
        self.others = Counter(
            owner
            for owner in map(namespace_of, names)
            if owner is not None and owner.lower() not in ours
        )
        return [name for one in self._namespaces for name in backlog_queues(names, one)]


class Named:
    """Those that were named: for who may not list queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(queues)

    def queues(self) -> Sequence[str]:
        return self._queues


class Finder:
    """Asks a discovery now and then, in a thread of its own: who does not answer holds up nobody.

    A thread that waits for ever does so alone, and ends with the process.
    """

    def __init__(self, discovery: Discovery, *, every_seconds: float) -> None:
        self._discovery = discovery
        self._every_seconds = every_seconds
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._answer: Sequence[str] | BaseException | None = None

    def ask_soon(self) -> None:
        self._due = 0.0

    def news(self, *, is_enough: Callable[[], bool] | None = None) -> Sequence[str] | None:
        """The queues there are, if that was just found out, else None; raises what the discovery
        has raised. It is not waited for, but where `is_enough` is given: until that is true."""
        if self._thread is None:
            if time.monotonic() < self._due:
                return None
            self._thread = threading.Thread(
                target=self._ask, name="pairbus-syphon-discovery", daemon=True
            )
            self._thread.start()
        while self._thread.is_alive():
            if is_enough is None or is_enough():
                return None
            self._thread.join(0.05)
        self._thread = None
        self._due = time.monotonic() + self._every_seconds
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _ask(self) -> None:
        try:
            self._answer = self._discovery.queues()
        except BaseException as error:
            self._answer = error


def backlog_queues(names: Iterable[str], namespace: str) -> list[str]:
    """Of all queues, those of one primary, in the order of their numbers."""
    found: list[tuple[int, str]] = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match["namespace"].lower() == namespace.lower():
            found.append((int(match["index"]), name))
    return [name for _, name in sorted(found)]


def namespace_of(queue: str) -> str | None:
    """The primary whose backlog queue this is, by its name; None if it is no backlog queue."""
    match = _NAME.fullmatch(queue)
    return None if match is None else match["namespace"]
