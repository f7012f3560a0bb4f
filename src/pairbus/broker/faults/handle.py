"""`broker.faults`: faults asked for from any thread, and told as they are.

Every call is done on the namespace's loop and returns when it is in effect. It goes around the
port, so that a namespace that nobody can reach can still be mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from pairbus.broker.faults import kinds
from pairbus.broker.faults.fault_json import entry_to_json
from pairbus.broker.faults.kinds import Fault
from pairbus.broker.faults.schedule import Entry
from pairbus.errors import BrokerError

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

_CALL_SECONDS: Final = 30.0

P = ParamSpec("P")
T = TypeVar("T")


class RunningFault:
    """One that was asked for: planned, active or over. As a context manager, it ends with it."""

    def __init__(self, owner: Faults, entry: Entry) -> None:
        self._owner = owner
        self._entry = entry

    @property
    def id(self) -> int:
        return self._entry.id

    @property
    def fault(self) -> Fault:
        return self._entry.fault

    @property
    def state(self) -> str:
        """`planned`, `active` or `over`."""
        return self._entry.state

    @property
    def is_active(self) -> bool:
        return self._entry.is_active

    @property
    def hits(self) -> int:
        """How often it has hit so far. (For a latency: how often one was thrown.)"""
        return self._entry.hits

    @property
    def seed(self) -> int:
        return self._entry.seed

    @property
    def starts_at(self) -> float:
        """Epoch seconds of the broker's clock."""
        return self._entry.starts_at

    @property
    def ends_at(self) -> float | None:
        """Epoch seconds of the broker's clock; None: when it is cleared."""
        return self._entry.ends_at

    def clear(self) -> None:
        """End it now. Does nothing if it is over, or the broker is."""
        if self.state != "over":
            self._owner._end([self._entry])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<{self.state} fault {self.id}: {self.fault}>"


class Script:
    """Faults on a timeline. As a context manager, all of them end with it."""

    def __init__(self, owner: Faults, faults: Sequence[RunningFault]) -> None:
        self._owner = owner
        self.faults = tuple(faults)

    def clear(self) -> None:
        self._owner._end([each._entry for each in self.faults])

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
    """The faults of one namespace. Each method takes what the description of its name takes."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._controller = namespace.faults

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
        return RunningFault(self, self._call(lambda: self._controller.start(fault)))

    def script(self, faults: Sequence[tuple[float, Fault]], *, seed: int | None = None) -> Script:
        """Each fault starts so many seconds from now.

        With a seed, those faults that bring none decide the same in each run of the script.
        """
        entries = self._call(lambda: self._controller.script(faults, seed=seed))
        return Script(self, [RunningFault(self, entry) for entry in entries])

    def active(self) -> list[RunningFault]:
        return [each for each in self.all() if each.is_active]

    def all(self) -> list[RunningFault]:
        """Active and planned."""
        entries = self._call(lambda: self._controller.entries)
        return [RunningFault(self, entry) for entry in entries]

    def listing(self) -> list[dict[str, object]]:
        """All, as `GET /$faults` tells them."""
        return self._call(lambda: [entry_to_json(entry) for entry in self._controller.entries])

    def clear(self) -> None:
        """End all that are active, and forget those that are planned."""
        self._call(lambda: self._controller.clear(self._controller.entries))

    def _end(self, entries: Sequence[Entry]) -> None:
        if self._namespace.loop.is_closed():
            return
        self._call(lambda: self._controller.clear([e for e in entries if e.state != "over"]))

    def _call(self, function: Callable[[], T]) -> T:
        loop = self._namespace.loop
        try:
            if asyncio.get_running_loop() is loop:
                return function()
        except RuntimeError:
            pass  # the caller has no loop
        outcome: Future[T] = Future()

        def call() -> None:
            try:
                result = function()
            except BaseException as error:
                outcome.set_exception(error)
                return
            if self._controller.has_moved_clock:
                # Told only when what follows from the new time is on the disk.
                self._controller.has_moved_clock = False
                self._namespace.committer.when_durable(lambda _: outcome.set_result(result))
            else:
                outcome.set_result(result)

        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise BrokerError("the broker is not running: it has no faults") from error
        return outcome.result(_CALL_SECONDS)
