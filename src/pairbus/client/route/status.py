"""A snapshot of a pairing, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityStatus:
    path: str
    """As it was first spelled."""
    state: str
    """`healthy`, `suspect` (it fails, and the failover interval runs) or `failed over`. With
    ordered failback also `returning` (the primary answers, and messages are diverted until those
    in the backlog are home) and `holding` (they nearly are, and sends wait for them)."""
    since: datetime
    first_failure: datetime | None
    """The first failure after the last success; None while healthy."""
    last_error: str | None
    """The last failure on the primary, of a send or of a ping."""
    backlog_queue: str | None
    """The queue in use, or the one for the next failover. None if no queue is left."""
    sent: int
    """Messages that the primary accepted."""
    diverted: int
    """Messages that a backlog queue accepted."""
    failures: int
    """Attempts on the primary that failed in a way that counts."""
    throttled: int
    """Attempts that a busy service rejected and asked to retry later."""
    refused: int
    """Sends that neither namespace accepted."""
    pings_sent: int
    """Pings whose outcome is known."""
    pings_answered: int
    next_ping: datetime | None
    pings_needed: int
    """Pings in a row that must be answered before it fails back. Flapping raises the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnQueue:
    queue: str
    error: str
    since: datetime
    retry_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonStatus:
    state: str
    """`running`, `restarting` (it failed, and is started again) or `stopped`."""
    since: datetime
    failures: int
    """How often it failed, or could not be started again."""
    last_error: str | None
    """The last failure."""
    restart_at: datetime | None
    """While restarting: when the next start begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    file: str
    waiting: int
    """Messages that wait until a namespace accepts messages again."""
    held: int
    """Messages that are not sent any more: they were refused, or they are older than `max_age`."""
    oldest: datetime | None
    """When the oldest message that waits was stored."""
    file_bytes: int
    """The size of the file and of its log; 0 as long as no message needed it."""
    entities: dict[str, int]
    """By entity: how many of its messages wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingStatus:
    namespace: str
    """The primary's name, as in the paths of the backlog queues."""
    secondary: str
    entities: tuple[EntityStatus, ...]
    """In the order in which they were first used."""
    backlog_queues: tuple[str, ...]
    """Those in the rotation."""
    withdrawn: tuple[WithdrawnQueue, ...]
    """Queues that failed and are tried again later."""
    pings_sent: int
    pings_answered: int
    is_closed: bool
    syphon: SyphonStatus | None = None
    """The syphon in this process; None without `enable_syphon`."""
    outbox: OutboxStatus | None = None
    """Messages that neither namespace accepted; None without an `outbox` in the options."""

    def entity(self, path: str) -> EntityStatus:
        """Returns one entity by its path, case-insensitive. Raises KeyError if no sender has used
        it.
        """
        for entity in self.entities:
            if entity.path.lower() == path.lower():
                return entity
        raise KeyError(path)

    @property
    def failed_over(self) -> tuple[str, ...]:
        """The paths of the entities whose messages do not go to the primary."""
        on_primary = ("healthy", "suspect")
        return tuple(each.path for each in self.entities if each.state not in on_primary)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: dates as ISO 8601 text."""
        return asdict(self, dict_factory=_plain)


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields
    }
