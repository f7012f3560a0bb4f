"""Numbers with units, and times in the viewer's zone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

UNKNOWN: Final = "unknown"
_NAMES_MAX: Final = 3


Sentence = tuple[str | float, ...]
"""A number is a point in time. The page shows it in the viewer's zone."""


def zone_of(name: str | None) -> tzinfo:
    """The zone that a browser names; UTC if there is no such zone."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def clock(at: float, zone: tzinfo, *, now: float | None = None) -> str:
    """`12:04:31`, with the date in front if it is not today's."""
    time = datetime.fromtimestamp(at, zone)
    is_today = now is None or time.date() == datetime.fromtimestamp(now, zone).date()
    return f"{time:%H:%M:%S}" if is_today else f"{time:%Y-%m-%d %H:%M:%S}"


def utc_clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def plain_text(sentence: Sentence, zone: tzinfo, *, now: float | None = None) -> str:
    return "".join(one if isinstance(one, str) else clock(one, zone, now=now) for one in sentence)


def about(seconds: float) -> str:
    """`about 6 minutes`: an estimate needs no second number."""
    if seconds < 10:
        return "a few seconds"
    for size, unit in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= 1.5 * size:
            return f"about {round(seconds / size)} {unit}s"
        if seconds >= 0.9 * size:
            return f"about 1 {unit}"
    return f"about {round(seconds / 5) * 5} seconds"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return UNKNOWN
    if per_second and per_second < 10:
        return f"{per_second:.1f}/s"
    return f"{per_second:,.0f}/s"


def count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def names(all_names: Sequence[str]) -> str:
    """`orders and payments`; `orders, payments, refunds and 5 more`."""
    shown, more = list(all_names[:_NAMES_MAX]), len(all_names) - _NAMES_MAX
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else ""


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sendable(text: str) -> str:
    """A message may hold half of a surrogate pair, and then no text could be sent to the page."""
    return text.encode("utf-8", "backslashreplace").decode()


def client_name(url: str) -> str:
    """`app-1:9100` of `http://app-1:9100/metrics`."""
    return url.partition("//")[2].removesuffix("/metrics") or url
