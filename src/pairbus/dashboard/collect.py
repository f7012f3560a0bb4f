"""Asks every source in the background, each on a thread of its own and in its own time.

A source that does not answer keeps only its own thread waiting. After its time-out its last answer
is marked as old; the other sources go on. Everything is read-only: nothing is locked or changed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pairbus.cli.administration import EntityKind, administration
from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.entity_path import SubQueue, parse_entity_path
from pairbus.cli.http import HttpClient, fetch_metrics, parse_metrics
from pairbus.cli.message_client import connect, explain_errors, peek_messages
from pairbus.cli.pair.status_sources import NamespaceState, probe, read_backlog
from pairbus.cli.pair.targets import SECONDARY, ObservedPair
from pairbus.cli.target import Target
from pairbus.dashboard.bodies import read_message
from pairbus.dashboard.readings import (
    Answer,
    DeadLetterReasons,
    EntityCounts,
    Readings,
    read_broker,
    read_process,
    read_receipts,
    wanted_lines,
)
from pairbus.errors import NamespaceError, PairbusError, one_line

logger = logging.getLogger("pairbus.dashboard")

CPU_SHARE: Final = 1 / 150
"""The most that one source may take of a core: after costly answers it is asked less often."""
PEEK_COUNT: Final = 100
LOCAL_SECONDS: Final = 0.5
PROBE_SECONDS_MAX: Final = 1.0
"""An outage must be seen soon, also while probes are costly: the first one loads the SDK."""
REMOTE_SECONDS: Final = 5.0
COUNTS_FACTOR: Final = 3.0
"""Counts and metrics are read less often than a namespace is probed."""
PEEK_FACTOR: Final = 10.0
PROCESSES_FEW: Final = 10
LEDGER_SECONDS: Final = 10.0
DEAD_LETTER_ENTITIES_MAX: Final = 20
"""The entities with the most dead letters. Of the others, the reasons are not read."""
PEEK_AGAIN_SECONDS: Final = 600.0
"""The reasons of as many dead letters as before are not read again until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledSource:
    kind: str
    """The field of `Readings` that it is for."""
    key: str
    """The role of the namespace, or the URL of the process."""
    ask: Callable[[], Any]
    interval_seconds: float
    timeout_seconds: float
    pause_seconds_max: float = math.inf
    """After a costly answer, it is asked again after this at the latest."""


class Collector:
    def __init__(
        self, sources: Iterable[PolledSource], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._sources = list(sources)
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], Answer[Any]] = {
            (one.kind, one.key): Answer() for one in self._sources
        }
        self._stopping = threading.Event()

    def start(self) -> None:
        for source in self._sources:
            name = f"pairbus-{source.kind}-{source.key}"
            # Daemon threads: a call that waits for an answer must not delay the end.
            threading.Thread(target=self._run, args=(source,), name=name, daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def readings(self) -> Readings:
        now = self._clock()
        with self._lock:
            answers = dict(self._answers)
        by_kind: dict[str, dict[str, Answer[Any]]] = {}
        for source in self._sources:
            answer = answers[source.kind, source.key]
            seconds = source.timeout_seconds
            if answer.asked_at is not None and now - answer.asked_at > seconds:
                answer = replace(answer, error=f"no answer within {seconds:g}s")
            by_kind.setdefault(source.kind, {})[source.key] = answer
        backlog = by_kind.pop("backlog", {})
        ledger = by_kind.pop("ledger", {})
        return Readings(
            **by_kind,
            backlog=next(iter(backlog.values()), None),
            ledger=next(iter(ledger.values()), None),
        )

    def _run(self, source: PolledSource) -> None:
        while not self._stopping.is_set():
            used = time.thread_time()
            self._ask(source)
            used = time.thread_time() - used
            pause = min(used / CPU_SHARE, source.pause_seconds_max)
            self._stopping.wait(max(source.interval_seconds, pause))

    def _ask(self, source: PolledSource) -> None:
        key = source.kind, source.key
        with self._lock:
            self._answers[key] = replace(self._answers[key], asked_at=self._clock())
        try:
            value, error = source.ask(), None
        except PairbusError as failed:
            value, error = None, str(failed)
        except Exception as failed:  # the thread must outlive it: the next answer may be good
            logger.debug("%s %s", source.kind, source.key, exc_info=True)
            value, error = None, one_line(failed)
        now = self._clock()
        with self._lock:
            if error is None:
                self._answers[key] = Answer(value=value, at=now)
            else:
                self._answers[key] = replace(self._answers[key], error=error, asked_at=None)


# -- what to ask ---------------------------------------------------------------------------------


def make_sources(
    pair: ObservedPair,
    *,
    ledger: Path | None,
    timeout_seconds: float,
    interval_seconds: float | None = None,
) -> list[PolledSource]:
    """Without an interval, other namespaces are asked less often than brokers on this machine."""
    sources = []
    counts: dict[str, tuple[EntityCounts, ...]] = {}

    def add(kind: str, key: str, ask: Callable[[], Any], interval: float) -> None:
        sources.append(
            PolledSource(
                kind=kind,
                key=key,
                ask=ask,
                interval_seconds=interval,
                timeout_seconds=timeout_seconds,
                pause_seconds_max=PROBE_SECONDS_MAX if kind == "namespaces" else math.inf,
            )
        )

    for role, target in pair.targets.items():
        pace = interval_seconds or (LOCAL_SECONDS if target.is_local else REMOTE_SECONDS)
        seconds = timeout_seconds
        add("namespaces", role, partial(_probe, role, target, seconds), pace)
        entities = partial(_read_entities, role, target, counts, seconds)
        add("entities", role, entities, pace * COUNTS_FACTOR)
        reasons = partial(DeadLetterReader(target, seconds).read, role, counts)
        add("dead_letters", role, reasons, pace * COUNTS_FACTOR)
        if role == SECONDARY:
            peek = partial(_read_backlog, target, pair.primary_names, seconds)
            add("backlog", role, peek, pace * PEEK_FACTOR)
        if target.is_local:
            add("brokers", role, partial(_read_broker, target, seconds), pace * COUNTS_FACTOR)
            add("faults", role, FaultClient(target).all, pace * COUNTS_FACTOR)
    for url in pair.urls:
        # With many processes each is asked less often: there are more of them.
        pace = (interval_seconds or LOCAL_SECONDS) * max(1.0, len(pair.urls) / PROCESSES_FEW)
        add("processes", url, partial(_read_process, url, timeout_seconds), pace * COUNTS_FACTOR)
    if ledger is not None:
        add("ledger", str(ledger), partial(_read_ledger, ledger), LEDGER_SECONDS)
    return sources


def _probe(role: str, target: Target, seconds: float) -> NamespaceState:
    state = probe(role, target, seconds=seconds)
    if not state.is_reachable:
        # As an error, so that the address and the times of the last answer are kept.
        raise NamespaceError(state.error or "it does not answer")
    return state


def _read_entities(
    role: str, target: Target, counts: dict[str, tuple[EntityCounts, ...]], seconds: float
) -> tuple[EntityCounts, ...]:
    """Also puts them into `counts`, so that they need not be read again for the dead letters."""
    with administration(target, seconds=seconds) as admin:
        found = [_counts("queue", one.name, one) for one in admin.all_counts(EntityKind.QUEUE)]
        for topic in admin.all_counts(EntityKind.TOPIC):
            found.append(_counts("topic", topic.name, topic))
            found += [
                _counts("subscription", f"{topic.name}/Subscriptions/{one.name}", one)
                for one in admin.all_counts(EntityKind.SUBSCRIPTION, (topic.name,))
            ]
    counts[role] = tuple(found)
    return counts[role]


class DeadLetterReader:
    """Peeks at the first dead letters of the entities that have some, if their number changes."""

    def __init__(self, target: Target, seconds: float) -> None:
        self._target, self._seconds = target, seconds
        self._seen: dict[str, tuple[float, DeadLetterReasons]] = {}

    def read(
        self, role: str, counts: Mapping[str, tuple[EntityCounts, ...]]
    ) -> tuple[DeadLetterReasons, ...]:
        found = [one for one in counts.get(role, ()) if one.dead_letters]
        found.sort(key=lambda one: -(one.dead_letters or 0))
        wanted = {one.path: one.dead_letters or 0 for one in found[:DEAD_LETTER_ENTITIES_MAX]}
        now = time.monotonic()
        self._seen = {
            path: (at, seen)
            for path, (at, seen) in self._seen.items()
            if wanted.get(path) == seen.count and now - at < PEEK_AGAIN_SECONDS
        }
        new = [path for path in wanted if path not in self._seen]
        if new:
            with connect(self._target, seconds=self._seconds) as client:
                for path in new:
                    reasons = _peek_reasons(client, self._target, path, wanted[path])
                    self._seen[path] = now, reasons
        return tuple(self._seen[path][1] for path in wanted)


def _peek_reasons(client: Any, target: Target, path: str, count: int) -> DeadLetterReasons:
    source = parse_entity_path(path, None, SubQueue.DEAD_LETTER)
    reasons: Counter[str] = Counter()
    try:
        with explain_errors(target, source, right="Listen"):
            for message in peek_messages(client, target, source, limit=PEEK_COUNT):
                reasons[read_message(message).reason or "no reason"] += 1
    except PairbusError as error:
        # Of this entity only: a policy may be for one entity, or it was just deleted.
        return DeadLetterReasons(path=path, count=count, error=str(error))
    return DeadLetterReasons(
        path=path, count=count, peeked=reasons.total(), reasons=dict(reasons.most_common())
    )


def _counts(kind: str, path: str, properties: Any) -> EntityCounts:
    return EntityCounts(
        kind=kind,
        path=path,
        active=getattr(properties, "active_message_count", None),
        dead_letters=getattr(properties, "dead_letter_message_count", None),
        scheduled=getattr(properties, "scheduled_message_count", None),
        size_bytes=getattr(properties, "size_in_bytes", None),
    )


def _read_backlog(target: Target, primary_names: Sequence[str] | None, seconds: float) -> Any:
    return read_backlog(target, primary_names, peek=PEEK_COUNT, seconds=seconds, now=time.time())


def _read_broker(target: Target, seconds: float) -> dict[str, int]:
    with HttpClient.for_target(target, seconds=seconds) as client:
        response = client.request("GET", "/$metrics", headers={"Host": target.host})
    if response.status != 200:
        raise NamespaceError(f"it answers with {response.status} {response.reason}")
    return read_broker(parse_metrics(wanted_lines(response.body.decode("utf-8", "replace"))))


def _read_process(url: str, seconds: float) -> Any:
    text = fetch_metrics(url, seconds=seconds)
    if not text.startswith("#") and "pairbus_" not in text:
        raise NamespaceError("it does not answer with Prometheus metrics")
    return read_process(parse_metrics(wanted_lines(text)))


def _read_ledger(folder: Path) -> Any:
    from pairbus.syphon.ledger import read_ledger, totals_of  # loads pyarrow

    receipts = read_ledger(folder)
    return read_receipts(receipts, totals_of(receipts), now=time.time())
