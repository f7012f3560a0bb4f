"""A broker on a machine that misbehaves: it loses power, its clock steps, its disk is full or slow.

The machine is the real one, with two libraries between the broker and the system: `disk_log.c`
records what the broker does to its disk, and `machine_faults.c` fails on request.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pairbus.demo.processes import BrokerProcess
from pairbus.verify.nemesis import BROKERS, CannotBegin, End, FaultKind, PlannedFault
from tests.chaos.disk import Disk, read_log, recorder

_FAULTS = struct.Struct("qqq")
KEPT = (0.0, 0.0, 0.5, 0.95, 1.0)
"""Shares of what was not synced that outlive a power cut."""


class MachineBroker(BrokerProcess):
    def __init__(self, name: str, folder: Path, *, module: str = "pairbus") -> None:
        self._log = folder / f"{name}.log"
        variables = recorder(folder / name, self._log, folder / "disk_log.so")
        library = folder / "machine_faults.so"
        source = Path(__file__).with_name("machine_faults.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        control = folder / f"{name}.faults"
        control.write_bytes(bytes(_FAULTS.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _FAULTS.size)
        variables["LD_PRELOAD"] = f"{library}:{variables['LD_PRELOAD']}"
        variables["MACHINE_FAULTS"] = str(control)
        # The broker works in its folder; `module` may be one of the tests.
        variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        super().__init__(name, folder, variables=variables, module=module)
        self._disk = Disk(self.data)
        self.data.mkdir(mode=0o700)

    def start(self) -> None:
        # What was written before this start counts as synced: the system has written it meanwhile.
        self._disk = Disk.holding(self.data)
        self._log.unlink(missing_ok=True)
        super().start()

    def fail(
        self, *, clock_offset_seconds: int = 0, is_disk_full: bool = False, sync_ms: int = 0
    ) -> None:
        """Without arguments, everything works again."""
        self._control[:] = _FAULTS.pack(clock_offset_seconds, is_disk_full, sync_ms)

    def lose_power(self) -> None:
        self.kill()

    def power_returns(self, choice: Random) -> None:
        """Start with what the disk has kept."""
        for record in read_log(self._log):
            self._disk.play(record)
        left, lost = (self.data.with_suffix(suffix) for suffix in (".left", ".lost"))
        self._disk.restore(left, choice, choice.choice(KEPT))
        self.data.rename(lost)
        left.rename(self.data)
        shutil.rmtree(lost)
        self.start()


def _broker(rig: Any, fault: PlannedFault) -> MachineBroker:
    broker = rig.processes[fault.target]
    if not broker.is_ready:
        raise CannotBegin
    assert isinstance(broker, MachineBroker)
    return broker


def _lose_power(rig: Any, fault: PlannedFault) -> End:
    broker = _broker(rig, fault)
    broker.lose_power()
    return lambda: broker.power_returns(Random(f"{fault.begins}"))


def _failing(**names: str) -> Callable[[Any, PlannedFault], End]:
    """A fault that lasts. `names`: the arguments of `fail`, with the settings that have them."""

    def begin(rig: Any, fault: PlannedFault) -> End:
        broker = _broker(rig, fault)
        broker.fail(**{argument: fault.settings[name] for argument, name in names.items()})
        return broker.fail

    return begin


def _kind(name: str, begin: Any, **settings: Sequence[Any]) -> FaultKind:
    return FaultKind(name=name, group="machine", targets=BROKERS, begin=begin, settings=settings)


POWER_LOSS = FaultKind(
    name="power loss", group="power", targets=BROKERS, begin=_lose_power, takes_target=True
)
KINDS = (
    POWER_LOSS,
    _kind(
        "clock step",
        _failing(clock_offset_seconds="offset"),
        offset=(-7_200, -60, -2, 2, 60, 7_200),
    ),
    _kind("disk full", _failing(is_disk_full="full"), full=(True,)),
    _kind("slow disk", _failing(sync_ms="milliseconds"), milliseconds=(20, 200)),
)
