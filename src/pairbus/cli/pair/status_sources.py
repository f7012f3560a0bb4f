"""Where `pairbus status` gets its facts: the namespaces, the backlog, and published metrics.

Changes nothing and locks nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pairbus.cli.administration import EntityKind, administration
from pairbus.cli.entity_path import EntityPath
from pairbus.cli.http import HttpClient, authorization
from pairbus.cli.message_client import connect, explain_errors, peek_messages
from pairbus.cli.pair.targets import address_of, some_entities
from pairbus.cli.target import Target, why_unreachable
from pairbus.client.route.envelope import PATH
from pairbus.errors import NamespaceError
from pairbus.fast.rows import state
from pairbus.syphon.discovery import backlog_queues, namespace_of

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

    from pairbus.fast.client import FastClient

_REQUEST: Final = "/$namespaceinfo?api-version=2021-05"
_UNKNOWN: Final = "(unknown)"


# -- namespaces ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceState:
    role: str
    address: str
    is_reachable: bool
    error: str | None = None
    """Why it is not reachable, or which right is missing."""
    checked: str | None = None
    """What was checked of the rights on a primary."""
    connect_seconds: float | None = None
    round_trip_seconds: float | None = None


def probe(role: str, target: Target, *, seconds: float) -> NamespaceState:
    """Opens an AMQP connection, and times a request to the administration API."""
    from azure.core.exceptions import AzureError

    try:
        with connect(target, seconds=seconds) as client:
            connect_seconds = _duration(client.open)
    except AzureError as error:
        return NamespaceState(
            role=role, address=target.address, is_reachable=False, error=why_unreachable(error)
        )
    return NamespaceState(
        role=role,
        address=target.address,
        is_reachable=True,
        connect_seconds=connect_seconds,
        round_trip_seconds=_round_trip(target, seconds),
    )


def check_send(
    state: NamespaceState, target: Target, destinations: Sequence[str]
) -> NamespaceState:
    """A syphon needs Send on a primary. What is missing on the secondary shows when its backlog is
    read.
    """
    from azure.core.exceptions import AzureError

    from pairbus.syphon.rights import MissingRight, check_right

    def entities() -> list[str]:
        return [*destinations, *some_entities(target)]

    try:
        checked = check_right(address_of(target), "Send", entities, role="the primary")
    except MissingRight as error:
        return replace(state, error=str(error))
    except AzureError as error:
        checked = f"nothing, because the primary cannot be reached: {why_unreachable(error)}"
    return replace(state, checked=checked)


def _round_trip(target: Target, seconds: float) -> float | None:
    """The time that a request takes on an open connection. Any answer counts, also a refusal."""
    with HttpClient.for_target(target, seconds=seconds) as client:

        def request() -> None:
            client.request("GET", _REQUEST, headers=headers)

        try:
            # With a token: a local broker slows down an address that sends many bad ones.
            headers = {"Host": target.host, "Authorization": authorization(target)}
            request()  # opens the connection
            return _duration(request)
        except NamespaceError:
            return None


def _duration(call: Callable[[], Any]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


# -- the backlog --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogState:
    """One backlog queue."""

    queue: str
    waiting: int
    dead_letters: int
    oldest_seconds: float | None
    """The age of the oldest message that was peeked."""
    peeked: int
    destinations: Mapping[str, int]
    """The number of peeked messages for each entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    queues: tuple[BacklogState, ...]
    others: Mapping[str, int] = field(default_factory=dict)
    """The number of backlog queues of other primaries, by their names."""

    def destinations(self, primary_name: str) -> list[str]:
        """The entities of a primary that messages wait for, as far as was peeked."""
        names = backlog_queues([one.queue for one in self.queues], primary_name)
        found = (path for one in self.queues if one.queue in names for path in one.destinations)
        return [path for path in dict.fromkeys(found) if path != _UNKNOWN]


def read_backlog(
    target: Target,
    primary_names: Sequence[str] | None,
    *,
    peek: int,
    seconds: float,
    now: float,
) -> Backlog:
    """The backlog queues of these primaries; None: of all. Raises NamespaceError."""
    with administration(target, seconds=seconds) as admin:
        counts = {one.name: one for one in admin.all_counts(EntityKind.QUEUE)}
    owners = Counter(owner for owner in map(namespace_of, counts) if owner is not None)
    chosen = owners if primary_names is None else primary_names
    names = [name for owner in chosen for name in backlog_queues(counts, owner)]
    with connect(target, seconds=seconds) as client:
        queues = tuple(_read_queue(client, target, name, counts[name], peek, now) for name in names)
    ours = {owner.lower() for owner in chosen}
    others = {owner: count for owner, count in owners.items() if owner.lower() not in ours}
    return Backlog(queues=queues, others=others)


def _read_queue(
    client: FastClient, target: Target, name: str, counts: Any, peek: int, now: float
) -> BacklogState:
    waiting = counts.active_message_count or 0
    destinations: Counter[str] = Counter()
    oldest: float | None = None
    if waiting and peek:
        entity = EntityPath(entity=name)
        with explain_errors(target, entity, right="Listen"):
            for message in peek_messages(client, target, entity, limit=peek):
                if state(message) != "active":
                    continue
                _, path = message.application_properties.get(PATH, (b"", None))
                destinations[path if isinstance(path, str) else _UNKNOWN] += 1
                enqueued_ms = message.annotation("x-opt-enqueued-time")
                if isinstance(enqueued_ms, int):
                    oldest = min(oldest or enqueued_ms / 1000, enqueued_ms / 1000)
    return BacklogState(
        queue=name,
        waiting=waiting,
        dead_letters=counts.dead_letter_message_count or 0,
        oldest_seconds=None if oldest is None else max(now - oldest, 0.0),
        peeked=destinations.total(),
        destinations=dict(destinations.most_common()),
    )


# -- metrics ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetrics:
    """What one process publishes, or the sum of several. docs/metrics.md explains the metrics."""

    pairings: int = 0
    failed_over: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of clients, by primary's name and entity."""
    withdrawn: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of clients, by primary's name and backlog queue."""
    sent: int | None = None
    """Messages that primaries accepted; None: the clients do not publish it."""
    diverted: int = 0
    brought_home: int | None = None
    """By syphons since they started; None: there is no syphon."""
    refusing: frozenset[tuple[str, str]] = frozenset()
    """Names of the primary and the destination, where the last message was not accepted."""

    @property
    def has_clients(self) -> bool:
        return bool(self.pairings or self.failed_over or self.withdrawn)


def read_metrics(samples: Iterable[Sample]) -> ProcessMetrics:
    pairings = diverted = 0.0
    sent: float | None = None
    brought_home: float | None = None
    refusing: set[tuple[str, str]] = set()
    failed_over: Counter[tuple[str, str]] = Counter()
    withdrawn: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        label = sample.labels.get
        if sample.name == "pairbus_syphon_pending_queues":
            brought_home = brought_home or 0.0  # a syphon, even if it has done nothing yet
        match sample.name:
            case "pairbus_pairings":
                pairings += sample.value
            case "pairbus_sent_messages_total":
                sent = (sent or 0.0) + sample.value
            case "pairbus_diverted_messages_total":
                diverted += sample.value
            case "pairbus_failed_over" if sample.value > 0:
                failed_over[label("namespace", ""), label("entity", "")] += int(sample.value)
            case "pairbus_backlog_withdrawn" if sample.value > 0:
                withdrawn[label("namespace", ""), label("backlog_queue", "")] += int(sample.value)
            case "pairbus_syphon_messages_total" if label("outcome") == "brought_home":
                brought_home = (brought_home or 0.0) + sample.value
            case "pairbus_syphon_destination_up" if not sample.value:
                refusing.add((label("primary", ""), label("destination", "")))
    return ProcessMetrics(
        pairings=int(pairings),
        failed_over=dict(failed_over),
        withdrawn=dict(withdrawn),
        sent=None if sent is None else int(sent),
        diverted=int(diverted),
        brought_home=None if brought_home is None else int(brought_home),
        refusing=frozenset(refusing),
    )


def sum_metrics(several: Iterable[ProcessMetrics]) -> ProcessMetrics:
    processes = list(several)
    failed_over: Counter[tuple[str, str]] = Counter()
    withdrawn: Counter[tuple[str, str]] = Counter()
    for one in processes:
        failed_over.update(one.failed_over)
        withdrawn.update(one.withdrawn)
    sent = [one.sent for one in processes if one.sent is not None]
    brought_home = [one.brought_home for one in processes if one.brought_home is not None]
    return ProcessMetrics(
        pairings=sum(one.pairings for one in processes),
        failed_over=dict(failed_over),
        withdrawn=dict(withdrawn),
        sent=sum(sent) if sent else None,
        diverted=sum(one.diverted for one in processes),
        brought_home=sum(brought_home) if brought_home else None,
        refusing=frozenset(key for one in processes for key in one.refusing),
    )
