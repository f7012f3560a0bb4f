"""Which backlog queues a secondary namespace has. Their names say which primary they belong to."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

ListQueues = Callable[[], Sequence[str]]
"""Returns the names of the backlog queues that exist now. Raises AzureError."""

_NAME = re.compile(r"(?P<namespace>.+)/x-servicebus-transfer/(?P<index>\d+)", re.IGNORECASE)


class ListedQueues:
    """Lists the backlog queues of some primaries with the administration client of a secondary."""

    def __init__(self, manager: Any, *namespaces: str) -> None:
        self._manager = manager
        self._namespaces = namespaces
        self.others: Mapping[str, int] = {}
        """The number of backlog queues of other primaries in the last list, by primary."""

    def __call__(self) -> list[str]:
        names = [queue.name for queue in self._manager.list_queues()]
        ours = {namespace.lower() for namespace in self._namespaces}
        self.others = Counter(
            owner
            for owner in map(namespace_of, names)
            if owner is not None and owner.lower() not in ours
        )
        return [name for one in self._namespaces for name in backlog_queues(names, one)]


class PeriodicDiscovery:
    """Lists the queues at regular intervals, in its own thread.

    A secondary that does not answer must not hold up the rounds. A thread that waits for it is a
    daemon, and ends with the process at the latest.
    """

    def __init__(self, list_queues: ListQueues, *, every_seconds: float) -> None:
        self._list_queues = list_queues
        self._every_seconds = every_seconds
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._answer: Sequence[str] | BaseException | None = None

    def request(self) -> None:
        """List again at the next `poll`."""
        self._due = 0.0

    def poll(self, *, until: Callable[[], bool] | None = None) -> Sequence[str] | None:
        """Returns the queues if a listing has just ended, and None otherwise.

        With `until`, waits for the listing until `until()` is true. Raises the listing's error.
        """
        if self._thread is None:
            if time.monotonic() < self._due:
                return None
            self._thread = threading.Thread(
                target=self._run, name="pairbus-syphon-discovery", daemon=True
            )
            self._thread.start()
        while self._thread.is_alive():
            if until is None or until():
                return None
            self._thread.join(0.05)
        self._thread = None
        self._due = time.monotonic() + self._every_seconds
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        try:
            self._answer = self._list_queues()
        except BaseException as error:
            self._answer = error


def backlog_queues(names: Iterable[str], namespace: str) -> list[str]:
    """Returns the backlog queues of one primary among `names`, in the order of their numbers."""
    found: list[tuple[int, str]] = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match["namespace"].lower() == namespace.lower():
            found.append((int(match["index"]), name))
    return [name for _, name in sorted(found)]


def namespace_of(queue: str) -> str | None:
    """Returns the primary that a backlog queue belongs to, or None if it is not a backlog queue."""
    match = _NAME.fullmatch(queue)
    return None if match is None else match["namespace"]
