"""Writes one log line for each event, to the loggers `pairbus.*`.

In an outage every send may fail. So of the failures of one entity the first is logged, and then one
line in ten seconds, which says how many others there were.

A line names the entity or the queue, the cause, and what happens next. A cause is one line of text
without a traceback: the caller of the send gets the exception itself. It adds no handler and sets
no level; the application does that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, Final

from pairbus import events
from pairbus.errors import one_line
from pairbus.events import Event

Line = tuple[int, str]
Failure = (
    events.PrimaryFailed
    | events.SendFailed
    | events.Throttled
    | events.StoredInOutbox
    | events.OutboxStalled
)
"""Every send of an outage may cause one."""

REPEAT_SECONDS: Final = 10.0
"""The minimum time between two lines about the same failure of the same entity."""


@dataclass(slots=True)
class _Repeats:
    """The events since the last line that were not logged."""

    since: float
    count: int = 0
    last: Event | None = None


class EventLog:
    """An observer for one pairing."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Reentrant: a signal handler may close the client while its thread is in here.
        self._lock = threading.RLock()
        self._repeats: dict[tuple[type[Event], str, str | None], _Repeats] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.Diverted):  # once for each message, so it comes first
            if _BACKLOG.isEnabledFor(DEBUG):
                _log(event)
        elif isinstance(event, Failure):
            self._log_limited(event)
        else:
            if isinstance(event, events.FailedOver | events.FailedBack | events.Recovered):
                self._log_held_back(event.path)
            elif isinstance(event, events.Closed):
                self._log_held_back()
            _log(event)

    def _log_limited(self, event: Failure) -> None:
        key = (type(event), event.path, getattr(event, "backlog_queue", None))
        now = self._clock()
        with self._lock:
            repeats = self._repeats.get(key)
            if repeats is not None and now - repeats.since < REPEAT_SECONDS:
                repeats.count += 1
                repeats.last = event
                return
            self._repeats[key] = _Repeats(now)
        _log(event, repeats, now=now)

    def _log_held_back(self, path: str | None = None) -> None:
        """Log the pending failures of an entity, or of all entities, before its state changes."""
        now = self._clock()
        with self._lock:
            keys = [key for key in self._repeats if path is None or key[1] == path]
            ended = [self._repeats.pop(key) for key in keys]
        for repeats in ended:
            if repeats.last is not None:
                repeats.count -= 1
                _log(repeats.last, repeats, now=now)


def _log(event: Event, repeats: _Repeats | None = None, *, now: float = 0.0) -> None:
    logger, line_of = _LINES[type(event)]
    level, text = line_of(event)
    if repeats is not None and repeats.count:
        text += f" ({repeats.count} more like this in {_seconds(now - repeats.since)})"
    logger.log(level, text)  # no arguments: a percent sign in the cause stays as it is


def _paired(event: events.Paired) -> Line:
    queues = event.backlog_queues
    names = queues[0] if len(queues) == 1 else f"{queues[0]} to {queues[-1]}"
    return INFO, (
        f"{event.namespace} is paired: {_count(len(queues), 'backlog queue')} ({names}), "
        f"{len(queues) - len(event.made)} found and {len(event.made)} created"
    )


def _closed(event: events.Closed) -> Line:
    return INFO, f"the pairing of {event.namespace} is closed: pings and diverting have stopped"


def _primary_failed(event: events.PrimaryFailed) -> Line:
    return WARNING, (
        f"a send to {_entity(event)} failed: {one_line(event.error)}; the first failure was "
        f"{_seconds(event.since_seconds)} ago, and the entity fails over in "
        f"{_seconds(event.failover_in_seconds)} unless a send succeeds before"
    )


def _recovered(event: events.Recovered) -> Line:
    return INFO, f"{_entity(event)} accepts messages again and does not fail over"


def _failed_over(event: events.FailedOver) -> Line:
    if event.backlog_queue is None:
        next_step = "no backlog queue is left, so neither namespace accepts its messages"
    else:
        next_step = f"messages go to {event.backlog_queue} until the primary answers a ping"
    return WARNING, (
        f"{_entity(event)} failed over {_seconds(event.after_seconds)} after its first failure: "
        f"{one_line(event.error)}; {next_step}"
    )


def _failed_back(event: events.FailedBack) -> Line:
    reasons = {
        "ping": "the primary answered a ping",
        "by hand": "marked healthy by hand",
        "backlog home": "its diverted messages are home",
        "wait over": "fail_back_wait_max is over, and order is not kept",
    }
    return INFO, (
        f"{_entity(event)} failed back after {_seconds(event.after_seconds)} "
        f"({reasons.get(event.reason, event.reason)}); messages go to the primary"
    )


def _returning(event: events.Returning) -> Line:
    return INFO, (
        f"{_entity(event)} answers again after {_seconds(event.after_seconds)}; messages go to "
        f"{event.backlog_queue} until those that are there are home"
    )


def _fail_back_delayed(event: events.FailBackDelayed) -> Line:
    cause = "" if event.error is None else f" ({one_line(event.error)})"
    return WARNING, (
        f"{_entity(event)} answers, but no diverted message of this client has come home from "
        f"{event.backlog_queue} for {_seconds(event.seconds)}{cause}; messages are still diverted, "
        "to keep their order; check that a syphon runs"
    )


def _flapping(event: events.Flapping) -> Line:
    return WARNING, (
        f"{_entity(event)} is flapping: it failed over {_seconds(event.after_seconds)} after it "
        f"had failed back; it fails back when {event.pings_needed} pings in a row are answered"
    )


def _calmed(event: events.Calmed) -> Line:
    return INFO, f"{_entity(event)} no longer flaps: it needs no more answered pings than at first"


def _diverted(event: events.Diverted) -> Line:
    return DEBUG, (
        f"diverted {_count(event.count, 'message')} for {_entity(event)} to "
        f"{event.backlog_queue} in {event.seconds:.3f} s"
    )


def _backlog_withdrawn(event: events.BacklogWithdrawn) -> Line:
    if event.left:
        remaining = f"{_count(event.left, 'backlog queue')} left"
    else:
        remaining = (
            "no backlog queue is left, so neither namespace accepts messages for failed-over "
            "entities"
        )
    return WARNING, (
        f"backlog queue {event.backlog_queue} is out of the rotation until it answers again: "
        f"{one_line(event.error)}; {remaining}"
    )


def _backlog_readmitted(event: events.BacklogReadmitted) -> Line:
    return INFO, (
        f"backlog queue {event.backlog_queue} answers again and is back in the rotation: "
        f"{_count(event.left, 'backlog queue')} now"
    )


def _throttled(event: events.Throttled) -> Line:
    wait = _seconds(event.wait_seconds)
    if event.backlog_queue is None:
        return WARNING, f"{_entity(event)} is throttled: the send is repeated in {wait}"
    return WARNING, (
        f"backlog queue {event.backlog_queue}, used for {_entity(event)}, is throttled: another "
        f"queue gets the message, or this one in {wait} if there is no other"
    )


def _ping_sent(event: events.PingSent) -> Line:
    if event.answered:
        return INFO, f"{_entity(event)} answered a ping"
    return DEBUG, (
        f"{_entity(event)} did not answer a ping: {one_line(event.error)}; "
        "pings continue while it is failed over"
    )


def _send_failed(event: events.SendFailed) -> Line:
    return ERROR, (
        f"neither namespace accepted a message for {_entity(event)}: "
        f"on the primary, {one_line(event.primary_error)}; "
        f"on the backlog queues, {one_line(event.backlog_error)}; "
        "the caller gets the error and still has the message"
    )


def _outbox_opened(event: events.OutboxOpened) -> Line:
    held = (
        f"; {_count(event.held, 'held message')} must be sent or deleted with `pairbus outbox`"
        if event.held
        else ""
    )
    return WARNING, (
        f"the outbox of {event.namespace}, {event.file}, holds {_count(event.waiting, 'message')} "
        f"of an earlier run, which are sent first{held}"
    )


def _stored_in_outbox(event: events.StoredInOutbox) -> Line:
    return WARNING, (
        f"stored {_count(event.count, 'message')} for {_entity(event)} in the outbox "
        f"{event.file}, where {_waits(event.waiting)} until a namespace "
        "accepts messages again"
    )


def _left_outbox(event: events.LeftOutbox) -> Line:
    text = f"sent {_count(event.count, 'message')} for {_entity(event)} from the outbox"
    if event.waiting:
        return DEBUG, f"{text}, where {_waits(event.waiting)}"
    return INFO, f"{text}, which is empty now"


def _held_in_outbox(event: events.HeldInOutbox) -> Line:
    return ERROR, (
        f"message {event.message_id!r} for {_entity(event)} stays in the outbox {event.file} and "
        f"is not sent any more: {event.reason}; use `pairbus outbox` to send or delete it"
    )


def _outbox_stalled(event: events.OutboxStalled) -> Line:
    return WARNING, (
        f"{_count(event.waiting, 'message')} for {_entity(event)} could not leave the outbox: "
        f"{one_line(event.error)}; the next attempt is in {_seconds(event.retry_in_seconds)}"
    )


def _syphon_failed(event: events.SyphonFailed) -> Line:
    return WARNING, (
        f"the syphon of {event.namespace} failed: {one_line(event.error)}; it starts again in "
        f"{_seconds(event.restart_in_seconds)}, and until then diverted messages wait"
    )


def _syphon_restarted(event: events.SyphonRestarted) -> Line:
    return INFO, f"the syphon of {event.namespace} runs again after {_seconds(event.down_seconds)}"


def _entity(event: Any) -> str:
    return f"{event.path} of {event.namespace}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _waits(count: int) -> str:
    return f"{_count(count, 'message')} {'waits' if count == 1 else 'wait'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


_PAIRING: Final = logging.getLogger("pairbus.pairing")
_FAILOVER: Final = logging.getLogger("pairbus.failover")
_BACKLOG: Final = logging.getLogger("pairbus.backlog")
_THROTTLING: Final = logging.getLogger("pairbus.throttling")
_PING: Final = logging.getLogger("pairbus.ping")
_OUTBOX: Final = logging.getLogger("pairbus.outbox")
_SYPHON: Final = logging.getLogger("pairbus.syphon")

_LINES: Final[dict[type[Event], tuple[logging.Logger, Callable[[Any], Line]]]] = {
    events.Paired: (_PAIRING, _paired),
    events.Closed: (_PAIRING, _closed),
    events.PrimaryFailed: (_FAILOVER, _primary_failed),
    events.Recovered: (_FAILOVER, _recovered),
    events.FailedOver: (_FAILOVER, _failed_over),
    events.FailedBack: (_FAILOVER, _failed_back),
    events.Returning: (_FAILOVER, _returning),
    events.FailBackDelayed: (_FAILOVER, _fail_back_delayed),
    events.Flapping: (_FAILOVER, _flapping),
    events.Calmed: (_FAILOVER, _calmed),
    events.Diverted: (_BACKLOG, _diverted),
    events.BacklogWithdrawn: (_BACKLOG, _backlog_withdrawn),
    events.BacklogReadmitted: (_BACKLOG, _backlog_readmitted),
    events.SendFailed: (_BACKLOG, _send_failed),
    events.Throttled: (_THROTTLING, _throttled),
    events.PingSent: (_PING, _ping_sent),
    events.OutboxOpened: (_OUTBOX, _outbox_opened),
    events.StoredInOutbox: (_OUTBOX, _stored_in_outbox),
    events.LeftOutbox: (_OUTBOX, _left_outbox),
    events.HeldInOutbox: (_OUTBOX, _held_in_outbox),
    events.OutboxStalled: (_OUTBOX, _outbox_stalled),
    events.SyphonFailed: (_SYPHON, _syphon_failed),
    events.SyphonRestarted: (_SYPHON, _syphon_restarted),
}
