"""Duplicate detection: an entity drops a message whose id it has seen within its time window.

The store remembers ids that are durable. This module has the ids that are still being written. A
duplicate that arrives during the write depends on the first message, so it succeeds or fails with
it.
"""

from __future__ import annotations

from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.messages.entity import Entity


class FirstSend:
    """A message id that is being written to the disk."""

    __slots__ = ("error", "is_pending", "message_id")

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.is_pending = True
        self.error: Exception | None = None


class DuplicateDetection:
    def __init__(self, entity: Entity) -> None:
        self._entity = entity
        self._pending: dict[str, FirstSend] = {}

    def is_duplicate(
        self, message_id: str | None, relies_on: list[FirstSend], *, now_ms: int
    ) -> bool:
        """Remember a new id. `relies_on` gets the pending ids that the message depends on."""
        description = self._entity.description
        if not description.requires_duplicate_detection or message_id is None:
            return False
        first = self._pending.get(message_id)
        if first is not None:
            relies_on.append(first)
            return True
        store, mailbox_id = self._entity.runtime.store, self._entity.main.counters.mailbox_id
        if store.was_seen(mailbox_id, message_id, now_ms=now_ms):
            return True
        window_ms = milliseconds(description.duplicate_detection_history_time_window) or 0
        store.remember(mailbox_id, message_id, now_ms + window_ms)
        first = self._pending[message_id] = FirstSend(message_id)
        relies_on.append(first)
        return False

    def written(self, error: Exception | None, relies_on: list[FirstSend]) -> Exception | None:
        """The commit has ended. Returns its error, or that of a message that it depends on."""
        for first in relies_on:
            if first.is_pending:
                del self._pending[first.message_id]
                first.is_pending = False
                first.error = error
            error = error or first.error
        return error
