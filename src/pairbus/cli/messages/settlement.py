"""What happens to a received message."""

from __future__ import annotations

from enum import StrEnum


class Settlement(StrEnum):
    """The value is the past participle, for messages."""

    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEAD_LETTER = "dead-lettered"
    DELETE = "deleted"
