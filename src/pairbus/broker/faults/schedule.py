"""Which faults are planned, active and over, by the broker's clock; and their dice.

Pure: `now` (epoch seconds) is handed in, and what begins or ends at it comes out. Every fault has
dice of its own, so that what one of them decides does not depend on whom the others hit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from pairbus.broker.faults.kinds import Distribution, Fault
from pairbus.errors import ConfigError

ENTRIES_MAX: Final = 1000
_SEED_BITS: Final = 32
_START_SECONDS_MAX: Final = 30 * 86_400
_EXPONENTIAL_MAX: Final = 20
"""Times the mean, which one draw in 500 million exceeds."""


class Entry:
    """A fault with its place in time. Mutable: it counts whom it hits."""

    def __init__(self, number: int, fault: Fault, *, seed: int, starts_at: float) -> None:
        self.id = number
        self.fault = fault
        self.seed = seed
        self.starts_at = starts_at
        self.ends_at = None if fault.seconds is None else starts_at + fault.seconds
        self.state = "planned"
        """Then "active", then "over"."""
        self.hits = 0
        self.scope = None if fault.entity is None else fault.entity.strip("/").lower()
        self._subscriptions = f"{self.scope}/subscriptions/"
        self._dice = Random(seed)
        self.when_spent: Callable[[], object] = lambda: None
        """Called with its last hit."""

    @property
    def is_active(self) -> bool:
        return self.state == "active"

    def is_spent(self) -> bool:
        """It has hit as often as it was to."""
        times: int | None = getattr(self.fault, "times", None)
        return times is not None and self.hits >= times

    def covers(self, entity: str) -> bool:
        """The namespace's fault covers all of its entities, a topic's all of its subscriptions."""
        if self.scope is None:
            return True
        path = entity.lower()
        return path == self.scope or path.startswith(self._subscriptions)

    def strikes(self, probability: float) -> bool:
        """Throw the dice, and count a hit."""
        if self.is_spent() or self._dice.random() >= probability:
            return False
        self.hits += 1
        if self.is_spent():
            self.when_spent()
        return True

    def draw_seconds(self, mean: float, distribution: Distribution) -> float:
        self.hits += 1
        if distribution is Distribution.UNIFORM:
            return self._dice.uniform(0, 2 * mean)
        if distribution is Distribution.EXPONENTIAL and mean > 0:
            return min(self._dice.expovariate(1 / mean), _EXPONENTIAL_MAX * mean)
        return mean


class Timeline:
    def __init__(self, dice: Random) -> None:
        """`dice`: for the seeds of faults that bring none."""
        self._dice = dice
        self._entries: dict[int, Entry] = {}
        self._last_id = 0

    @property
    def entries(self) -> list[Entry]:
        """Planned and active, in the order in which they were asked for."""
        return list(self._entries.values())

    @property
    def active(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.is_active]

    def find(self, number: int) -> Entry | None:
        return self._entries.get(number)

    def plan(
        self, faults: Sequence[tuple[float, Fault]], *, seed: int | None, now: float
    ) -> list[Entry]:
        """Each starts so many seconds from now. All of them are taken, or none."""
        if len(self._entries) + len(faults) > ENTRIES_MAX:
            raise ConfigError(
                f"{len(self._entries)} faults are planned or active, and {len(faults)} more would "
                f"exceed {ENTRIES_MAX}: clear some first"
            )
        for at, fault in faults:
            if not 0 <= at <= _START_SECONDS_MAX:
                raise ConfigError(
                    f"{fault.kind} is to start at {at!r} s of the script, which must be a number "
                    f"from 0 to {_START_SECONDS_MAX}"
                )
        # Not one seed for all: then two faults that are alike would hit the same messages.
        dice = self._dice if seed is None else Random(seed)
        planned = []
        for at, fault in faults:
            own = dice.getrandbits(_SEED_BITS)
            self._last_id += 1
            entry = Entry(
                self._last_id,
                fault,
                seed=own if fault.seed is None else fault.seed,
                starts_at=now + at,
            )
            self._entries[entry.id] = entry
            planned.append(entry)
        return planned

    def pass_time(self, *, now: float) -> tuple[list[Entry], list[Entry]]:
        """What has started and what has ended since the last look."""
        started, ended = [], []
        for entry in self.entries:
            if entry.state == "planned" and entry.starts_at <= now:
                entry.state = "active"
                started.append(entry)
            if entry.is_active and (
                entry.is_spent() or (entry.ends_at is not None and entry.ends_at <= now)
            ):
                self.end(entry)
                ended.append(entry)
        return started, ended

    def end(self, entry: Entry) -> None:
        entry.state = "over"
        self._entries.pop(entry.id, None)

    @property
    def next_at(self) -> float | None:
        """When something starts or ends next."""
        times = [
            entry.ends_at if entry.is_active else entry.starts_at
            for entry in self._entries.values()
        ]
        return min((at for at in times if at is not None), default=None)
