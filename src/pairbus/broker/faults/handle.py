"""`broker.faults`: starts, lists and clears the faults of a namespace, from any thread.

Every call runs on the namespace's loop and returns when it is in effect. It does not go through the
port, so that you can clear a fault that makes the namespace unreachable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Self

from pairbus.broker.faults import kinds
from pairbus.broker.faults.controller import FaultController
from pairbus.broker.faults.kinds import Fault
from pairbus.broker.faults.schedule import RunningFault

P = ParamSpec("P")


class FaultScript:
    """Faults that start at their times. As a context manager, all of them end with the block."""

    def __init__(self, controller: FaultController, faults: Sequence[RunningFault]) -> None:
        self._controller = controller
        self.faults = tuple(faults)

    def clear(self) -> None:
        self._controller.clear_from_any_thread(*self.faults)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def _starter(
    kind: Callable[P, Fault],
) -> Callable[Concatenate[Faults, P], RunningFault]:
    def start(self: Faults, /, *args: P.args, **kwargs: P.kwargs) -> RunningFault:
        return self.start(kind(*args, **kwargs))

    start.__doc__ = kind.__doc__
    return start


class Faults:
    """The faults of one namespace. There is a method for each kind, with its settings."""

    def __init__(self, controller: FaultController) -> None:
        self._controller = controller

    unreachable = _starter(kinds.Unreachable)
    hang = _starter(kinds.Hang)
    throttle = _starter(kinds.Throttle)
    error = _starter(kinds.Error)
    slow = _starter(kinds.Slow)
    restart = _starter(kinds.Restart)
    delayed_visibility = _starter(kinds.DelayedVisibility)
    cut_after_accept = _starter(kinds.CutAfterAccept)
    cut_in_transfer = _starter(kinds.CutInTransfer)
    cannot_send = _starter(kinds.CannotSend)
    cannot_receive = _starter(kinds.CannotReceive)
    cannot_manage = _starter(kinds.CannotManage)
    cannot_contact = _starter(kinds.CannotContact)
    disk_full = _starter(kinds.DiskFull)
    slow_disk = _starter(kinds.SlowDisk)

    def clock_jump(self, offset_seconds: float, *, seconds: float | None = None) -> RunningFault:
        """Returns when the namespace has caught up with its new time."""
        return self.start(kinds.ClockJump(offset_seconds=offset_seconds, seconds=seconds))

    def start(self, fault: Fault) -> RunningFault:
        return self._controller.call(lambda: self._controller.start(fault))

    def script(
        self, faults: Sequence[tuple[float, Fault]], *, seed: int | None = None
    ) -> FaultScript:
        """Each fault with the seconds from now at which it starts.

        With a seed, faults without their own seed make the same choices in each run.
        """
        controller = self._controller
        return FaultScript(
            controller, controller.call(lambda: controller.script(faults, seed=seed))
        )

    def active(self) -> list[RunningFault]:
        return [fault for fault in self.all() if fault.is_active]

    def all(self) -> list[RunningFault]:
        """Active and planned."""
        return self._controller.call(lambda: self._controller.faults)

    def clear(self) -> None:
        """End all that are active, and forget those that are planned."""
        self._controller.call(lambda: self._controller.clear(self._controller.faults))
