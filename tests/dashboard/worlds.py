"""Readings to test with: a pair, and what its processes publish."""

from __future__ import annotations

from typing import Any

from pairbus.cli.pair.status_sources import Backlog, BacklogState, NamespaceState, ProcessMetrics
from pairbus.cost.prices import PriceList, load
from pairbus.dashboard.history import History
from pairbus.dashboard.model import Picture, describe
from pairbus.dashboard.readings import Answer, EntityCounts, ProcessReading, Readings

START = 1_000_000.0
BACKLOG_QUEUE = "contoso/x-servicebus-transfer/0"
CLIENT = "http://app-1:9100/metrics"
SYPHON = "http://syphon:9464/metrics"
PRICES: PriceList = load()


def namespace(role: str, *, is_up: bool = True, at: float = START) -> Answer[NamespaceState]:
    if not is_up:
        return Answer(error="Connection refused")
    state = NamespaceState(
        role=role,
        address=f"{role}.example",
        is_reachable=True,
        connect_seconds=0.02,
        round_trip_seconds=0.005,
    )
    return Answer(value=state, at=at)


def client(
    *failed_over: str,
    sent: int | None = None,
    diverted: int = 0,
    at: float = START,
    **more: Any,
) -> Answer[ProcessReading]:
    status = ProcessMetrics(
        pairings=1,
        failed_over={("contoso", entity): 1 for entity in failed_over},
        sent=sent,
        diverted=diverted,
    )
    return Answer(value=ProcessReading(status=status, **more), at=at)


def syphon(*, brought_home: int = 0, at: float = START, **more: Any) -> Answer[ProcessReading]:
    status = ProcessMetrics(brought_home=brought_home)
    return Answer(value=ProcessReading(status=status, rounds=5, **more), at=at)


def pair(
    *,
    waiting: int | None = 0,
    primary_up: bool = True,
    secondary_up: bool = True,
    destinations: dict[str, int] | None = None,
    at: float = START,
    **more: Any,
) -> Readings:
    entities: dict[str, Answer[tuple[EntityCounts, ...]]] = {
        "primary": Answer(value=(EntityCounts(kind="queue", path="orders", active=3),), at=at)
    }
    if waiting is not None:
        queue = EntityCounts(kind="queue", path=BACKLOG_QUEUE, active=waiting, dead_letters=0)
        entities["secondary"] = Answer(value=(queue,), at=at)
    backlog = BacklogState(
        queue=BACKLOG_QUEUE,
        waiting=waiting or 0,
        dead_letters=0,
        oldest_seconds=60.0,
        peeked=sum((destinations or {}).values()),
        destinations=destinations or {},
    )
    return Readings(
        namespaces={
            "primary": namespace("primary", is_up=primary_up, at=at),
            "secondary": namespace("secondary", is_up=secondary_up, at=at),
        },
        **{"entities": entities, "backlog": Answer(value=Backlog(queues=(backlog,)), at=at)} | more,
    )


def look(history: History, readings: Readings, now: float) -> Picture:
    history.add(readings, now=now)
    return describe(readings, history, PRICES, now=now)
