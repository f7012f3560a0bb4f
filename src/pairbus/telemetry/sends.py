"""The messages that primaries have accepted, read from the pairings when metrics are collected.

A send to a healthy primary is not an event, so that it costs nothing. The pairing counts it anyway,
for its status. An observer with a method `watch_sends` is given a function that reads these counts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

ReadSends = Callable[[], Mapping[str, int]]
"""Returns the number of messages that the primary has accepted, by entity."""
WatchSends = Callable[[str, ReadSends], Callable[[], None]]
"""The method of an observer, see `SendTotals.watch_sends`."""


class SendTotals:
    """The sum over all clients, open and closed, so that it never goes down."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may close a client while its thread collects metrics.
        self._lock = threading.RLock()
        self._open: dict[object, tuple[str, ReadSends]] = {}
        self._closed: Counter[tuple[str, str]] = Counter()

    def watch_sends(self, namespace: str, read: ReadSends) -> Callable[[], None]:
        """Returns a function to call when the client is closed. Calling it twice is safe."""
        key = object()
        with self._lock:
            self._open[key] = namespace, read

        def close() -> None:
            with self._lock:
                if self._open.pop(key, None) is not None:
                    self._closed.update(_by_entity(namespace, read))

        return close

    def totals(self) -> dict[tuple[str, str], int]:
        """By the primary's name and the entity."""
        with self._lock:
            totals = self._closed.copy()
            for namespace, read in list(self._open.values()):
                totals.update(_by_entity(namespace, read))
        return dict(totals)


def _by_entity(namespace: str, read: ReadSends) -> dict[tuple[str, str], int]:
    return {(namespace, entity): count for entity, count in read().items()}
