"""How a pair of namespaces is used in a month: the numbers that its cost depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.cost.meter import units_of
from pairbus.errors import OptionsError

ENVELOPE_BYTES: Final = 100
"""What an envelope adds to a message, rounded up: the destination, and an id if it has none."""
POLL_SECONDS: Final = 900.0
"""How long a syphon waits for a message in one receive from an idle backlog queue."""
RECHECK_SECONDS: Final = 60.0
"""How often a syphon re-checks a destination that has been down for some minutes."""
RECHECK_MESSAGES: Final = 2_500
"""How many messages of each backlog queue a re-check receives at most: what a task receives ahead.
While no new messages arrive in the backlog, it is only a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    least: float
    most: float
    unit: str


RANGES: Final[dict[str, Range]] = {
    "backlog_queues": Range(least=1, most=100, unit="backlog queues"),
    "syphons": Range(least=0, most=1000, unit="syphons"),
    "messages_per_day": Range(least=0, most=10**12, unit="messages per day"),
    "message_bytes": Range(least=0, most=100 * 1024 * 1024, unit="bytes per message"),
    "outage_hours": Range(least=0, most=31 * 24, unit="hours of outage"),
    "ping_seconds": Range(least=1, most=1800, unit="seconds between pings"),
    "entities": Range(least=1, most=100_000, unit="entities"),
    "clients": Range(least=1, most=1_000_000, unit="clients"),
    "days": Range(least=1, most=31, unit="days"),
    "other_operations": Range(least=0, most=10**15, unit="other operations"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    backlog_queues: int = 10
    syphons: int = 1
    always_on: bool = True
    """Whether the syphons run all the time, instead of once after an outage."""
    messages_per_day: int = 0
    message_bytes: int = 1024
    """The encoded size of one message."""
    outage_hours: float = 0.0
    """The total length of all outages in these days."""
    ping_seconds: float = 60.0
    entities: int = 1
    """Queues and topics that a client sends to, and that fail over."""
    clients: int = 1
    """Paired clients. Each sends to all of the entities."""
    days: int = 30
    other_operations: int = 0
    """Other operations of the Azure subscription. They fill the cheaper tiers first."""

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if not allowed.least <= value <= allowed.most:
                raise OptionsError(
                    f"{value:,} {allowed.unit}: must be from {allowed.least:,} to {allowed.most:,}"
                )
        if self.outage_hours > self.hours:
            raise OptionsError(
                f"an outage of {self.outage_hours:g} hours does not fit into {self.days} days "
                f"({self.hours} hours)"
            )

    @property
    def hours(self) -> int:
        return self.days * 24

    @property
    def messages(self) -> int:
        return self.messages_per_day * self.days

    @property
    def diverted(self) -> int:
        """Messages arrive evenly, so an outage diverts its share of them."""
        return round(self.messages_per_day / 24 * self.outage_hours)

    @property
    def units(self) -> int:
        return units_of(self.message_bytes)

    @property
    def diverted_units(self) -> int:
        return units_of(self.message_bytes + ENVELOPE_BYTES)

    @property
    def polls_per_hour(self) -> float:
        """Receives from an idle backlog."""
        syphons = self.syphons if self.always_on else 0
        return self.backlog_queues * syphons * 3600 / POLL_SECONDS

    @property
    def pings(self) -> int:
        return int(self.outage_hours * 3600 / self.ping_seconds) * self.entities * self.clients

    @property
    def rechecks(self) -> int:
        """The maximum number of messages that are received only to be released again."""
        if not self.syphons or not self.always_on:
            return 0
        # Messages arrive evenly during the outage, so on average half of them wait.
        waiting = min(self.diverted / 2, self.backlog_queues * RECHECK_MESSAGES)
        return round(self.outage_hours * 3600 / RECHECK_SECONDS * waiting) * self.syphons
