"""When the messages of an entity that wait in the outbox are sent.

Each entity is drained by itself, so that one that fails does not delay the others. Pure: `now` is
monotonic seconds, and the caller says which entities have messages, and which of them a namespace
would accept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from pairbus.client.route.plans import Drain

DRAINS_AT_ONCE_MAX: Final = 4
# An entity whose messages could not be sent is left alone for this long. The longer one is for an
# entity that refuses them (it does not exist, or the client may not send to it): somebody has to
# change that first.
REST_SECONDS: Final = 5.0
REFUSED_REST_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Entity:
    due: float
    is_draining: bool = False
    refusal: BaseException | None = None


class DrainSchedule:
    def __init__(self) -> None:
        self._entities: dict[str, _Entity] = {}

    def take_due(
        self, waiting: Collection[str], *, now: float, can_send: Callable[[str], bool]
    ) -> list[Drain]:
        """Returns the entities to drain now. Report the end of each in every case: until then it is
        not due again.
        """
        known = self._entities
        for path in waiting:
            known.setdefault(path, _Entity(due=now))
        for path in [path for path, each in known.items() if path not in waiting]:
            if not known[path].is_draining:
                del known[path]
        free = DRAINS_AT_ONCE_MAX - sum(each.is_draining for each in known.values())
        idle = [(each.due, path) for path, each in known.items() if not each.is_draining]
        tasks: list[Drain] = []
        for due, path in sorted(idle, key=lambda each: each[0]):  # stable: then as they ended
            if len(tasks) == free or due > now:
                break
            if can_send(path):
                known[path].is_draining = True
                tasks.append(Drain(path))
        return tasks

    def next_due(self, *, now: float) -> float | None:
        """When an entity has rested. One that is due waits for a namespace or for another drain,
        and the end of that wakes the worker.
        """
        dues = (each.due for each in self._entities.values() if not each.is_draining)
        return min((due for due in dues if due > now), default=None)

    def ended(
        self, path: str, *, now: float, error: BaseException | None = None, is_refused: bool = False
    ) -> float:
        """Returns how long the entity rests, in seconds. `is_refused`: the entity accepts no
        message of this client, whatever its content.
        """
        rest = 0.0
        if error is not None:
            rest = REFUSED_REST_SECONDS if is_refused else REST_SECONDS
        self._entities.pop(path, None)  # to the end
        self._entities[path] = _Entity(due=now + rest, refusal=error if is_refused else None)
        return rest

    def refusal(self, path: str) -> BaseException | None:
        """Why the entity accepts no message of this client, as far as the last drain found."""
        entity = self._entities.get(path)
        return None if entity is None else entity.refusal
