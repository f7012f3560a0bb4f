"""Faults on demand: what goes wrong in a datacenter, when a test asks for it.

`kinds` describes faults, `timeline` says when, `trouble` decides whom they hit; those are pure.
`board` puts them into effect in a namespace, `detour` in a connection; `desk` is `broker.faults`.
"""

from pairbus.broker.faults.handle import Faults, RunningFault, Script
from pairbus.broker.faults.kinds import (
    KINDS,
    CannotContact,
    CannotManage,
    CannotReceive,
    CannotSend,
    ClockJump,
    CutAfterAccept,
    CutInTransfer,
    DelayedVisibility,
    DiskFull,
    Distribution,
    Error,
    Fault,
    Hang,
    Mode,
    Operation,
    Restart,
    Slow,
    SlowDisk,
    Throttle,
    Unreachable,
)

__all__ = [
    "Faults",
    "RunningFault",
    "Script",
    "Fault",
    "KINDS",
    "Operation",
    "Mode",
    "Distribution",
    "Unreachable",
    "Hang",
    "Throttle",
    "Error",
    "Slow",
    "Restart",
    "DelayedVisibility",
    "CutAfterAccept",
    "CutInTransfer",
    "CannotSend",
    "CannotReceive",
    "CannotManage",
    "CannotContact",
    "DiskFull",
    "SlowDisk",
    "ClockJump",
]
