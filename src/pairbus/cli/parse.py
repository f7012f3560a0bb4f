"""Durations, times and numbers as people type them. Pure: the time is handed in."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.errors import UsageError

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS_MAX: Final = 86400.0 * 365 * 100
_TIMEOUT_SECONDS_MAX: Final = 86_400.0
"""A socket waits for 24 days at most."""
Numbers = tuple[range, ...]


def parse_duration(text: str, option: str) -> timedelta:
    """`90s`, `5m`, `2h`, `7d`, `250ms`, or ISO 8601's `PT90S`. Raises UsageError."""
    text = text.strip()
    if match := _DURATION.fullmatch(text):
        number, unit = match.groups()
        if unit is None:
            raise UsageError(
                f"{option} {text!r} has no unit: use {number}s, {number}m, {number}h or {number}d"
            )
        seconds = float(number) * _UNITS[unit.lower()]
        if seconds <= _SECONDS_MAX:
            return timedelta(seconds=seconds)
        raise UsageError(f"{option} {text!r} is too long: at most {_SECONDS_MAX / 86400:.0f}d")
    if text[:1] in ("P", "p"):
        from pairbus.broker.entities.durations import parse_duration as parse_iso_duration

        try:
            return parse_iso_duration(text.upper())
        except ValueError:
            pass
    raise UsageError(f"{option} {text!r} is not a duration: use 90s, 5m, 2h, 7d or PT90S")


def parse_positive_duration(text: str, option: str) -> float:
    """In seconds. Raises UsageError."""
    seconds = parse_duration(text, option).total_seconds()
    if seconds <= 0:
        raise UsageError(f"{option} {text}: must be more than 0s")
    return seconds


def parse_timeout(text: str) -> float:
    """How long to wait for an answer, in seconds; a day at most. Raises UsageError."""
    return min(parse_positive_duration(text, "--timeout"), _TIMEOUT_SECONDS_MAX)


def parse_time(text: str, option: str, *, now: datetime) -> datetime:
    """A time, in UTC unless it says otherwise, or a duration from now. Raises UsageError."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            return now + parse_duration(text, option)
        except (UsageError, OverflowError):
            raise UsageError(
                f"{option} {text!r} is not a time: use 2030-12-31T23:59:59Z, or a duration from "
                "now such as 10m"
            ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def parse_numbers(text: str, option: str) -> Numbers:
    """`5`, `5,7` and `10-20`, in any mixture. Raises UsageError."""
    found = []
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        bounds = [first, last if dash else first]
        if not all(one.isascii() and one.isdecimal() and len(one) < 20 for one in bounds):
            raise UsageError(f"{option} {text!r} is not a list of numbers: use 5,7,10-20")
        least, most = map(int, bounds)
        if least > most:
            raise UsageError(f"{option} {text!r}: {least} is more than {most}")
        found.append(range(least, most + 1))
    return tuple(found)
