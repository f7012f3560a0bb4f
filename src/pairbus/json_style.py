"""How our JSON looks, everywhere: keys in camelCase, times in ISO 8601 and UTC. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def camel_case(name: str) -> str:
    """`latency_seconds` is `latencySeconds`."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def camel_case_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Not recursive: keys further down may be the user's own names."""
    return {camel_case(name): value for name, value in values.items()}


def utc_text(time: datetime | float) -> str:
    """`2026-03-01T10:00:00.000Z`. A number is in seconds since the epoch."""
    if not isinstance(time, datetime):
        time = datetime.fromtimestamp(time, UTC)
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
