"""Ordered failback: an entity goes back to the primary when this client's messages are home.

While the client has messages of an entity in a backlog queue, the entity uses no other queue: the
syphon keeps order within a queue only. When the primary answers, the client goes on diverting until
a peek finds none of its own messages there, no send to the backlog is under way, and none has ended
since the peek began. `own_backlog.py` keeps what is known of them.

An application that sends all the time would never reach that moment. So when the syphon is only
seconds behind, sends wait for the last messages to come home (`HealthState.HOLDING`), for a few
seconds at most.
"""

from __future__ import annotations

from pairbus import events
from pairbus.client.route.entities import Entities, span
from pairbus.client.route.entity import RoutedEntity
from pairbus.client.route.health import Signal
from pairbus.client.route.own_backlog import PeekedPage
from pairbus.client.route.plans import PeekBacklog, ToBacklog


class OrderedFailBack:
    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    # what is under way to the backlog

    # Calls are kept and not only counted: a Ctrl-C can come between any two steps, and then a call
    # ends without knowing whether it has begun, or without reporting that it has ended.

    def backlog_begins(self, path: str, way: ToBacklog, call: object, *, now: float) -> bool:
        """An attempt to send to a backlog queue begins. False: plan again, the plan is outdated."""
        entity = self._entities.of(path, now=now)
        if call not in entity.own.calls and entity.health.state.is_on_primary:
            return False
        if self._entities.queue_of(entity) != way.queue:
            return False
        entity.own.attempts.add(call)
        entity.own.calls.add(call)
        entity.health.awaits_backlog = True
        return True

    def backlog_attempt_ended(self, path: str, call: object, *, now: float) -> None:
        """No effect if none has begun."""
        self._entities.of(path, now=now).own.attempts.discard(call)

    def backlog_call_ended(self, path: str, call: object, *, now: float) -> None:
        """No effect if it has not begun."""
        entity = self._entities.of(path, now=now)
        entity.own.attempts.discard(call)
        entity.own.calls.discard(call)
        self._backlog_changed(entity, now=now)

    # what is left there

    def peeked(self, peek: PeekBacklog, page: PeekedPage, *, now: float) -> None:
        """Take in what a page of the backlog queue showed."""
        entity = self._entities[peek.path]
        own = entity.own
        if own.peek_out == peek:
            own.peek_out = None
        if self._is_awaiting(entity, peek):
            is_quiet = entity.diverted == peek.diverted
            is_near = own.peeked(page, is_quiet=is_quiet, now=now)
            self._backlog_changed(entity, now=now)
            if is_near and entity.health.awaits_backlog and now >= own.hold_from:
                self._entities.observe(entity, Signal.BACKLOG_NEAR, now=now)
            self._warn_if_stalled(entity, None, now=now)
        self._entities.agenda.update(entity)

    def peek_failed(self, peek: PeekBacklog, error: BaseException, *, now: float) -> None:
        entity = self._entities[peek.path]
        if entity.own.peek_out == peek:
            entity.own.peek_out = None
        entity.own.peek_failed(now=now)
        if self._is_awaiting(entity, peek):
            self._warn_if_stalled(entity, error, now=now)
        self._entities.agenda.update(entity)

    def _is_awaiting(self, entity: RoutedEntity, peek: PeekBacklog) -> bool:
        """Whether the outcome of a peek still matters."""
        health = entity.health
        is_current = peek.epoch == health.epoch and peek.queue == entity.queue
        return is_current and health.state.is_returning and not self._entities.is_closed

    def _backlog_changed(self, entity: RoutedEntity, *, now: float) -> None:
        entity.health.awaits_backlog = entity.own.is_awaited
        if not entity.own.is_awaited:
            self._entities.observe(entity, None, now=now)

    def _warn_if_stalled(
        self, entity: RoutedEntity, error: BaseException | None, *, now: float
    ) -> None:
        if entity.health.state.is_returning and entity.own.is_stalled(now=now):
            self._entities.note(
                events.FailBackDelayed(
                    namespace=self._entities.namespace,
                    path=entity.path,
                    backlog_queue=entity.queue,
                    seconds=span(entity.own.moved_at, now),
                    error=error,
                )
            )
