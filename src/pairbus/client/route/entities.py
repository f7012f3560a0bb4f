"""All entities of one router: which backlog queue each of them uses, and what follows when the
health of one changes.

Pure, like the router, which is the only one that uses it, together with `fail_back.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pairbus import events
from pairbus.client.route.backlog import Rotation
from pairbus.client.route.entity import Agenda, RoutedEntity
from pairbus.client.route.health import Health, HealthState, Signal
from pairbus.client.route.own_backlog import OwnBacklog


class Entities:
    def __init__(
        self,
        namespace: str,
        rotation: Rotation,
        *,
        new_health: Callable[[float], Health],
        ping_seconds: float,
        phase: Callable[[], float],
        fails_over_together: bool,
    ) -> None:
        """`new_health`: the health of a new entity, given the time. The others as for `Router`."""
        self.namespace = namespace
        self.rotation = rotation
        self.agenda = Agenda()
        self.events: list[events.Event] = []
        """What happened, until the router hands it out."""
        self.last_sent: float | None = None
        """When the primary last accepted a message of any entity."""
        self.is_closed = False
        self._by_path: dict[str, RoutedEntity] = {}
        self._new_health = new_health
        self._ping_seconds = ping_seconds
        self._phase = phase
        self._fails_over_together = fails_over_together
        self._unreachable: BaseException | None = None
        """All entities failed over together because of this, and the primary has not answered
        any of them enough pings yet.
        """

    def __iter__(self) -> Iterator[RoutedEntity]:
        """In the order in which they were first used."""
        return iter(self._by_path.values())

    def __getitem__(self, path: str) -> RoutedEntity:
        """Raises KeyError if no sender has used the path."""
        return self._by_path[path.lower()]

    def of(self, path: str, *, now: float) -> RoutedEntity:
        """The entity of this path. It is new if no sender has used it."""
        key = path.lower()
        entity = self._by_path.get(key)
        if entity is None:
            entity = self._by_path[key] = RoutedEntity(path=path, health=self._new_health(now))
            if self._unreachable is not None:
                self._fail_over_with_namespace(entity, self._unreachable, now=now)
        return entity

    def queue_of(self, entity: RoutedEntity) -> str | None:
        """Picks the queue on first use, and again if it has left the rotation."""
        if entity.own.is_pinned:
            return entity.queue
        if entity.queue is None or not self.rotation.has(entity.queue):
            entity.queue = self.rotation.pick()
            entity.own.queue_changed()
        return entity.queue

    def observe(self, entity: RoutedEntity, signal: Signal | None, *, now: float) -> None:
        """Update the health, by a signal or by time alone, and act on a change."""
        health = entity.health
        before, doublings = health.state, health.doublings
        after = health.advance(now=now) if signal is None else health.observe(signal, now=now)
        if doublings and not health.doublings:
            self.note(events.Calmed(namespace=self.namespace, path=entity.path))
        if after is before:
            if health.doublings != doublings:
                self.agenda.update(entity)
            return
        if before.is_on_primary:
            if after is HealthState.HEALTHY:
                self.note(events.Recovered(namespace=self.namespace, path=entity.path))
            elif after is not HealthState.SUSPECT:
                self._failed_over(entity, now=now)
        elif after is HealthState.HEALTHY:
            self._failed_back(entity, before, signal, now=now)
        elif after is HealthState.RETURNING and before is HealthState.HOLDING:
            entity.own.hold_ended(now=now)
        elif after is HealthState.RETURNING:
            self._returning(entity, now=now)
        self.agenda.update(entity)

    def note(self, event: events.Event) -> None:
        self.events.append(event)

    # failing over

    def _failed_over(self, entity: RoutedEntity, *, now: float) -> None:
        health = entity.health
        entity.slot = 1
        entity.pings_from = health.since - (1.0 - self._phase()) * self._ping_seconds
        entity.next_ping = entity.pings_from + self._ping_seconds
        self.agenda.update(entity)
        self.note(
            events.FailedOver(
                namespace=self.namespace,
                path=entity.path,
                backlog_queue=self.queue_of(entity),
                error=entity.last_error,
                after_seconds=span(health.first_failure, now),
            )
        )
        if health.is_flapping:
            self.note(
                events.Flapping(
                    namespace=self.namespace,
                    path=entity.path,
                    times=health.doublings,
                    pings_needed=health.pings_needed,
                    after_seconds=span(health.failed_back_at, health.since),
                )
            )
        if self._fails_over_together and entity.is_unreachable and self._unreachable is None:
            self._fail_over_others(entity, now=now)

    def _fail_over_others(self, entity: RoutedEntity, *, now: float) -> None:
        first_failure, error = entity.health.first_failure, entity.last_error
        if first_failure is None or error is None:
            return
        if self.last_sent is not None and self.last_sent >= first_failure:
            return  # another entity was reached in the meantime
        self._unreachable = error
        for other in [*self]:
            if other.health.state.is_on_primary:
                self._fail_over_with_namespace(other, error, now=now)

    def _fail_over_with_namespace(
        self, entity: RoutedEntity, error: BaseException, *, now: float
    ) -> None:
        entity.last_error = error
        self.observe(entity, Signal.NAMESPACE_FAILED_OVER, now=now)

    # failing back

    def _returning(self, entity: RoutedEntity, *, now: float) -> None:
        entity.own.wait_begins(now=now)
        self._unreachable = None  # it answers
        self.note(
            events.Returning(
                namespace=self.namespace,
                path=entity.path,
                backlog_queue=entity.queue,
                after_seconds=span(entity.health.failed_over_at, now),
            )
        )

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
        entity.queue = self.rotation.pick()  # again, for the next failover: it spreads the load
        self.note(
            events.FailedBack(
                namespace=self.namespace,
                path=entity.path,
                reason=reason,
                after_seconds=span(entity.health.failed_over_at, now),
            )
        )


def span(since: float | None, now: float) -> float:
    """Never negative: threads read the clock before they wait for the lock, so a later time may be
    reported first."""
    return 0.0 if since is None else max(0.0, now - since)
