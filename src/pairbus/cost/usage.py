"""How a pair of namespaces is used in a month, in the numbers that its cost depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.cost.meter import units_of
from pairbus.errors import OptionsError

ENVELOPE_BYTES: Final = 100
"""What an envelope adds to a message, generously: its destination, and an id where it has none."""
LOOK_SECONDS: Final = 60.0
"""How far apart a syphon looks whether a destination that is down is back, after some minutes."""
LOOK_MESSAGES: Final = 2_500
"""With how many messages of each backlog queue, at most: what a task receives ahead. While nothing
new comes into the backlog, it is a handful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    least: float
    most: float
    words: str


RANGES: Final[dict[str, Range]] = {
    "backlog_queues": Range(least=1, most=100, words="backlog queues"),
    "syphons": Range(least=0, most=1000, words="syphons"),
    "messages_a_day": Range(least=0, most=10**12, words="messages a day"),
    "message_bytes": Range(least=0, most=100 * 1024 * 1024, words="bytes of a message"),
    "outage_hours": Range(least=0, most=31 * 24, words="hours of outage"),
    "ping_seconds": Range(least=1, most=1800, words="seconds between pings"),
    "entities": Range(least=1, most=100_000, words="entities"),
    "clients": Range(least=1, most=1_000_000, words="clients"),
    "days": Range(least=1, most=31, words="days"),
    "long_poll_seconds": Range(least=1, most=86_400, words="seconds of a long poll"),
    "other_operations": Range(least=0, most=10**15, words="operations of others"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    backlog_queues: int = 10
    syphons: int = 1
    syphons_wait: bool = True
    """They run all the time, and not only once after an outage."""
    messages_a_day: int = 0
    message_bytes: int = 1024
    """Of an encoded message."""
    outage_hours: float = 0.0
    """In these days, added up."""
    ping_seconds: float = 60.0
    entities: int = 1
    """That a client sends to, and that fail over."""
    clients: int = 1
    """Paired ones; each sends to all the entities."""
    days: int = 30
    long_poll_seconds: float = 900.0
    other_operations: int = 0
    """Of the same subscription, which have used up the cheaper tiers."""

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if not allowed.least <= value <= allowed.most:
                raise OptionsError(
                    f"{value:,} {allowed.words}: must be from {allowed.least:,} to {allowed.most:,}"
                )
        if self.outage_hours > self.hours:
            raise OptionsError(
                f"{self.outage_hours:g} hours of outage do not fit into {self.days} days, which "
                f"have {self.hours}"
            )

    @property
    def hours(self) -> int:
        return self.days * 24

    @property
    def messages(self) -> int:
        return self.messages_a_day * self.days

    @property
    def diverted(self) -> int:
        """Messages come evenly, so an outage meets its share of them."""
        return round(self.messages_a_day / 24 * self.outage_hours)

    @property
    def units(self) -> int:
        return units_of(self.message_bytes)

    @property
    def diverted_units(self) -> int:
        return units_of(self.message_bytes + ENVELOPE_BYTES)

    @property
    def polls_an_hour(self) -> float:
        """Of an idle backlog."""
        polling = self.syphons if self.syphons_wait else 0
        return self.backlog_queues * polling * 3600 / self.long_poll_seconds

    @property
    def pings(self) -> int:
        return int(self.outage_hours * 3600 / self.ping_seconds) * self.entities * self.clients

    @property
    def looks(self) -> int:
        """How many waiting messages are received only to be put back, at most."""
        if not self.syphons or not self.syphons_wait:
            return 0
        # They come evenly, so half of them wait at a time.
        few = min(self.diverted / 2, self.backlog_queues * LOOK_MESSAGES)
        return round(self.outage_hours * 3600 / LOOK_SECONDS * few) * self.syphons
