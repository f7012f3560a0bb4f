"""A snapshot of a pairing for people and programs: the router's, with dates in place of its
clock."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pairbus.client.route.status import RouterStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityStatus:
    path: str
    state: str
    """`healthy`, `suspect` (it fails, and the failover interval runs) or `failed over`."""
    since: datetime
    first_failure: datetime | None
    """The first failure after the last success; None while healthy."""
    last_error: str | None
    """The last failure on the primary: a send's or a ping's."""
    backlog_queue: str | None
    """The one in use, or to be used after a failover; None when none is left."""
    sent: int
    """Messages that the primary took."""
    diverted: int
    """Messages that a backlog queue took."""
    failures: int
    """Attempts on the primary that failed in a way that counts."""
    throttled: int
    """Attempts that the service asked to repeat later."""
    refused: int
    """Sends that neither namespace took."""
    pings_sent: int
    pings_answered: int
    next_ping: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnQueue:
    queue: str
    error: str
    since: datetime
    retry_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingStatus:
    namespace: str
    """The primary's name, as in the paths of the backlog queues."""
    secondary: str
    entities: tuple[EntityStatus, ...]
    backlog_queues: tuple[str, ...]
    """Those in the rotation."""
    withdrawn: tuple[WithdrawnQueue, ...]
    """Those that failed, and are tried again later."""
    pings_sent: int
    pings_answered: int
    is_closed: bool

    def entity(self, path: str) -> EntityStatus:
        """One entity by its path, whatever its case; KeyError if no sender has used it."""
        for entity in self.entities:
            if entity.path.lower() == path.lower():
                return entity
        raise KeyError(path)

    @property
    def failed_over(self) -> tuple[str, ...]:
        """The paths of the entities that are failed over."""
        return tuple(each.path for each in self.entities if each.state == "failed over")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: dates as ISO 8601 text."""
        described: dict[str, Any] = _plain(asdict(self))
        return described


def snapshot(
    seen: RouterStatus, *, namespace: str, secondary: str, epoch_seconds: float
) -> PairingStatus:
    """`epoch_seconds`: when the router's clock was at 0, in seconds since the epoch."""

    def date(moment: float) -> datetime:
        return datetime.fromtimestamp(epoch_seconds + moment, UTC)

    def date_or_none(moment: float | None) -> datetime | None:
        return None if moment is None else date(moment)

    return PairingStatus(
        namespace=namespace,
        secondary=secondary,
        entities=tuple(
            EntityStatus(
                path=each.path,
                state=each.state.value,
                since=date(each.since),
                first_failure=date_or_none(each.first_failure),
                last_error=None if each.last_error is None else described(each.last_error),
                backlog_queue=each.backlog_queue,
                sent=each.sent,
                diverted=each.diverted,
                failures=each.failures,
                throttled=each.throttled,
                refused=each.refused,
                pings_sent=each.pings_sent,
                pings_answered=each.pings_answered,
                next_ping=date_or_none(each.next_ping),
            )
            for each in seen.entities
        ),
        backlog_queues=seen.rotation.in_rotation,
        withdrawn=tuple(
            WithdrawnQueue(
                queue=each.queue,
                error=described(each.error),
                since=date(each.since),
                retry_at=date(each.retry_at),
            )
            for each in seen.rotation.withdrawn
        ),
        pings_sent=seen.pings_sent,
        pings_answered=seen.pings_answered,
        is_closed=seen.is_closed,
    )


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
