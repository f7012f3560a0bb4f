"""Which backlog queues a secondary namespace has. Their names say which primary they belong to."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any

from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_each
from pairbus.syphon.long_poll import ANSWER_SECONDS
from pairbus.syphon.policy import Failure, failure_of

# How many free numbers are tried for each primary: one more than exist, or those of deleted queues.
NEXT_MAX = 3

ListQueues = Callable[[], Sequence[str]]
"""Returns the names of the backlog queues that exist now. Raises AzureError."""

_NAME = re.compile(r"(?P<namespace>.+)/x-servicebus-transfer/(?P<index>\d+)", re.IGNORECASE)


class ListedQueues:
    """Lists the backlog queues of some primaries with the administration client of a secondary.

    A list is billed as an operation. So after the first one, links to the queues show whether one
    was created or deleted, which is not billed. Only then are they listed again.
    """

    def __init__(
        self, manager: Any, *namespaces: str, connect: Callable[..., FastClient] | None = None
    ) -> None:
        """`connect` makes a client of the secondary, as `Address.client` does. Without it, each
        call lists the queues."""
        self._manager = manager
        self._namespaces = namespaces
        self._connect = connect
        self._known: list[str] | None = None
        self.others: Mapping[str, int] = {}
        """The number of backlog queues of other primaries in the last list, by primary."""

    def __call__(self) -> list[str]:
        if self._known is None or self._connect is None or self._has_changed(self._known):
            self._known = self._list()
        return self._known

    def _has_changed(self, known: Sequence[str]) -> bool:
        assert self._connect is not None
        names = [*known, *self._next_names(known)]
        with self._connect(timeout_seconds=ANSWER_SECONDS) as client:
            errors = attach_each([client.receiver(name, credit=1) for name in names])
        created = [error is None for error in errors[len(known) :]]
        deleted = [
            error is not None and failure_of(error) is Failure.NOT_FOUND
            for error in errors[: len(known)]
        ]
        return any(created) or any(deleted)

    def _next_names(self, known: Sequence[str]) -> list[str]:
        """The names that a new queue may have: pairing numbers them from 0 on."""
        found: list[str] = []
        for namespace in self._namespaces:
            own = {name.lower() for name in backlog_queues(known, namespace)}
            names = (f"{namespace}/x-servicebus-transfer/{n}" for n in count())
            found += islice((name for name in names if name.lower() not in own), NEXT_MAX)
        return found

    def _list(self) -> list[str]:
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
