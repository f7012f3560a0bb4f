"""What goes wrong during a run on local brokers: a table of faults, and a seeded plan.

The plan is pure: the same seed makes the same plan. Faults begin in random order, and overlap.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from pairbus.cli.broker.fault_client import FaultClient
from pairbus.demo.processes import ChildProcess
from pairbus.errors import PairbusError
from pairbus.verify.proxy import CuttableLink, LinkCut

BROKERS: Final = ("primary", "secondary")
LINKS: Final = (
    *("sender to primary", "sender to secondary", "receiver to primary"),
    *("syphon to primary", "syphon to secondary"),
)
_QUIET_SECONDS: Final = 3.0
"""Before the first fault: everything must have worked once."""
_PAUSE_SECONDS: Final = (0.3, 3.0)
_SHORT_SECONDS: Final = (0.5, 4.0)
_LONG_SECONDS: Final = (4.0, 15.0)
_LONG_SHARE: Final = 0.15


class Rig(Protocol):
    """The processes of a run, and what is between them."""

    @property
    def processes(self) -> Mapping[str, ChildProcess]:
        """By name: primary, secondary, syphon, sender 1 and so on."""

    @property
    def links(self) -> Mapping[str, CuttableLink]: ...

    def restart(self, name: str) -> None:
        """Start a process that has ended."""

    def fault_client(self, broker: str) -> FaultClient: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    kind: str
    target: str
    begins: float
    """Seconds after the start of the run."""
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = "".join(f", {name}={value}" for name, value in self.settings.items())
        return f"{self.kind} {self.target} for {self.seconds:.1f}s{settings}"


class CannotBegin(Exception):
    """The target is down, or busy with another fault."""


End = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    name: str
    group: str
    """Each group is as likely as the others, however many kinds it has."""
    targets: tuple[str, ...]
    begin: Callable[[Any, PlannedFault], End]
    """Takes the rig. Returns what ends the fault. Raises CannotBegin."""
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The values to choose from, by name."""
    takes_target: bool = False
    """Whether the target is down meanwhile, so that no other fault can begin there."""


# --- the faults -----------------------------------------------------------------------------------


def _kill(rig: Rig, fault: PlannedFault) -> End:
    _running(rig, fault.target).kill()
    return lambda: rig.restart(fault.target)


def _terminate(rig: Rig, fault: PlannedFault) -> End:
    """By SIGTERM, as an operator would. It is started again."""
    process = _running(rig, fault.target)
    process.request_stop()

    def end() -> None:
        process.kill()
        rig.restart(fault.target)

    return end


def _stop(rig: Rig, fault: PlannedFault) -> End:
    pids = _running(rig, fault.target).pids()
    _signal(pids, signal.SIGSTOP)
    return lambda: _signal(pids, signal.SIGCONT)


def _kill_part(rig: Rig, fault: PlannedFault) -> End:
    """Java, the driver, or a Python worker of Spark. The syphon, or the run, must deal with it."""
    pids = [pid for pid in _running(rig, "syphon").pids() if _part_of(pid) == fault.target]
    if not pids:
        raise CannotBegin
    _signal(pids[-1:], signal.SIGKILL)
    return lambda: None


def _cut(rig: Rig, fault: PlannedFault) -> End:
    link = rig.links[fault.target]
    if link.is_cut:
        raise CannotBegin
    link.cut(fault.settings["how"])
    return link.mend


def _in_broker(rig: Rig, fault: PlannedFault) -> End:
    _running(rig, fault.target)
    try:
        client = rig.fault_client(fault.target)
        wanted = {"kind": fault.kind, "seconds": fault.seconds, **fault.settings}
        number = client.add(wanted)["id"]
    except PairbusError as error:
        raise CannotBegin from error

    def end() -> None:
        with suppress(PairbusError):  # it is over, or the broker is down and has forgotten it
            client.clear(number)

    return end


def _running(rig: Rig, name: str) -> ChildProcess:
    process = rig.processes.get(name)
    if process is None or not process.is_running:
        raise CannotBegin
    return process


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _part_of(pid: int) -> str:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if "pyspark.daemon" in command:
            return "spark worker"
        return "java" if "org.apache.spark" in command else "driver"
    return ""


# --- the table ------------------------------------------------------------------------------------


BROKER_FAULTS: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "unreachable": {"mode": ("refuse", "drop")},
    "hang": {},
    "throttle": {"rate": (0.0, 0.5)},
    "error": {"probability": (0.3, 1.0)},
    "slow": {"latencySeconds": (0.05, 0.3, 1.0)},
    "restart": {},
    "delayed_visibility": {"delaySeconds": (1.0, 5.0)},
    "cut_after_accept": {"probability": (0.1, 1.0)},
    "cut_in_transfer": {"probability": (0.1, 1.0)},
    "cannot_send": {},
    "cannot_receive": {},
    "cannot_manage": {},
    "cannot_contact": {},
    "disk_full": {},
    "slow_disk": {"latencySeconds": (0.05, 0.5)},
    "clock_jump": {"offsetSeconds": (-7_200, -600, -5, 5, 600, 7_200)},
}
"""Every kind of fault that a broker has, with the settings to choose from."""


def kinds(workers: Sequence[str], *, has_syphon: bool = True) -> tuple[FaultKind, ...]:
    """The table of faults for a run with these senders and receivers."""
    syphon = ("syphon",) if has_syphon else ()
    processes = (*BROKERS, *BROKERS, *workers, *syphon)
    links = tuple(name for name in LINKS if has_syphon or not name.startswith("syphon"))
    parts = ("driver", "java", "spark worker", "spark worker")
    table = [
        FaultKind(name="kill", group="kill", targets=processes, begin=_kill, takes_target=True),
        FaultKind(name="stop", group="stop", targets=processes, begin=_stop, takes_target=True),
        FaultKind(
            name="terminate", group="stop", targets=BROKERS, begin=_terminate, takes_target=True
        ),
        FaultKind(
            name="cut", group="network", targets=links, begin=_cut, settings={"how": tuple(LinkCut)}
        ),
        *(
            FaultKind(
                name=kind, group="broker", targets=BROKERS, begin=_in_broker, settings=settings
            )
            for kind, settings in BROKER_FAULTS.items()
        ),
    ]
    if has_syphon:
        table.append(FaultKind(name="kill", group="spark", targets=parts, begin=_kill_part))
    return tuple(table)


def plan(
    table: Sequence[FaultKind],
    *,
    seconds: float,
    seed: int,
    pause_seconds: tuple[float, float] = _PAUSE_SECONDS,
) -> list[PlannedFault]:
    """Faults in the order in which they begin. All end before the run does."""
    random = Random(f"{seed} nemesis")
    groups: dict[str, list[FaultKind]] = {}
    for kind in table:
        groups.setdefault(kind.group, []).append(kind)
    found: list[PlannedFault] = []
    at = _QUIET_SECONDS
    while True:
        at += random.uniform(*pause_seconds)
        if at + _SHORT_SECONDS[0] > seconds:
            return found
        is_long = random.random() < _LONG_SHARE
        length = random.uniform(*(_LONG_SECONDS if is_long else _SHORT_SECONDS))
        length = min(length, seconds - at)
        kind = random.choice(random.choice(list(groups.values())))
        target = random.choice(kind.targets)
        settings = {name: random.choice(values) for name, values in kind.settings.items()}
        found.append(
            PlannedFault(
                kind=kind.name, target=target, begins=at, seconds=length, settings=settings
            )
        )


# --- the execution --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Active:
    fault: PlannedFault
    ends_at: float
    end: End
    takes_target: bool


class Nemesis:
    """Begins and ends the faults of a plan. Faults that cannot begin are left out."""

    def __init__(
        self,
        rig: Rig,
        table: Sequence[FaultKind],
        faults: Sequence[PlannedFault],
        *,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rig = rig
        self._kinds = {(kind.name, target): kind for kind in table for target in kind.targets}
        self._planned = list(faults)
        self._note = note
        self._clock = clock
        self._active: list[_Active] = []
        self.faults: list[PlannedFault] = []
        """Those that have begun."""
        self.left_out = 0
        """How many could not begin."""

    def step(self, at: float) -> None:
        """Begin and end what is due, `at` seconds after the start of the run."""
        self._end([one for one in self._active if one.ends_at <= self._clock()])
        while self._planned and self._planned[0].begins <= at:
            fault = self._planned.pop(0)
            try:
                self._begin(fault)
            except CannotBegin:
                self.left_out += 1

    def end_all(self) -> None:
        self._planned.clear()
        self._end(self._active)

    def is_down(self, name: str) -> bool:
        """Whether a fault keeps this process from running."""
        return any(one.takes_target and one.fault.target == name for one in self._active)

    def _begin(self, fault: PlannedFault) -> None:
        kind = self._kinds[fault.kind, fault.target]
        if self.is_down(fault.target):
            raise CannotBegin
        end = kind.begin(self._rig, fault)
        self._note(str(fault))
        self.faults.append(fault)
        ends_at = self._clock() + fault.seconds
        self._active.append(_Active(fault, ends_at, end, kind.takes_target))

    def _end(self, some: Sequence[_Active]) -> None:
        for one in some:
            one.end()
        self._active = [one for one in self._active if one not in some]
