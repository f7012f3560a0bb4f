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
from pairbus.client.route.entities import Entities, span
from pairbus.client.route.entity import RoutedEntity
from pairbus.client.route.fail_back import OrderedFailBack
from pairbus.client.route.health import Health, HealthState, Signal
from pairbus.client.route.own_backlog import HOLD_POLL_SECONDS
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
from pairbus.client.route.status import PairingStatus
from pairbus.errors import without_frames


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
        self._is_ordered = is_ordered
        self._rotation = Rotation(queues, choose=choose, rest_seconds=rest_seconds)
        self._entities = Entities(
            namespace,
            self._rotation,
            new_health=lambda now: Health(
                failover_seconds, fail_back_pings, wait_seconds_max, since=now
            ),
            ping_seconds=ping_seconds,
            phase=phase,
            fails_over_together=fails_over_together,
        )
        self.ordered = OrderedFailBack(self._entities)
        """What a shell reports only if `is_ordered`."""

    # sending

    def register(self, path: str, *, now: float) -> str | None:
        """Make an entity known. Returns the backlog queue that it would use if it failed over now;
        None if no queue is left.

        Each entity of each client picks one at random, so that clients that know nothing of each
        other share the queues.
        """
        return self._entities.queue_of(self._entities.of(path, now=now))

    def plan(self, path: str, *, now: float, can_hold: bool = True) -> Plan:
        """With `can_hold=False`, the caller has no time to wait."""
        entity = self._entities.of(path, now=now)
        health = entity.health
        # Asked for every message, so what is usual comes first: time changes nothing then.
        if health.state is HealthState.HEALTHY and not health.doublings:
            return ToPrimary(health.epoch)
        self._entities.observe(entity, None, now=now)
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
        entity = self._entities.of(path, now=now)
        queue = self._entities.queue_of(entity)
        if queue is None:
            return self.causes(path, now=now)
        if entity.own.is_pinned and self._rotation.is_failing(queue):
            # In another queue, its messages could overtake those that are in this one.
            return Hold(HOLD_POLL_SECONDS) if can_hold else self.causes(path, now=now)
        return ToBacklog(queue, self._rotation.generation(queue))

    def sent(self, path: str, way: Way, *, count: int, now: float, seconds: float = 0.0) -> None:
        """The messages are acknowledged. `seconds`: how long that took."""
        entity = self._entities.of(path, now=now)
        if isinstance(way, ToBacklog):
            entity.diverted += count
            # If order was given up in the meantime, the entity has picked a queue again.
            is_awaited = self._is_ordered and not entity.health.state.is_on_primary
            if is_awaited and way.queue == entity.queue:
                entity.own.has_messages = True
            self._entities.note(
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
            self._entities.last_sent = now
            # The start of the send does not matter: it succeeds now, and clears a running failover
            # interval. It does not end a failover; only a ping does.
            if entity.health.state is not HealthState.HEALTHY:  # rarely: save every send the time
                self._entities.observe(entity, Signal.SENT, now=now)

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
        entity = self._entities.of(path, now=now)
        if isinstance(way, ToBacklog):
            self._withdraw(way, error, now=now)
            return True
        entity.failures += 1
        health = entity.health
        if way.epoch == health.epoch:
            entity.last_error, entity.is_unreachable = without_frames(error), is_unreachable
            self._entities.observe(entity, Signal.FAILED, now=now)
        if way.epoch != health.epoch or not health.state.is_on_primary:
            # An earlier epoch: the send began before the entity failed back, so its failure belongs
            # to the outage before that.
            return True
        since_seconds = span(health.first_failure, now)
        self._entities.note(
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
        entity = self._entities.of(path, now=now)
        entity.throttled += 1
        self._entities.note(
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
        entity = self._entities.of(path, now=now)
        entity.refused += 1
        self._entities.note(
            events.SendFailed(
                namespace=self._namespace,
                path=entity.path,
                primary_error=causes.primary_error,
                backlog_error=causes.backlog_error,
            )
        )

    def causes(self, path: str, *, now: float) -> Nowhere:
        """The known reasons why neither namespace accepts a message."""
        entity = self._entities.of(path, now=now)
        return Nowhere(entity.last_error, self._rotation.last_error)

    def mark_healthy(self, path: str, *, now: float) -> bool:
        """Fail back by hand. Returns False if the entity is already healthy. Raises KeyError if no
        sender has used the path.
        """
        try:
            entity = self._entities[path]
        except KeyError:
            raise KeyError(f"no sender of this client has used {path!r}") from None
        self._entities.observe(entity, None, now=now)
        if entity.health.state is HealthState.HEALTHY:
            return False
        self._entities.observe(entity, Signal.MARKED_HEALTHY, now=now)
        return True

    # the background

    def take_due_tasks(self, *, now: float) -> list[BackgroundTask]:
        """Returns the tasks that are due now. Report the outcome of each in every case: until then
        it is not due again.

        A suspect entity may fail over here, because its interval has ended. That needs no further
        send.
        """
        if self._entities.is_closed:
            return []
        tasks: list[BackgroundTask] = []
        for entity in self._entities.agenda.take(now=now):
            self._entities.observe(entity, None, now=now)
            ping = entity.take_ping(ping_seconds=self._ping_seconds, now=now)
            peek = entity.take_peek(now=now)
            tasks.extend(task for task in (ping, peek) if task is not None)
            self._entities.agenda.update(entity)
        tasks.extend(map(Probe, self._rotation.take_due(now=now)))
        return tasks

    @property
    def next_due(self) -> float | None:
        """The earliest moment at which `take_due_tasks` returns something; it may have passed."""
        if self._entities.is_closed:
            return None
        moments = (self._entities.agenda.next, self._rotation.next_due)
        return min((at for at in moments if at is not None), default=None)

    def is_wanted(self, ping: Ping) -> bool:
        """Check this before sending a ping that had to wait. If it returns False, report no
        outcome.
        """
        entity = self._entities[ping.path]
        if not self._entities.is_closed and ping.epoch == entity.health.epoch:
            return True
        if entity.ping_out == ping:
            entity.ping_out = None
            self._entities.agenda.update(entity)
        return False

    def would_fail_back(self, ping: Ping) -> bool:
        """Whether the entity fails back if this ping is answered."""
        health = self._entities[ping.path].health
        if ping.epoch != health.epoch or health.awaits_backlog:
            return False
        return health.answers + 1 >= health.pings_needed

    def ping_answered(self, ping: Ping, *, now: float) -> bool:
        """Returns whether the entity failed back. False if it already had, if it needs more
        answers, or if the client is closed.
        """
        entity = self._ping_ended(ping, error=None)
        if self._entities.is_closed or ping.epoch != entity.health.epoch:
            return False
        self._entities.observe(entity, Signal.PING_ANSWERED, now=now)
        return entity.health.state is HealthState.HEALTHY

    def ping_failed(self, ping: Ping, error: BaseException, *, now: float) -> None:
        entity = self._ping_ended(ping, error=error)
        if ping.epoch == entity.health.epoch:
            entity.last_error = without_frames(error)
            self._entities.observe(entity, Signal.PING_FAILED, now=now)

    def probe_answered(self, queue: str) -> None:
        if self._rotation.readmit(queue):
            self._note_readmitted(queue)

    def probe_failed(self, queue: str, error: BaseException, *, now: float) -> None:
        self._rotation.probe_failed(queue, without_frames(error), now=now)

    def wanted_queues(self) -> tuple[str, ...]:
        """The backlog queues that some entity uses, or would use if it failed over now."""
        wanted = {self._entities.queue_of(entity) for entity in self._entities}
        return tuple(queue for queue in self._rotation.in_rotation if queue in wanted)

    @property
    def queues_left(self) -> int:
        """The number of backlog queues in the rotation."""
        return len(self._rotation.in_rotation)

    def close(self) -> None:
        """Stop handing out tasks. Late outcomes may still be reported; they change nothing."""
        if not self._entities.is_closed:
            self._entities.is_closed = True
            self._entities.note(events.Closed(namespace=self._namespace))

    # watching

    @property
    def has_events(self) -> bool:
        return bool(self._entities.events)

    def take_events(self) -> list[events.Event]:
        """What happened since the last call, in order."""
        taken, self._entities.events = self._entities.events, []
        return taken

    def sends(self) -> dict[str, int]:
        """The number of messages that the primary has accepted, by entity.

        The only method that needs no lock: metrics ask for it under a lock of theirs, which the end
        of a client takes, too.
        """
        return {entity.path: entity.sent for entity in [*self._entities]}

    def status(self, *, secondary: str, date: Callable[[float], datetime]) -> PairingStatus:
        """`date` turns a moment of `now` into a date."""
        entities = [*self._entities]
        return PairingStatus(
            namespace=self._namespace,
            secondary=secondary,
            entities=tuple(
                each.status(backlog_queue=self._entities.queue_of(each), date=date)
                for each in entities
            ),
            backlog_queues=self._rotation.in_rotation,
            withdrawn=self._rotation.status(date=date),
            pings_sent=sum(each.pings_sent for each in entities),
            pings_answered=sum(each.pings_answered for each in entities),
            is_closed=self._entities.is_closed,
        )

    # within

    def _withdraw(
        self, way: ToBacklog, error: BaseException, *, now: float, busy_seconds: float | None = None
    ) -> None:
        if way.generation != self._rotation.generation(way.queue):
            return  # the queue left and came back after this send began
        before = self._rotation.in_rotation
        kept = without_frames(error)
        if not self._rotation.withdraw(way.queue, kept, now=now, busy_seconds=busy_seconds):
            return
        self._entities.note(
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
        self._entities.note(
            events.BacklogReadmitted(
                namespace=self._namespace,
                backlog_queue=queue,
                left=len(self._rotation.in_rotation),
            )
        )

    def _ping_ended(self, ping: Ping, *, error: BaseException | None) -> RoutedEntity:
        entity = self._entities[ping.path]
        entity.pings_sent += 1
        entity.pings_answered += error is None
        if entity.ping_out == ping:
            entity.ping_out = None
            self._entities.agenda.update(entity)
        self._entities.note(
            events.PingSent(
                namespace=self._namespace,
                path=entity.path,
                answered=error is None,
                error=error,
            )
        )
        return entity
