"""All entities of one paired client: where each message goes, and what the background has to do.

A shell asks `plan`, acts, and tells how it went; after `failed` said True it asks again. It also
does what `due` names, at `next_due` at the latest, and tells how that went. State is one client's
and one entity's. Paths are compared without regard to case, as the service does.

Pure: `now` is monotonic seconds, `choose` are the shell's dice. No locks: the blocking shell holds
one around every call. Which error counts is decided before it comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus import events
from pairbus.client.route.agenda import Agenda
from pairbus.client.route.backlog import REST_SECONDS, Rotation
from pairbus.client.route.entity import Entity
from pairbus.client.route.health import Health, Signal, State
from pairbus.client.route.plans import Chore, Nowhere, Ping, Plan, Probe, ToBacklog, ToPrimary, Way
from pairbus.client.route.status import RotationStatus, RouterStatus, WithdrawnQueue

__all__ = ["Router", "Plan", "Way", "ToPrimary", "ToBacklog", "Nowhere", "Chore", "Ping", "Probe"]


class Router:
    def __init__(
        self,
        namespace: str,
        queues: Sequence[str],
        *,
        failover_seconds: float,
        ping_seconds: float,
        choose: Callable[[Sequence[str]], str],
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        """`namespace`: the primary's name, as the events tell it."""
        self._namespace = namespace
        self._failover_seconds = failover_seconds
        self._ping_seconds = ping_seconds
        self._rotation = Rotation(queues, choose=choose, rest_seconds=rest_seconds)
        self._entities: dict[str, Entity] = {}
        # Every spelling that was ever used, so that a send costs one look-up and no `lower`.
        self._by_spelling: dict[str, Entity] = {}
        self._agenda = Agenda()
        self._events: list[events.Event] = []
        self._is_closed = False

    # sending

    def register(self, path: str, *, now: float) -> str | None:
        """Make an entity known. Answers the backlog queue that it would use if it failed over now.

        Each entity of each client picks at random, so that clients which know nothing of each
        other share the queues. None when no queue is left.
        """
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        return self._queue_of(entity)

    def plan(self, path: str, *, now: float) -> Plan:
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        # Every send comes here: no allocation and no look at the time while all is well.
        if entity.direct is not None:
            return entity.direct
        self._advance(entity, now=now)
        if entity.health.state is State.SUSPECT:
            return entity.to_primary
        return self.plan_backlog(path, now=now)

    def direct(self, path: str) -> ToPrimary | None:
        """The plan of an entity that is healthy and known; None: ask `plan`. One look, which needs
        no lock: an answer that is outdated by the next moment would have been with one as well."""
        entity = self._by_spelling.get(path)
        return None if entity is None else entity.direct

    def detour(self, path: str) -> ToBacklog | None:
        """The same for an entity that is failed over, once `plan` has said where to."""
        entity = self._by_spelling.get(path)
        if entity is None or entity.health.state is not State.FAILED_OVER:
            return None
        plan = entity.to_backlog
        if plan is None or plan.queue != entity.queue:
            return None
        return plan if self._rotation.holds(plan.queue, plan.turn) else None

    def plan_backlog(self, path: str, *, now: float) -> ToBacklog | Nowhere:
        """For the rest of a call of which a part is in the backlog, whatever the entity's state."""
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        queue = self._queue_of(entity)
        if queue is None:
            return self.causes(path, now=now)
        plan = entity.to_backlog
        if plan is None or plan.queue != queue or plan.turn != self._rotation.turn(queue):
            plan = entity.to_backlog = ToBacklog(queue, self._rotation.turn(queue))
        return plan

    def sent(
        self,
        path: str,
        plan: Way,
        *,
        count: int,
        now: float,
        seconds: float = 0.0,
        is_told: bool = True,
    ) -> None:
        """It is acknowledged. `seconds`: how long that took. `is_told`: if it was diverted, there
        is somebody who wants to know of each one."""
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        if plan is entity.direct:
            entity.sent += count
        elif isinstance(plan, ToBacklog):
            entity.diverted += count
            if is_told:
                self._tell(
                    events.Diverted(
                        namespace=self._namespace,
                        path=entity.path,
                        backlog_queue=plan.queue,
                        count=count,
                        seconds=seconds,
                    )
                )
        else:
            entity.sent += count
            # Whenever it began: what arrives now is a success now, and clears a running timer.
            # It ends no failover; that takes a ping.
            self._observe(entity, Signal.SENT, now=now)

    def failed(self, path: str, plan: Way, error: BaseException, *, now: float) -> bool:
        """It failed in a way that counts. True: plan again; False: the caller gets the error."""
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        if isinstance(plan, ToBacklog):
            self._backlog_failed(plan, error, now=now)
            return True
        entity.failures += 1
        if plan.epoch != entity.health.epoch:
            # It began before the way back to the primary, and tells of the outage before that.
            return True
        entity.last_error = error
        self._observe(entity, Signal.FAILED, now=now)
        if entity.health.state is State.FAILED_OVER:
            return True
        self._tell_of_failure(entity, error, now=now)
        return False

    def throttled(self, path: str, plan: Way, *, wait_seconds: float, now: float) -> None:
        """The service asked for patience. That is neither a success nor a failure."""
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        entity.throttled += 1
        self._tell(
            events.Throttled(
                namespace=self._namespace,
                path=entity.path,
                wait_seconds=wait_seconds,
                backlog_queue=plan.queue if isinstance(plan, ToBacklog) else None,
            )
        )

    def undeliverable(self, path: str, nowhere: Nowhere, *, now: float) -> None:
        """The caller gets an error with both causes, and keeps the message."""
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        entity.refused += 1
        self._tell(
            events.SendFailed(
                namespace=self._namespace,
                path=entity.path,
                primary_error=nowhere.primary_error,
                backlog_error=nowhere.backlog_error,
            )
        )

    def causes(self, path: str, *, now: float) -> Nowhere:
        """Why a message could go neither way, as far as it is known."""
        entity = self._by_spelling.get(path) or self._make(path, now=now)
        return Nowhere(entity.last_error, self._rotation.last_error)

    def mark_healthy(self, path: str, *, now: float) -> bool:
        """By hand. False if it was healthy already; KeyError if no sender ever used the path."""
        entity = self._entities.get(path.lower())
        if entity is None:
            raise KeyError(f"no sender of this client has used {path!r}")
        self._advance(entity, now=now)
        if entity.direct is not None:
            return False
        self._observe(entity, Signal.MARKED_HEALTHY, now=now)
        return True

    # the background

    def due(self, *, now: float) -> list[Chore]:
        """What is to be done now. Tell how each went, whatever happens: until then it is out.

        A suspect may fail over here: time alone does it, without another send.
        """
        if self._is_closed:
            return []
        chores: list[Chore] = []
        for key in self._agenda.take(now=now):
            entity = self._entities[key]
            self._advance(entity, now=now)
            if (at := entity.wake_at) is not None and at <= now:  # so it is failed over
                entity.ping_out = Ping(entity.path, entity.health.epoch)
                entity.schedule_ping(ping_seconds=self._ping_seconds, now=now)
                chores.append(entity.ping_out)
            self._agenda.set(key, entity.wake_at)
        chores.extend(map(Probe, self._rotation.due(now=now)))
        return chores

    def next_due(self, *, now: float) -> float | None:
        """The earliest moment at which `due` has something to do; it may have passed."""
        if self._is_closed:
            return None
        moments = (self._agenda.next, self._rotation.next_due)
        return min((at for at in moments if at is not None), default=None)

    def is_wanted(self, ping: Ping) -> bool:
        """To be asked before a ping that had to queue is sent. If not, nothing is to be told."""
        entity = self._entities[ping.path.lower()]
        if not self._is_closed and ping.epoch == entity.health.epoch:
            return True
        if entity.ping_out == ping:
            entity.ping_out = None
            self._agenda.set(entity.key, entity.wake_at)
        return False

    def ping_answered(self, ping: Ping, *, now: float) -> bool:
        """True: that brought the entity back. False: it was back, or the client is closed."""
        entity = self._ping_ended(ping, error=None)
        if self._is_closed or ping.epoch != entity.health.epoch:
            return False
        self._observe(entity, Signal.PING_ANSWERED, now=now)
        return True

    def ping_failed(self, ping: Ping, error: BaseException, *, now: float) -> None:
        entity = self._ping_ended(ping, error=error)
        if ping.epoch == entity.health.epoch:
            entity.last_error = error

    def probe_answered(self, queue: str, *, now: float) -> None:
        if self._rotation.readmit(queue):
            self._tell(
                events.BacklogReadmitted(
                    namespace=self._namespace,
                    backlog_queue=queue,
                    left=len(self._rotation.in_rotation),
                )
            )

    def probe_failed(self, queue: str, error: BaseException, *, now: float) -> None:
        self._rotation.probe_failed(queue, error, now=now)

    def wanted_queues(self) -> tuple[str, ...]:
        """Those that some entity uses, or would use if it failed over now."""
        wanted = {self._queue_of(entity) for entity in self._entities.values()}
        return tuple(queue for queue in self._rotation.in_rotation if queue in wanted)

    @property
    def queues_left(self) -> int:
        """How many backlog queues are in the rotation."""
        return len(self._rotation.in_rotation)

    def close(self, *, now: float) -> None:
        """No more chores. What is still out may be told, and changes nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._tell(events.Closed(namespace=self._namespace))

    # watching

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[events.Event]:
        """What happened since the last call, in order."""
        taken, self._events = self._events, []
        return taken

    def status(self) -> RouterStatus:
        entities = self._entities.values()
        return RouterStatus(
            namespace=self._namespace,
            entities=tuple(e.status(backlog_queue=self._queue_of(e)) for e in entities),
            rotation=RotationStatus(
                in_rotation=self._rotation.in_rotation,
                withdrawn=tuple(
                    WithdrawnQueue(queue=queue, error=w.error, since=w.at, retry_at=w.retry_at)
                    for queue, w in self._rotation.withdrawn.items()
                ),
            ),
            pings_sent=sum(e.pings_sent for e in entities),
            pings_answered=sum(e.pings_answered for e in entities),
            pings_out=sum(e.ping_out is not None for e in entities),
            is_closed=self._is_closed,
        )

    # within

    def _make(self, path: str, *, now: float) -> Entity:
        key = path.lower()
        entity = self._entities.get(key)
        if entity is None:
            plan = ToPrimary(0)
            health = Health(self._failover_seconds, since=now)
            entity = Entity(key=key, path=path, health=health, to_primary=plan, direct=plan)
            self._entities[key] = entity
        self._by_spelling[path] = entity
        return entity

    def _queue_of(self, entity: Entity) -> str | None:
        """Picked when it is first asked for, and again if it has left the rotation."""
        if entity.queue is None or not self._rotation.has(entity.queue):
            entity.queue = self._rotation.pick()
        return entity.queue

    def _advance(self, entity: Entity, *, now: float) -> None:
        before = entity.health.state
        if entity.health.advance(now=now) is not before:
            self._failed_over(entity, now=now)

    def _observe(self, entity: Entity, signal: Signal, *, now: float) -> None:
        """Tell the health, and draw the conclusions."""
        before, since = entity.health.state, entity.health.since
        after = entity.health.observe(signal, now=now)
        if after is before:
            return
        if after is State.FAILED_OVER:
            self._failed_over(entity, now=now)
        elif after is State.SUSPECT:
            entity.direct = None
        elif before is State.SUSPECT:
            entity.direct = entity.to_primary
            self._tell(events.Recovered(namespace=self._namespace, path=entity.path))
        else:
            self._failed_back(entity, signal, after_seconds=_span(since, now))
        self._agenda.set(entity.key, entity.wake_at)

    def _failed_over(self, entity: Entity, *, now: float) -> None:
        health = entity.health
        entity.direct = None
        entity.slot = 1
        entity.next_ping = health.since + self._ping_seconds
        self._agenda.set(entity.key, entity.wake_at)
        self._tell(
            events.FailedOver(
                namespace=self._namespace,
                path=entity.path,
                backlog_queue=self._queue_of(entity),
                error=entity.last_error,
                after_seconds=_span(health.first_failure, now),
            )
        )

    def _failed_back(self, entity: Entity, signal: Signal, *, after_seconds: float) -> None:
        entity.to_primary = entity.direct = ToPrimary(entity.health.epoch)
        entity.next_ping = None
        entity.queue = self._rotation.pick()  # for the next time: the load is shared anew
        self._tell(
            events.FailedBack(
                namespace=self._namespace,
                path=entity.path,
                reason="ping" if signal is Signal.PING_ANSWERED else "by hand",
                after_seconds=after_seconds,
            )
        )

    def _backlog_failed(self, plan: ToBacklog, error: BaseException, *, now: float) -> None:
        if plan.turn != self._rotation.turn(plan.queue):
            return  # the queue was out and is back since this began
        if self._rotation.withdraw(plan.queue, error, now=now):
            self._tell(
                events.BacklogWithdrawn(
                    namespace=self._namespace,
                    backlog_queue=plan.queue,
                    error=error,
                    left=len(self._rotation.in_rotation),
                )
            )

    def _ping_ended(self, ping: Ping, *, error: BaseException | None) -> Entity:
        entity = self._entities[ping.path.lower()]
        entity.pings_sent += 1
        entity.pings_answered += error is None
        if entity.ping_out == ping:
            entity.ping_out = None
            self._agenda.set(entity.key, entity.wake_at)
        self._tell(
            events.PingSent(
                namespace=self._namespace,
                path=entity.path,
                answered=error is None,
                error=error,
            )
        )
        return entity

    def _tell_of_failure(self, entity: Entity, error: BaseException, *, now: float) -> None:
        since_seconds = _span(entity.health.first_failure, now)
        self._tell(
            events.PrimaryFailed(
                namespace=self._namespace,
                path=entity.path,
                error=error,
                since_seconds=since_seconds,
                failover_in_seconds=self._failover_seconds - since_seconds,
            )
        )

    def _tell(self, event: events.Event) -> None:
        self._events.append(event)


def _span(since: float | None, now: float) -> float:
    """Threads take the time before they wait for the lock: a later one may be handed in first."""
    return 0.0 if since is None else max(0.0, now - since)
