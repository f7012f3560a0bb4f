"""Descriptions as the data file keeps them: JSON with ISO 8601 durations, only what is not default.

A later version may add settings: what an old file lacks has its default, and what is unknown is an
error, because a broker that ignores a setting does not do what its user asked for.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from pairbus.broker.entities import QueueDescription, Status, format_duration, parse_duration
from pairbus.errors import DataFileError

FIXED: Final = ("requires_session", "requires_duplicate_detection", "enable_partitioning")
"""What cannot be changed once the queue exists."""


def to_stored(description: QueueDescription) -> dict[str, Any]:
    default = QueueDescription(name=description.name)
    stored: dict[str, Any] = {}
    for field in fields(QueueDescription):
        value = getattr(description, field.name)
        if field.name != "name" and value != getattr(default, field.name):
            stored[field.name] = format_duration(value) if isinstance(value, timedelta) else value
    return stored


def from_stored(name: str, stored: dict[str, Any]) -> QueueDescription:
    default = QueueDescription(name=name)
    settings: dict[str, Any] = {}
    try:
        for key, value in stored.items():
            if isinstance(getattr(default, key), timedelta):
                settings[key] = parse_duration(value)
            else:
                settings[key] = Status(value) if key == "status" else value
        return QueueDescription(name=name, **settings)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataFileError(
            f"the data file describes queue {name!r} in a way that this pairbus does not know: "
            f"{error}"
        ) from error


def changed_for_good(old: QueueDescription, new: QueueDescription) -> str | None:
    """The first setting that differs and must not."""
    return next((name for name in FIXED if getattr(old, name) != getattr(new, name)), None)
