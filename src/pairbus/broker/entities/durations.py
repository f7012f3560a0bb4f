"""Durations as Service Bus writes them: ISO 8601, with a largest value that means 'never'.

isodate would save thirty lines. It also accepts months and weeks, which the service refuses, and it
knows nothing of 'never'.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

INFINITE: Final = timedelta.max
"""Service Bus writes 'never' as the largest .NET TimeSpan: 10,675,199 days and some hours."""
_INFINITE_FROM: Final = timedelta(days=10_675_199)

_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


def parse_duration(text: str) -> timedelta:
    """ISO 8601 as Service Bus writes it (`PT1M`, `P14D`); raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or text in ("P", "PT") or text.endswith("T"):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1M or P14D")
    parts = {unit: float(value) for unit, value in match.groupdict().items() if value}
    if parts.get("days", 0) >= _INFINITE_FROM.days:
        return INFINITE
    try:
        return timedelta(**parts)
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration can be") from None


def format_duration(value: timedelta) -> str:
    if value >= _INFINITE_FROM:
        return "P10675199DT2H48M5.4775807S"
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    clock = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    days = f"{value.days}D" if value.days else ""
    return f"P{days}" + (f"T{clock}" if clock else "") if days or clock else "PT0S"


def milliseconds(value: timedelta) -> int | None:
    """A duration for arithmetic on message times; None stands for 'never'."""
    return None if value >= _INFINITE_FROM else round(value.total_seconds() * 1000)
