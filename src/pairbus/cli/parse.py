"""Durations, ages, moments and numbers as people type them. Pure: the time is handed in."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.errors import UsageError

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS_MAX: Final = 86400.0 * 365 * 100
Numbers = tuple[range, ...]


def parse_span(text: str, option: str) -> timedelta:
    """`90`, `90s`, `5m`, `2h`, `7d`, or ISO 8601's `PT90S`. Raises UsageError."""
    match = _SPAN.fullmatch(text.strip())
    if match is not None:
        seconds = float(match[1]) * _UNITS[(match[2] or "s").lower()]
        if seconds <= _SECONDS_MAX:
            return timedelta(seconds=seconds)
    elif text.strip()[:1] in ("P", "p"):
        from pairbus.broker.entities.durations import parse_duration

        try:
            return parse_duration(text.strip().upper())
        except ValueError:
            pass
    raise UsageError(f"{option} {text!r} is no duration: 90s, 5m, 2h, 7d or PT90S is expected")


def parse_moment(text: str, option: str, *, now: datetime) -> datetime:
    """A time, which is UTC unless it says otherwise, or a duration from now. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            return now + parse_span(text, option)
        except (UsageError, OverflowError):
            raise UsageError(
                f"{option} {text!r} is no time: 2030-12-31T23:59:59Z, or a duration from now such "
                "as 10m, is expected"
            ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def parse_numbers(text: str, option: str) -> Numbers:
    """`5`, `5,7` and `10-20`, in any mixture. Raises UsageError."""
    found = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        bounds = [first, last if dash else first]
        if not all(one.isascii() and one.isdecimal() and len(one) < 20 for one in bounds):
            raise UsageError(f"{option} {text!r} is no list of numbers: 5,7,10-20 is expected")
        found.append(range(int(bounds[0]), int(bounds[1]) + 1))
    return tuple(found)


def age_text(seconds: float) -> str:
    """`12s`, `5m 3s`, `2h 7m`, `3d 4h`: the two largest parts."""
    if not math.isfinite(seconds):
        return "-"
    left = int(max(seconds, 0))
    words = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count}{unit}")
    return " ".join(words[:2]) or "0s"
