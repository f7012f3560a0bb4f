"""How a pair of namespaces is used in a month: the numbers that its cost depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pairbus.cost.meter import units_of
from pairbus.errors import OptionsError

ENVELOPE_BYTES: Final = 100
"""What an envelope adds to a message, rounded up: the destination, and an id if it has none."""
POLL_SECONDS: Final = 900.0
"""How long a syphon waits for a message in one receive from an idle backlog queue."""
PROBE_SECONDS: Final = 5.0
"""How often a syphon tries an entity with one message, for the first ten minutes of an outage. It
does so only if a link, which is not billed, cannot show that the entity is back."""
FIRST_HOURS: Final = 1 / 6
LATER_PROBE_SECONDS: Final = 30.0
PEEK_SECONDS: Final = 60.0
"""How often a syphon peeks at what has arrived in a backlog queue whose messages wait."""
IDLE_COUNT_SECONDS: Final = 900.0
"""How often `pairbus syphon` counts an idle backlog, on a terminal or with --metrics-port."""


def idle_polls_per_hour(queues: int, syphons: int) -> float:
    """Receives from an idle backlog."""
    return queues * syphons * 3600 / POLL_SECONDS


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
                f"an outage of {self.outage_hours:g} hours does not fit into a period of "
                f"{self.hours} hours"
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
        return idle_polls_per_hour(self.backlog_queues, self._syphons)

    @property
    def connections(self) -> int:
        """While the pair is healthy. The SDK opens a connection for each sender. A client keeps one
        ready to each backlog queue that its entities use, and each entity uses one queue. A syphon
        waits on one connection.
        """
        ready = min(self.entities, self.backlog_queues)
        return self.clients * (self.entities + ready) + self._syphons

    @property
    def pings(self) -> int:
        """The maximum: only answered ones are billed."""
        return int(self.outage_hours * 3600 / self.ping_seconds) * self.entities * self.clients

    @property
    def probes(self) -> int:
        """The maximum number of messages that are received only to be released again."""
        if not self.diverted:
            return 0
        first = min(self.outage_hours, FIRST_HOURS) * 3600 / PROBE_SECONDS
        later = max(self.outage_hours - FIRST_HOURS, 0) * 3600 / LATER_PROBE_SECONDS
        return math.ceil(first + later) * self.entities * self._syphons

    @property
    def peeks(self) -> int:
        """The maximum number of operations for peeks at messages that wait. A peek returns many
        messages, and is billed by their total size."""
        if not self.diverted:
            return 0
        pages = units_of(self.diverted * (self.message_bytes + ENVELOPE_BYTES))
        calls = math.ceil(self.outage_hours * 3600 / PEEK_SECONDS) * self.backlog_queues
        return (pages + calls) * self._syphons

    @property
    def _syphons(self) -> int:
        """Those that run during an outage."""
        return self.syphons if self.always_on else 0
