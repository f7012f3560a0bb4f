"""Faults on demand: failures of a datacenter, for tests.

`kinds` describes faults, `schedule` says when they are active, `active_faults` decides what they
hit; these are pure. `controller` applies them to a namespace, `faulty_transport` to a connection.
`handle` has the class of `broker.faults`.
"""

from pairbus.broker.faults.handle import Faults, FaultScript
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
from pairbus.broker.faults.schedule import RunningFault

__all__ = [
    "Faults",
    "RunningFault",
    "FaultScript",
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
