"""Which faults are planned, active and over, by the broker's clock, and their random numbers.

Pure: `now` (epoch seconds) is an argument, and the faults that start or end at it are the result.
Every fault has its own random numbers, so that its decisions do not depend on other faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Self

from pairbus.broker.faults.kinds import Distribution, Fault
from pairbus.errors import ConfigError

FAULTS_MAX: Final = 1000
_SEED_BITS: Final = 32
_START_SECONDS_MAX: Final = 30 * 86_400
_EXPONENTIAL_MAX: Final = 20
"""Multiples of the mean. One draw in 500 million exceeds it."""


class RunningFault:
    """A requested fault: planned, active or over. As a context manager, the fault ends with the
    block.

    Mutable: it counts its hits. Safe to read, and to clear, from any thread.
    """

    def __init__(
        self,
        number: int,
        fault: Fault,
        *,
        seed: int,
        starts_at: float,
        when_spent: Callable[[], object],
        clear: Callable[[RunningFault], object],
    ) -> None:
        """`when_spent` is called with its last hit, `clear` to end it from any thread."""
        self.id = number
        self.fault = fault
        self.seed = seed
        self.starts_at = starts_at
        """Epoch seconds of the broker's clock."""
        self.ends_at = None if fault.seconds is None else starts_at + fault.seconds
        """Epoch seconds of the broker's clock. None: when it is cleared."""
        self.state = "planned"
        """Then "active", then "over"."""
        self.hits = 0
        """How often it has hit so far. (For a latency: how often one was drawn.)"""
        self.scope = None if fault.entity is None else fault.entity.strip("/").lower()
        self._subscriptions = f"{self.scope}/subscriptions/"
        self._dice = Random(seed)
        self._when_spent = when_spent
        self._clear = clear

    @property
    def is_active(self) -> bool:
        return self.state == "active"

    def clear(self) -> None:
        """End it now. Does nothing if the fault or the broker has ended."""
        if self.state != "over":
            self._clear(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<{self.state} fault {self.id}: {self.fault}>"

    # decisions

    def is_spent(self) -> bool:
        """Whether it has reached its maximum number of hits."""
        times: int | None = getattr(self.fault, "times", None)
        return times is not None and self.hits >= times

    def covers(self, entity: str) -> bool:
        """A namespace's fault covers all its entities, a topic's fault all its subscriptions."""
        if self.scope is None:
            return True
        path = entity.lower()
        return path == self.scope or path.startswith(self._subscriptions)

    def strikes(self, probability: float) -> bool:
        """Decide by a random number, and count a hit."""
        if self.is_spent() or self._dice.random() >= probability:
            return False
        self.hits += 1
        if self.is_spent():
            self._when_spent()
        return True

    def draw_seconds(self, mean: float, distribution: Distribution) -> float:
        self.hits += 1
        if distribution is Distribution.UNIFORM:
            return self._dice.uniform(0, 2 * mean)
        if distribution is Distribution.EXPONENTIAL and mean > 0:
            return min(self._dice.expovariate(1 / mean), _EXPONENTIAL_MAX * mean)
        return mean


def _ignore(*_: object) -> None:
    """Without a controller, there is nothing to call."""


class FaultSchedule:
    def __init__(
        self,
        dice: Random,
        *,
        when_spent: Callable[[], object] = _ignore,
        clear: Callable[[RunningFault], object] = _ignore,
    ) -> None:
        """`dice` makes the seeds of faults without one."""
        self._dice = dice
        self._when_spent = when_spent
        self._clear = clear
        self._faults: dict[int, RunningFault] = {}
        self._last_id = 0

    @property
    def faults(self) -> list[RunningFault]:
        """Planned and active, in the order in which they were asked for."""
        return list(self._faults.values())

    @property
    def active(self) -> list[RunningFault]:
        return [fault for fault in self._faults.values() if fault.is_active]

    def find(self, number: int) -> RunningFault | None:
        return self._faults.get(number)

    def plan(
        self, faults: Sequence[tuple[float, Fault]], *, seed: int | None, now: float
    ) -> list[RunningFault]:
        """Each fault with its start in seconds from now. All of them are planned, or none."""
        if len(self._faults) + len(faults) > FAULTS_MAX:
            raise ConfigError(
                f"{len(self._faults)} faults are planned or active, and {len(faults)} more would "
                f"exceed the limit of {FAULTS_MAX}: clear some first"
            )
        for at, fault in faults:
            if not 0 <= at <= _START_SECONDS_MAX:
                raise ConfigError(
                    f"{fault.kind} starts at {at!r} s of the script, which must be a number "
                    f"from 0 to {_START_SECONDS_MAX}"
                )
        # Each fault gets its own seed: with a shared one, two equal faults would hit the same
        # messages.
        dice = self._dice if seed is None else Random(seed)
        planned = []
        for at, fault in faults:
            own_seed = dice.getrandbits(_SEED_BITS)
            self._last_id += 1
            running = RunningFault(
                self._last_id,
                fault,
                seed=own_seed if fault.seed is None else fault.seed,
                starts_at=now + at,
                when_spent=self._when_spent,
                clear=self._clear,
            )
            self._faults[running.id] = running
            planned.append(running)
        return planned

    def pass_time(self, *, now: float) -> tuple[list[RunningFault], list[RunningFault]]:
        """Returns the faults that have started and those that have ended since the last call."""
        started, ended = [], []
        for fault in self.faults:
            if fault.state == "planned" and fault.starts_at <= now:
                fault.state = "active"
                started.append(fault)
            if fault.is_active and (
                fault.is_spent() or (fault.ends_at is not None and fault.ends_at <= now)
            ):
                self.end(fault)
                ended.append(fault)
        return started, ended

    def end(self, fault: RunningFault) -> None:
        fault.state = "over"
        self._faults.pop(fault.id, None)

    @property
    def next_at(self) -> float | None:
        """When the next fault starts or ends."""
        times = [
            fault.ends_at if fault.is_active else fault.starts_at for fault in self._faults.values()
        ]
        return min((at for at in times if at is not None), default=None)
