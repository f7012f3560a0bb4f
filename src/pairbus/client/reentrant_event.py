"""An event that a signal handler may set, wherever it has interrupted its thread."""

from __future__ import annotations

import threading


class ReentrantEvent:
    """Like `threading.Event`, whose lock is not reentrant: a signal handler that sets one would
    wait forever if it has interrupted its thread in the same event.
    """

    def __init__(self) -> None:
        # `with` takes the lock and not the condition, whose `__exit__` is written in Python: a
        # Ctrl-C at its beginning would leave the lock held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Returns whether it is set. If a signal handler sets it in the moment in which its thread
        begins to wait, that takes the whole time.
        """
        with self._lock:
            return self._changed.wait_for(self.is_set, seconds)
