"""Events as OpenTelemetry metrics. `docs/metrics.md` explains each metric.

The meter is passed in, so this module imports no OpenTelemetry. A metric has at most one attribute
with many values: the entity, or the backlog queue.

OpenTelemetry's conventions for messaging are still in development (version 1.44), so the names of
their attributes are spelled out here instead of imported from the package that defines them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pairbus import events
from pairbus.events import Event
from pairbus.telemetry.gauges import Gauge, GaugeTracker

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

# Attributes of the conventions, then our own.
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
SERVER_ADDRESS: Final = "server.address"
ERROR_TYPE: Final = "error.type"

NAMESPACE: Final = "pairbus.namespace"
ENTITY: Final = "pairbus.entity"
BACKLOG_QUEUE: Final = "pairbus.backlog_queue"
REASON: Final = "pairbus.reason"
ANSWERED: Final = "pairbus.answered"
CAUSE: Final = "pairbus.cause"
AFTER_SECONDS: Final = "pairbus.after_seconds"

Attributes = dict[str, str | int | float | bool]

SENT: Final = "messaging.client.sent.messages"
DIVERTED: Final = "pairbus.diverted.messages"
DURATION: Final = "messaging.client.operation.duration"
FAILED_OVER_DURATION: Final = "pairbus.failed_over.duration"

SENT_TO_PRIMARY: Final = (
    "pairbus.sent.messages",
    "{message}",
    "Messages that the primary accepted.",
)
COUNTERS: Final = {
    SENT: ("{message}", "Messages that a producer tried to send to the broker."),
    DIVERTED: ("{message}", "Messages that went to a backlog queue."),
    "pairbus.primary.failures": ("{failure}", "Failures on the primary before a failover."),
    "pairbus.recoveries": ("{recovery}", "Successful sends that avoided a failover."),
    "pairbus.failovers": ("{failover}", "Entities that failed over."),
    "pairbus.failbacks": ("{failback}", "Entities that failed back."),
    "pairbus.failback.delays": ("{delay}", "Warnings that the backlog does not come home."),
    "pairbus.flaps": ("{flap}", "Failovers soon after a failback."),
    "pairbus.pings": ("{ping}", "Pings to entities that were failed over."),
    "pairbus.throttles": ("{throttle}", "Sends rejected because the service was busy."),
    "pairbus.backlog.withdrawals": ("{withdrawal}", "Backlog queues that left the rotation."),
    "pairbus.backlog.readmissions": ("{readmission}", "Backlog queues that came back into it."),
    "pairbus.send.failures": ("{failure}", "Sends that neither namespace accepted."),
    "pairbus.outbox.stored": ("{message}", "Messages that were stored in the outbox."),
    "pairbus.outbox.sent": ("{message}", "Messages that left the outbox."),
    "pairbus.outbox.held": ("{message}", "Messages in the outbox that are not sent any more."),
    "pairbus.outbox.stalls": ("{stall}", "Failed attempts to send what waits in the outbox."),
    "pairbus.syphon.failures": ("{failure}", "Failures of the syphon in a client."),
    "pairbus.syphon.restarts": ("{restart}", "Restarts of the syphon in a client."),
}
GAUGES: Final = {
    Gauge.PAIRINGS: ("pairbus.pairings", "{pairing}", "Clients that are paired."),
    Gauge.ENTITIES_FAILED_OVER: (
        "pairbus.entities.failed_over",
        "{entity}",
        "Entities that are failed over.",
    ),
    Gauge.ENTITIES_FLAPPING: (
        "pairbus.entities.flapping",
        "{entity}",
        "Entities that need more answered pings because they flap.",
    ),
    Gauge.QUEUES_WITHDRAWN: (
        "pairbus.backlog.withdrawn",
        "{queue}",
        "Backlog queues that are out of the rotation.",
    ),
    Gauge.SYPHONS_DOWN: ("pairbus.syphons.down", "{syphon}", "Syphons that failed."),
    Gauge.OUTBOX_MESSAGES: (
        "pairbus.outbox.messages",
        "{message}",
        "Messages that wait in outboxes.",
    ),
}
# The first boundaries are those of the conventions. An outage lasts longer than a send.
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
GAUGE_ATTRIBUTE: Final = {
    Gauge.ENTITIES_FAILED_OVER: ENTITY,
    Gauge.ENTITIES_FLAPPING: ENTITY,
    Gauge.QUEUES_WITHDRAWN: BACKLOG_QUEUE,
}


def operation(name: str, *, address: str | None) -> Attributes:
    """The attributes that all operations of one kind share."""
    attributes: Attributes = {SYSTEM: "servicebus", OPERATION_NAME: name}
    if address is not None:
        attributes[SERVER_ADDRESS] = address
    return attributes


def failure(error: BaseException | None) -> Attributes:
    """The class of an error has few values; its text would make a new series each time."""
    return {ERROR_TYPE: "_OTHER" if error is None else type(error).__qualname__}


class Metrics:
    def __init__(self, meter: Meter, namespace: str, *, secondary_address: str | None) -> None:
        self._pair: Attributes = {NAMESPACE: namespace}
        self._send = operation("send", address=secondary_address)
        self._gauge_tracker = GaugeTracker()
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
        self._gauges = {
            gauge: meter.create_up_down_counter(*settings) for gauge, settings in GAUGES.items()
        }

    def observe(self, event: Event) -> None:
        match event:
            case events.Diverted():
                send = self._send | {DESTINATION: event.backlog_queue}
                self._add(SENT, send, by=event.count)
                self._histograms[DURATION].record(event.seconds, send | {OPERATION_TYPE: "send"})
                self._add(DIVERTED, self._entity(event), by=event.count)
            case events.PrimaryFailed():
                self._add("pairbus.primary.failures", self._entity(event) | failure(event.error))
            case events.Recovered():
                self._add("pairbus.recoveries", self._entity(event))
            case events.FailedOver():
                self._add("pairbus.failovers", self._entity(event) | failure(event.error))
            case events.FailedBack():
                reason: Attributes = {REASON: event.reason}
                self._add("pairbus.failbacks", self._entity(event) | reason)
                duration = self._histograms[FAILED_OVER_DURATION]
                duration.record(event.after_seconds, self._entity(event))
            case events.FailBackDelayed():
                self._add("pairbus.failback.delays", self._entity(event))
            case events.Flapping():
                self._add("pairbus.flaps", self._entity(event))
            case events.BacklogWithdrawn():
                self._add("pairbus.backlog.withdrawals", self._queue(event) | failure(event.error))
            case events.BacklogReadmitted():
                self._add("pairbus.backlog.readmissions", self._queue(event))
            case events.Throttled():
                busy = self._entity if event.backlog_queue is None else self._queue
                self._add("pairbus.throttles", busy(event))
            case events.PingSent():
                answer: Attributes = {ANSWERED: event.answered}
                if not event.answered:
                    answer |= failure(event.error)
                self._add("pairbus.pings", self._entity(event) | answer)
            case events.SendFailed():
                cause = event.backlog_error or event.primary_error
                self._add("pairbus.send.failures", self._entity(event) | failure(cause))
            case events.StoredInOutbox():
                self._add("pairbus.outbox.stored", self._entity(event), by=event.count)
            case events.LeftOutbox():
                self._add("pairbus.outbox.sent", self._entity(event), by=event.count)
            case events.HeldInOutbox():
                self._add("pairbus.outbox.held", self._entity(event))
            case events.OutboxStalled():
                self._add("pairbus.outbox.stalls", self._entity(event) | failure(event.error))
            case events.SyphonFailed():
                self._add("pairbus.syphon.failures", self._pair | failure(event.error))
            case events.SyphonRestarted():
                self._add("pairbus.syphon.restarts", self._pair)
        self._change_gauges(event)

    def _change_gauges(self, event: Event) -> None:
        for change in self._gauge_tracker.changes(event):
            attributes = dict(self._pair)
            if change.gauge in GAUGE_ATTRIBUTE:
                attributes[GAUGE_ATTRIBUTE[change.gauge]] = change.name
            self._gauges[change.gauge].add(change.delta, attributes)

    def _add(self, name: str, attributes: Attributes, *, by: int = 1) -> None:
        self._counters[name].add(by, attributes)

    def _entity(self, event: Any) -> Attributes:
        return self._pair | {ENTITY: event.path}

    def _queue(self, event: Any) -> Attributes:
        return self._pair | {BACKLOG_QUEUE: event.backlog_queue}
