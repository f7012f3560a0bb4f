"""What goes wrong during a run on local brokers: a seeded plan of faults that may overlap. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

KINDS: Final = (
    "kill primary",
    "stop primary",
    "kill secondary",
    "kill sender",
    "kill syphon",
    "unreachable",
    "throttle",
    "hang",
    "cut_after_accept",
    "cut_in_transfer",
    "cannot_send",
    "slow_disk",
    "disk_full",
)
_QUIET_SECONDS: Final = 3.0
"""Before the first fault: everything must have worked once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    kind: str
    """One of KINDS. What is not a process to kill is a fault of the primary."""
    begins: float
    """Seconds after the start of the run."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} for {self.seconds:.1f} s"

    def to_fault(self) -> dict[str, Any]:
        """For the broker's `/$faults`."""
        return {"kind": self.kind, "seconds": self.seconds}


def plan(*, seconds: float, seed: int) -> list[Trouble]:
    """Troubles in the order in which they begin. All end before the run does."""
    random = Random(f"{seed} nemesis")
    found: list[Trouble] = []
    at = _QUIET_SECONDS
    while True:
        length = random.uniform(0.5, 4.0)
        at += random.uniform(0.5, 4.0)
        if at + length > seconds:
            return found
        found.append(Trouble(kind=random.choice(KINDS), begins=at, seconds=length))
