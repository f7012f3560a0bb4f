"""Events as OpenTelemetry's metrics: `docs/metrics.md` says what each of them means.

Is handed the meter, and so needs no OpenTelemetry to be imported. Of the attributes of a metric,
one at most has many values: the entities, or the backlog queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Diverted,
    Event,
    FailedBack,
    FailedOver,
    PingSent,
    PrimaryFailed,
    Recovered,
    SendFailed,
    Throttled,
)
from pairbus.telemetry import conventions as names
from pairbus.telemetry.conventions import Attributes, failure, operation
from pairbus.telemetry.levels import Level, Levels

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

SENT: Final = "messaging.client.sent.messages"
DIVERTED: Final = "pairbus.diverted.messages"
DURATION: Final = "messaging.client.operation.duration"
FAILED_OVER_DURATION: Final = "pairbus.failed_over.duration"

COUNTERS: Final = {
    SENT: ("{message}", "Messages that a producer tried to send to the broker."),
    DIVERTED: ("{message}", "Messages that went to a backlog queue."),
    "pairbus.primary.failures": ("{failure}", "Failures on the primary before a failover."),
    "pairbus.recoveries": ("{recovery}", "Successes that spared an entity a failover."),
    "pairbus.failovers": ("{failover}", "Entities that failed over."),
    "pairbus.failbacks": ("{failback}", "Entities that failed back."),
    "pairbus.pings": ("{ping}", "Pings to entities that were failed over."),
    "pairbus.throttles": ("{throttle}", "Sends that were answered with server busy."),
    "pairbus.backlog.withdrawals": ("{withdrawal}", "Backlog queues taken out of the rotation."),
    "pairbus.backlog.readmissions": ("{readmission}", "Backlog queues put back into it."),
    "pairbus.send.failures": ("{failure}", "Sends that neither namespace took."),
}
LEVELS: Final = {
    Level.PAIRINGS: ("pairbus.pairings", "{pairing}", "Clients that are paired."),
    Level.ENTITIES_FAILED_OVER: (
        "pairbus.entities.failed_over",
        "{entity}",
        "Entities that are failed over.",
    ),
    Level.QUEUES_WITHDRAWN: (
        "pairbus.backlog.withdrawn",
        "{queue}",
        "Backlog queues that are out of the rotation.",
    ),
}
# The first are those that the conventions advise. An outage lasts longer than a send.
HISTOGRAMS: Final = {
    DURATION: (
        "Duration of an operation that a producer or consumer began.",
        (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    ),
    FAILED_OVER_DURATION: (
        "How long an entity had been failed over when it failed back.",
        (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400),
    ),
}
NAMED: Final = {
    Level.ENTITIES_FAILED_OVER: names.ENTITY,
    Level.QUEUES_WITHDRAWN: names.BACKLOG_QUEUE,
}


class Metrics:
    def __init__(self, meter: Meter, namespace: str, *, secondary_address: str | None) -> None:
        self._namespace = namespace
        self._send = operation("send", address=secondary_address)
        self._levels = Levels()
        # The attributes of what is counted for every diverted message, made once.
        self._to_queue: dict[str, tuple[Attributes, Attributes]] = {}
        self._of_entity: dict[str, Attributes] = {}
        self._counters = {
            name: meter.create_counter(name, unit, description)
            for name, (unit, description) in COUNTERS.items()
        }
        self._histograms = {
            name: meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=bounds
            )
            for name, (description, bounds) in HISTOGRAMS.items()
        }
        self._standing = {
            level: meter.create_up_down_counter(*what) for level, what in LEVELS.items()
        }

    def observe(self, event: Event) -> None:
        if isinstance(event, Diverted):  # one for each message, and it moves no level
            self._sent(event)
            return
        match event:
            case PrimaryFailed():
                self._add("pairbus.primary.failures", self._entity(event) | failure(event.error))
            case Recovered():
                self._add("pairbus.recoveries", self._entity(event))
            case FailedOver():
                self._add("pairbus.failovers", self._entity(event) | failure(event.error))
            case FailedBack():
                reason: Attributes = {names.REASON: event.reason}
                self._add("pairbus.failbacks", self._entity(event) | reason)
                lasted = self._histograms[FAILED_OVER_DURATION]
                lasted.record(event.after_seconds, self._entity(event))
            case BacklogWithdrawn():
                self._add("pairbus.backlog.withdrawals", self._queue(event) | failure(event.error))
            case BacklogReadmitted():
                self._add("pairbus.backlog.readmissions", self._queue(event))
            case Throttled():
                busy = self._entity if event.backlog_queue is None else self._queue
                self._add("pairbus.throttles", busy(event))
            case PingSent():
                answer: Attributes = {names.ANSWERED: event.answered}
                if not event.answered:
                    answer |= failure(event.error)
                self._add("pairbus.pings", self._entity(event) | answer)
            case SendFailed():
                cause = event.backlog_error or event.primary_error
                self._add("pairbus.send.failures", self._entity(event) | failure(cause))
        self._move(event)

    def _sent(self, event: Diverted) -> None:
        queue, path = event.backlog_queue, event.path
        if queue not in self._to_queue:
            to_queue = self._send | {names.DESTINATION: queue}
            self._to_queue[queue] = to_queue, to_queue | {names.OPERATION_TYPE: "send"}
        if path not in self._of_entity:
            self._of_entity[path] = self._entity(event)
        counted, timed = self._to_queue[queue]
        self._counters[SENT].add(event.count, counted)
        self._histograms[DURATION].record(event.seconds, timed)
        self._counters[DIVERTED].add(event.count, self._of_entity[path])

    def _move(self, event: Event) -> None:
        for move in self._levels.moves(event):
            whose: Attributes = {names.NAMESPACE: self._namespace}
            if move.level in NAMED:
                whose[NAMED[move.level]] = move.name
            self._standing[move.level].add(move.by, whose)

    def _add(self, name: str, attributes: Attributes) -> None:
        self._counters[name].add(1, attributes)

    def _entity(self, event: Any) -> Attributes:
        return {names.NAMESPACE: self._namespace, names.ENTITY: event.path}

    def _queue(self, event: Any) -> Attributes:
        return {names.NAMESPACE: self._namespace, names.BACKLOG_QUEUE: event.backlog_queue}
