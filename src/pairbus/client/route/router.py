"""All entities of one paired client: where each message goes, and what the background has to do.

A shell asks `plan`, acts, and reports the outcome; if `failed` returns True it asks again. It also
does what `take_due_tasks` returns, at `next_due` at the latest, and reports those outcomes. State
belongs to one client and one entity. Paths are compared without regard to case, as Service Bus
does.

Pure: `now` is monotonic seconds, `choose` picks a backlog queue. No locks: the shells hold one
around every call. Which error counts is decided before it is reported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from pairbus import events
from pairbus.client.route.backlog import Rotation
from pairbus.client.route.entity import Agenda, RoutedEntity
from pairbus.client.route.fail_back import (
    HOLD_POLL_SECONDS,
    OwnBacklog,
    PeekBacklog,
    PeekedPage,
)
from pairbus.client.route.health import Health, HealthState, Signal
from pairbus.client.route.plans import (
    BackgroundTask,
    Hold,
    Nowhere,
    Ping,
    Plan,
    Probe,
    ToBacklog,
    ToPrimary,
    Way,
)
from pairbus.client.route.status import PairingStatus, WithdrawnQueue
from pairbus.errors import one_line

__all__ = [
    "Router",
    "Plan",
    "Way",
    "ToPrimary",
    "ToBacklog",
    "Nowhere",
    "Hold",
    "BackgroundTask",
    "Ping",
    "Probe",
    "PeekBacklog",
]


class Router:
    def __init__(
        self,
        namespace: str,
        queues: Sequence[str],
        *,
        failover_seconds: float,
        ping_seconds: float,
        rest_seconds: float,
        choose: Callable[[Sequence[str]], str],
        fails_over_together: bool = False,
        fail_back_pings: int = 1,
        phase: Callable[[], float] = lambda: 1.0,
        is_ordered: bool = False,
        wait_seconds_max: float | None = None,
    ) -> None:
        """`namespace` is the primary's name in events. `rest_seconds`: how long a backlog queue
        that failed is left alone. `fails_over_together`: if one entity fails over because the
        namespace cannot be reached, all others do. `fail_back_pings`: how many pings in a row must
        be answered before an entity fails back. `phase`: which part of a ping period passes between
        a failover and its first ping, above 0 and up to 1; at random, so that clients that fail
        over together do not ping together. `is_ordered`: an entity fails back only when its own
        messages in the backlog are home, or after `wait_seconds_max`."""
        self._namespace = namespace
        self._failover_seconds = failover_seconds
        self._ping_seconds = ping_seconds
        self._rotation = Rotation(queues, choose=choose, rest_seconds=rest_seconds)
        self._entities: dict[str, RoutedEntity] = {}
        self._agenda = Agenda()
        self._events: list[events.Event] = []
        self._is_closed = False
        self._fails_over_together = fails_over_together
        self._fail_back_pings = fail_back_pings
        self._phase = phase
        self._is_ordered = is_ordered
        self._wait_seconds_max = wait_seconds_max
        self._last_sent: float | None = None
        """When the primary last accepted a message of any entity."""
        self._unreachable: BaseException | None = None
        """All entities failed over together because of this, and the primary has not answered
        any of them enough pings yet.
        """

    # sending

    def register(self, path: str, *, now: float) -> str | None:
        """Make an entity known. Returns the backlog queue that it would use if it failed over now;
        None if no queue is left.

        Each entity of each client picks one at random, so that clients that know nothing of each
        other share the queues.
        """
        return self._queue_of(self._entity(path, now=now))

    def plan(self, path: str, *, now: float, can_hold: bool = True) -> Plan:
        """With `can_hold=False`, the caller has no time to wait."""
        entity = self._entity(path, now=now)
        health = entity.health
        # Asked for every message, so what is usual comes first: time changes nothing then.
        if health.state is HealthState.HEALTHY and not health.doublings:
            return ToPrimary(health.epoch)
        self._observe(entity, None, now=now)
        if health.state.is_on_primary:
            return ToPrimary(health.epoch)
        if health.state is HealthState.HOLDING and can_hold:
            return Hold(HOLD_POLL_SECONDS)
        return self.plan_backlog(path, now=now, can_hold=can_hold)

    def plan_backlog(
        self, path: str, *, now: float, can_hold: bool = True
    ) -> ToBacklog | Nowhere | Hold:
        """Plans the rest of a call whose first part is in the backlog. The entity's state does not
        matter.
        """
        entity = self._entity(path, now=now)
        queue = self._queue_of(entity)
        if queue is None:
            return self.causes(path, now=now)
        if entity.own.is_pinned and self._rotation.is_failing(queue):
            # In another queue, its messages could overtake those that are in this one.
            return Hold(HOLD_POLL_SECONDS) if can_hold else self.causes(path, now=now)
        return ToBacklog(queue, self._rotation.generation(queue))

    # Only with ordered fail-back: what is under way to the backlog.

    def backlog_begins(self, path: str, way: ToBacklog, *, is_first: bool, now: float) -> bool:
        """An attempt to send to a backlog queue begins. False: plan again, the plan is outdated.
        `is_first`: it is the first of its call.
        """
        entity = self._entity(path, now=now)
        if is_first and entity.health.state.is_on_primary:
            return False
        if self._queue_of(entity) != way.queue:
            return False
        entity.own.attempts += 1
        entity.own.calls += is_first
        entity.health.awaits_backlog = True
        return True

    def backlog_attempt_ended(self, path: str, *, now: float) -> None:
        self._entity(path, now=now).own.attempts -= 1

    def backlog_call_ended(self, path: str, *, now: float) -> None:
        entity = self._entity(path, now=now)
        entity.own.calls -= 1
        self._backlog_changed(entity, now=now)

    def sent(self, path: str, way: Way, *, count: int, now: float, seconds: float = 0.0) -> None:
        """The messages are acknowledged. `seconds`: how long that took."""
        entity = self._entity(path, now=now)
        if isinstance(way, ToBacklog):
            entity.diverted += count
            entity.own.has_messages = self._is_ordered
            self._note(
                events.Diverted(
                    namespace=self._namespace,
                    path=entity.path,
                    backlog_queue=way.queue,
                    count=count,
                    seconds=seconds,
                )
            )
        else:
            entity.sent += count
            self._last_sent = now
            # The start of the send does not matter: it succeeds now, and clears a running failover
            # interval. It does not end a failover; only a ping does.
            if entity.health.state is not HealthState.HEALTHY:  # rarely: save every send the time
                self._observe(entity, Signal.SENT, now=now)

    def failed(
        self,
        path: str,
        way: Way,
        error: BaseException,
        *,
        now: float,
        is_unreachable: bool = False,
    ) -> bool:
        """A send failed in a way that counts. True: plan again; False: the caller gets the error.
        `is_unreachable`: the error says that the whole namespace cannot be reached.
        """
        entity = self._entity(path, now=now)
        if isinstance(way, ToBacklog):
            self._withdraw(way, error, now=now)
            return True
        entity.failures += 1
        if way.epoch != entity.health.epoch:
            # The send began before the entity failed back, so it belongs to the outage before that.
            return True
        entity.last_error, entity.is_unreachable = error, is_unreachable
        self._observe(entity, Signal.FAILED, now=now)
        if not entity.health.state.is_on_primary:
            return True
        since_seconds = _span(entity.health.first_failure, now)
        self._note(
            events.PrimaryFailed(
                namespace=self._namespace,
                path=entity.path,
                error=error,
                since_seconds=since_seconds,
                failover_in_seconds=self._failover_seconds - since_seconds,
            )
        )
        return False

    def throttled(
        self, path: str, way: Way, error: BaseException, *, wait_seconds: float, now: float
    ) -> None:
        """The service is busy. That is neither a success nor a failure. A backlog queue leaves the
        rotation for that time if there is another one.
        """
        entity = self._entity(path, now=now)
        entity.throttled += 1
        self._note(
            events.Throttled(
                namespace=self._namespace,
                path=entity.path,
                wait_seconds=wait_seconds,
                backlog_queue=way.queue if isinstance(way, ToBacklog) else None,
            )
        )
        if isinstance(way, ToBacklog):
            self._withdraw(way, error, now=now, busy_seconds=wait_seconds)

    def send_failed(self, path: str, causes: Nowhere, *, now: float) -> None:
        """The caller gets an error with both causes, and still owns the message."""
        entity = self._entity(path, now=now)
        entity.refused += 1
        self._note(
            events.SendFailed(
                namespace=self._namespace,
                path=entity.path,
                primary_error=causes.primary_error,
                backlog_error=causes.backlog_error,
            )
        )

    def causes(self, path: str, *, now: float) -> Nowhere:
        """The known reasons why neither namespace accepts a message."""
        entity = self._entity(path, now=now)
        return Nowhere(entity.last_error, self._rotation.last_error)

    def mark_healthy(self, path: str, *, now: float) -> bool:
        """Fail back by hand. Returns False if the entity is already healthy. Raises KeyError if no
        sender has used the path.
        """
        entity = self._entities.get(path.lower())
        if entity is None:
            raise KeyError(f"no sender of this client has used {path!r}")
        self._observe(entity, None, now=now)
        if entity.health.state is HealthState.HEALTHY:
            return False
        self._observe(entity, Signal.MARKED_HEALTHY, now=now)
        return True

    # the background

    def take_due_tasks(self, *, now: float) -> list[BackgroundTask]:
        """Returns the tasks that are due now. Report the outcome of each in every case: until then
        it is not due again.

        A suspect entity may fail over here, because its interval has ended. That needs no further
        send.
        """
        if self._is_closed:
            return []
        tasks: list[BackgroundTask] = []
        for entity in self._agenda.take(now=now):
            self._observe(entity, None, now=now)
            ping = entity.take_ping(ping_seconds=self._ping_seconds, now=now)
            peek = entity.take_peek(now=now)
            tasks.extend(task for task in (ping, peek) if task is not None)
            self._agenda.update(entity)
        tasks.extend(map(Probe, self._rotation.take_due(now=now)))
        return tasks

    @property
    def next_due(self) -> float | None:
        """The earliest moment at which `take_due_tasks` returns something; it may have passed."""
        if self._is_closed:
            return None
        moments = (self._agenda.next, self._rotation.next_due)
        return min((at for at in moments if at is not None), default=None)

    def is_wanted(self, ping: Ping) -> bool:
        """Check this before sending a ping that had to wait. If it returns False, report no
        outcome.
        """
        entity = self._entities[ping.path.lower()]
        if not self._is_closed and ping.epoch == entity.health.epoch:
            return True
        if entity.ping_out == ping:
            entity.ping_out = None
            self._agenda.update(entity)
        return False

    def would_fail_back(self, ping: Ping) -> bool:
        """Whether the entity fails back if this ping is answered."""
        health = self._entities[ping.path.lower()].health
        if ping.epoch != health.epoch or health.awaits_backlog:
            return False
        return health.answers + 1 >= health.pings_needed

    def ping_answered(self, ping: Ping, *, now: float) -> bool:
        """Returns whether the entity failed back. False if it already had, if it needs more
        answers, or if the client is closed.
        """
        entity = self._ping_ended(ping, error=None)
        if self._is_closed or ping.epoch != entity.health.epoch:
            return False
        self._observe(entity, Signal.PING_ANSWERED, now=now)
        return entity.health.state is HealthState.HEALTHY

    def ping_failed(self, ping: Ping, error: BaseException, *, now: float) -> None:
        entity = self._ping_ended(ping, error=error)
        if ping.epoch == entity.health.epoch:
            entity.last_error = error
            self._observe(entity, Signal.PING_FAILED, now=now)

    def peeked(self, peek: PeekBacklog, page: PeekedPage, *, now: float) -> None:
        """Take in what a page of the backlog queue showed."""
        entity = self._entities[peek.path.lower()]
        own = entity.own
        if own.peek_out == peek:
            own.peek_out = None
        if self._is_awaiting(entity, peek):
            is_quiet = entity.diverted == peek.diverted
            is_near = own.peeked(page, is_quiet=is_quiet, now=now)
            self._backlog_changed(entity, now=now)
            if is_near and entity.health.awaits_backlog and now >= own.hold_from:
                self._observe(entity, Signal.BACKLOG_NEAR, now=now)
            self._warn_if_stalled(entity, None, now=now)
        self._agenda.update(entity)

    def peek_failed(self, peek: PeekBacklog, error: BaseException, *, now: float) -> None:
        entity = self._entities[peek.path.lower()]
        if entity.own.peek_out == peek:
            entity.own.peek_out = None
        entity.own.peek_failed(now=now)
        if self._is_awaiting(entity, peek):
            self._warn_if_stalled(entity, error, now=now)
        self._agenda.update(entity)

    def probe_answered(self, queue: str) -> None:
        if self._rotation.readmit(queue):
            self._note_readmitted(queue)

    def probe_failed(self, queue: str, error: BaseException, *, now: float) -> None:
        self._rotation.probe_failed(queue, error, now=now)

    def wanted_queues(self) -> tuple[str, ...]:
        """The backlog queues that some entity uses, or would use if it failed over now."""
        wanted = {self._queue_of(entity) for entity in self._entities.values()}
        return tuple(queue for queue in self._rotation.in_rotation if queue in wanted)

    @property
    def queues_left(self) -> int:
        """The number of backlog queues in the rotation."""
        return len(self._rotation.in_rotation)

    def close(self) -> None:
        """Stop handing out tasks. Late outcomes may still be reported; they change nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._note(events.Closed(namespace=self._namespace))

    # watching

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[events.Event]:
        """What happened since the last call, in order."""
        taken, self._events = self._events, []
        return taken

    def status(self, *, secondary: str, date: Callable[[float], datetime]) -> PairingStatus:
        """`date` turns a moment of `now` into a date."""
        entities = self._entities.values()
        return PairingStatus(
            namespace=self._namespace,
            secondary=secondary,
            entities=tuple(
                each.status(backlog_queue=self._queue_of(each), date=date) for each in entities
            ),
            backlog_queues=self._rotation.in_rotation,
            withdrawn=tuple(
                WithdrawnQueue(
                    queue=queue,
                    error=one_line(each.error),
                    since=date(each.at),
                    retry_at=date(each.retry_at),
                )
                for queue, each in self._rotation.withdrawn.items()
            ),
            pings_sent=sum(each.pings_sent for each in entities),
            pings_answered=sum(each.pings_answered for each in entities),
            is_closed=self._is_closed,
        )

    # within

    def _entity(self, path: str, *, now: float) -> RoutedEntity:
        key = path.lower()
        entity = self._entities.get(key)
        if entity is None:
            health = Health(
                self._failover_seconds, self._fail_back_pings, self._wait_seconds_max, since=now
            )
            entity = self._entities[key] = RoutedEntity(path=path, health=health)
            if self._unreachable is not None:
                self._fail_over_with_namespace(entity, self._unreachable, now=now)
        return entity

    def _queue_of(self, entity: RoutedEntity) -> str | None:
        """Picks the queue on first use, and again if it has left the rotation."""
        if entity.own.is_pinned:
            return entity.queue
        if entity.queue is None or not self._rotation.has(entity.queue):
            entity.queue = self._rotation.pick()
            entity.own.queue_changed()
        return entity.queue

    def _observe(self, entity: RoutedEntity, signal: Signal | None, *, now: float) -> None:
        """Update the health, by a signal or by time alone, and act on a change."""
        health = entity.health
        before, doublings = health.state, health.doublings
        after = health.advance(now=now) if signal is None else health.observe(signal, now=now)
        if doublings and not health.doublings:
            self._note(events.Calmed(namespace=self._namespace, path=entity.path))
        if after is before:
            if health.doublings != doublings:
                self._agenda.update(entity)
            return
        if before.is_on_primary:
            if after is HealthState.HEALTHY:
                self._note(events.Recovered(namespace=self._namespace, path=entity.path))
            elif after is not HealthState.SUSPECT:
                self._failed_over(entity, now=now)
        elif after is HealthState.HEALTHY:
            self._failed_back(entity, before, signal, now=now)
        elif after is HealthState.RETURNING and before is HealthState.HOLDING:
            entity.own.hold_ended(now=now)
        elif after is HealthState.RETURNING:
            self._returning(entity, now=now)
        self._agenda.update(entity)

    def _returning(self, entity: RoutedEntity, *, now: float) -> None:
        entity.own.wait_begins(now=now)
        self._unreachable = None  # it answers
        self._note(
            events.Returning(
                namespace=self._namespace,
                path=entity.path,
                backlog_queue=entity.queue,
                after_seconds=_span(entity.health.failed_over_at, now),
            )
        )

    def _backlog_changed(self, entity: RoutedEntity, *, now: float) -> None:
        entity.health.awaits_backlog = entity.own.is_awaited
        if not entity.own.is_awaited:
            self._observe(entity, None, now=now)

    def _is_awaiting(self, entity: RoutedEntity, peek: PeekBacklog) -> bool:
        """Whether the outcome of a peek still matters."""
        health = entity.health
        is_current = peek.epoch == health.epoch and peek.queue == entity.queue
        return is_current and health.state.is_returning and not self._is_closed

    def _warn_if_stalled(
        self, entity: RoutedEntity, error: BaseException | None, *, now: float
    ) -> None:
        if entity.health.state.is_returning and entity.own.is_stalled(now=now):
            self._note(
                events.FailBackDelayed(
                    namespace=self._namespace,
                    path=entity.path,
                    backlog_queue=entity.queue,
                    seconds=_span(entity.own.moved_at, now),
                    error=error,
                )
            )

    def _failed_over(self, entity: RoutedEntity, *, now: float) -> None:
        health = entity.health
        entity.slot = 1
        entity.pings_from = health.since - (1.0 - self._phase()) * self._ping_seconds
        entity.next_ping = entity.pings_from + self._ping_seconds
        self._agenda.update(entity)
        self._note(
            events.FailedOver(
                namespace=self._namespace,
                path=entity.path,
                backlog_queue=self._queue_of(entity),
                error=entity.last_error,
                after_seconds=_span(health.first_failure, now),
            )
        )
        if health.is_flapping:
            self._note(
                events.Flapping(
                    namespace=self._namespace,
                    path=entity.path,
                    times=health.doublings,
                    pings_needed=health.pings_needed,
                    after_seconds=_span(health.failed_back_at, health.since),
                )
            )
        if self._fails_over_together and entity.is_unreachable and self._unreachable is None:
            self._fail_over_others(entity, now=now)

    def _fail_over_others(self, entity: RoutedEntity, *, now: float) -> None:
        first_failure, error = entity.health.first_failure, entity.last_error
        if first_failure is None or error is None:
            return
        if self._last_sent is not None and self._last_sent >= first_failure:
            return  # another entity was reached in the meantime
        self._unreachable = error
        for other in [*self._entities.values()]:
            if other.health.state.is_on_primary:
                self._fail_over_with_namespace(other, error, now=now)

    def _fail_over_with_namespace(
        self, entity: RoutedEntity, error: BaseException, *, now: float
    ) -> None:
        entity.last_error = error
        self._observe(entity, Signal.NAMESPACE_FAILED_OVER, now=now)

    def _failed_back(
        self, entity: RoutedEntity, before: HealthState, signal: Signal | None, *, now: float
    ) -> None:
        if signal is Signal.MARKED_HEALTHY:
            reason = "by hand"
        elif before is HealthState.FAILED_OVER:
            reason = "ping"
        else:
            reason = "wait over" if entity.own.is_awaited else "backlog home"
        # Order was given up for what is left there: the next failover does not wait for it.
        entity.own = OwnBacklog(attempts=entity.own.attempts, calls=entity.own.calls)
        entity.health.awaits_backlog = entity.own.is_awaited
        self._unreachable = None
        entity.next_ping = None
        entity.queue = (
            self._rotation.pick()
        )  # picked again for the next failover, to spread the load
        self._note(
            events.FailedBack(
                namespace=self._namespace,
                path=entity.path,
                reason=reason,
                after_seconds=_span(entity.health.failed_over_at, now),
            )
        )

    def _withdraw(
        self, way: ToBacklog, error: BaseException, *, now: float, busy_seconds: float | None = None
    ) -> None:
        if way.generation != self._rotation.generation(way.queue):
            return  # the queue left and came back after this send began
        before = self._rotation.in_rotation
        if not self._rotation.withdraw(way.queue, error, now=now, busy_seconds=busy_seconds):
            return
        self._note(
            events.BacklogWithdrawn(
                namespace=self._namespace,
                backlog_queue=way.queue,
                error=error,
                left=len(self._rotation.in_rotation),
            )
        )
        for queue in set(self._rotation.in_rotation) - set(before):
            self._note_readmitted(queue)

    def _note_readmitted(self, queue: str) -> None:
        self._note(
            events.BacklogReadmitted(
                namespace=self._namespace,
                backlog_queue=queue,
                left=len(self._rotation.in_rotation),
            )
        )

    def _ping_ended(self, ping: Ping, *, error: BaseException | None) -> RoutedEntity:
        entity = self._entities[ping.path.lower()]
        entity.pings_sent += 1
        entity.pings_answered += error is None
        if entity.ping_out == ping:
            entity.ping_out = None
            self._agenda.update(entity)
        self._note(
            events.PingSent(
                namespace=self._namespace,
                path=entity.path,
                answered=error is None,
                error=error,
            )
        )
        return entity

    def _note(self, event: events.Event) -> None:
        self._events.append(event)


def _span(since: float | None, now: float) -> float:
    """Never negative: threads read the clock before they wait for the lock, so a later time may be
    reported first."""
    return 0.0 if since is None else max(0.0, now - since)
