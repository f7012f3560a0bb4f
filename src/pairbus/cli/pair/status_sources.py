"""How a namespace is, and what waits in its backlog queues. Changes nothing, and locks nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from azure.core.exceptions import AzureError

from pairbus.cli.administration import EntityKind, administration
from pairbus.cli.connection import connect, explain_errors, peek_messages, why_unreachable
from pairbus.cli.http import HttpClient
from pairbus.cli.messages.entity_path import EntityPath
from pairbus.cli.target import Target
from pairbus.client.route.envelope import PATH
from pairbus.errors import NamespaceError
from pairbus.fast.client import FastClient
from pairbus.fast.rows import state
from pairbus.syphon.discovery import backlog_queues, namespace_of

_QUESTION: Final = "/$namespaceinfo?api-version=2021-05"
_UNKNOWN: Final = "(unknown)"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceState:
    role: str
    address: str
    is_reachable: bool
    why: str | None = None
    """Not reachable."""
    connect_ms: float | None = None
    """TCP, TLS, and AMQP's opening."""
    round_trip_ms: float | None = None
    """A question and its answer on an open connection (HTTP); None: it had none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogState:
    queue: str
    waiting: int
    dead_letters: int
    oldest_seconds: float | None
    looked_at: int
    """How many of them the destinations are counted from."""
    destinations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    queues: tuple[BacklogState, ...]
    others: Mapping[str, int] = field(default_factory=dict)
    """Backlog queues of other primaries, by their names."""


def probe(role: str, target: Target, *, seconds: float) -> NamespaceState:
    try:
        with connect(target, seconds=seconds) as client:
            connect_ms = _ms(client.open)
    except AzureError as error:
        why = why_unreachable(error)
        return NamespaceState(role=role, address=target.address, is_reachable=False, why=why)
    return NamespaceState(
        role=role,
        address=target.address,
        is_reachable=True,
        connect_ms=connect_ms,
        round_trip_ms=_round_trip_ms(target, seconds),
    )


def _round_trip_ms(target: Target, seconds: float) -> float | None:
    """The time that a request takes on an open connection. Any answer counts, also a refusal."""
    with HttpClient.for_target(target, seconds=seconds) as client:

        def ask() -> None:
            client.request("GET", _QUESTION, headers={"Host": target.host})

        try:
            ask()  # opens the connection
            return _ms(ask)
        except NamespaceError:
            return None


def _ms(call: Callable[[], Any]) -> float:
    before = time.perf_counter()
    call()
    return round((time.perf_counter() - before) * 1000, 1)


def backlog(
    target: Target,
    namespaces: Sequence[str] | None,
    *,
    look_at: int,
    seconds: float,
    now: float,
) -> Backlog:
    """Of these primaries, or without their names of all. Raises NamespaceError."""
    with administration(target) as admin:
        counts = {one.name: one for one in admin.all_counts(EntityKind.QUEUE)}
    owners = Counter(owner for owner in map(namespace_of, counts) if owner is not None)
    chosen = owners if namespaces is None else namespaces
    names = [name for owner in chosen for name in backlog_queues(counts, owner)]
    ours = {owner.lower() for owner in chosen}
    states = []
    with connect(target, seconds=seconds) as client:
        for name in names:
            states.append(_queue(client, target, name, counts[name], look_at, now))
    others = {owner: count for owner, count in owners.items() if owner.lower() not in ours}
    return Backlog(queues=tuple(states), others=others)


def _queue(
    client: FastClient, target: Target, name: str, counts: Any, look_at: int, now: float
) -> BacklogState:
    waiting = counts.active_message_count or 0
    destinations: Counter[str] = Counter()
    oldest: float | None = None
    if waiting and look_at:
        place = EntityPath(entity=name)
        with explain_errors(target, place, right="Listen"):
            for message in peek_messages(client, target, place, limit=look_at):
                if state(message) != "active":
                    continue
                _, path = message.application.get(PATH, (b"", None))
                destinations[path if isinstance(path, str) else _UNKNOWN] += 1
                moment = message.note("x-opt-enqueued-time")
                if isinstance(moment, int):
                    oldest = min(oldest or moment / 1000, moment / 1000)
    return BacklogState(
        queue=name,
        waiting=waiting,
        dead_letters=counts.dead_letter_message_count or 0,
        oldest_seconds=None if oldest is None else max(now - oldest, 0.0),
        looked_at=destinations.total(),
        destinations=dict(destinations.most_common()),
    )
