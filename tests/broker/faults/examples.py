"""Faults that several tests use: one example of each kind, and several active at once."""

from random import Random

from pairbus.broker.faults import (
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
    Hang,
    Mode,
    Operation,
    Restart,
    Slow,
    SlowDisk,
    Throttle,
    Unreachable,
)
from pairbus.broker.faults.active_faults import ActiveFaults
from pairbus.broker.faults.schedule import FaultSchedule

EXAMPLES = [
    Unreachable("orders", mode=Mode.DROP, seconds=30),
    Hang(),
    Throttle("Orders", rate=0.2, on=[Operation.SEND], seed=7),
    Error("orders", condition="amqp:not-found", probability=0.5, times=3, on="attach"),
    Slow(latency_seconds=0.1, distribution="exponential", bytes_per_second=1000),
    Restart(seconds=2),
    DelayedVisibility("orders", delay_seconds=60),
    CutAfterAccept("orders", times=1),
    CutInTransfer("orders", probability=0.1),
    CannotSend("orders"),
    CannotReceive("events/Subscriptions/audit"),
    CannotManage(),
    CannotContact(),
    DiskFull(seconds=5),
    SlowDisk(latency_seconds=2.5, distribution=Distribution.UNIFORM),
    ClockJump(offset_seconds=-3600),
]


def active(*faults, seed=1):
    """All of them at once."""
    schedule = FaultSchedule(Random(seed))
    schedule.plan([(0.0, fault) for fault in faults], seed=seed, now=0.0)
    schedule.pass_time(now=0.0)
    return ActiveFaults(schedule.active)
