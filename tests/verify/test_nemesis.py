"""Faults are seeded, overlap, end before the run does, and every kind can happen."""

import itertools

import pytest

from pairbus.broker.faults.fault_json import from_json
from pairbus.broker.faults.kinds import KINDS
from pairbus.verify.nemesis import (
    BROKER_FAULTS,
    BROKERS,
    LINKS,
    CannotBegin,
    FaultKind,
    Nemesis,
    PlannedFault,
    plan,
)
from pairbus.verify.nemesis import kinds as kinds_for

WORKERS = ["receiver", "session receiver", "sender 1", "sender 2"]
TABLE = kinds_for(WORKERS)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_fits_into_its_run(seed):
    faults = plan(TABLE, seconds=60, seed=seed)

    assert faults == plan(TABLE, seconds=60, seed=seed)
    assert len(faults) > 10
    assert [each.begins for each in faults] == sorted(each.begins for each in faults)
    assert all(each.begins > 3 and each.begins + each.seconds <= 60 for each in faults)


def test_every_kind_happens_to_every_target_and_some_overlap():
    faults = plan(TABLE, seconds=20_000, seed=1)

    found = {(each.kind, each.target) for each in faults}
    assert found == {(kind.name, target) for kind in TABLE for target in kind.targets}
    assert {("cut", link) for link in LINKS} <= found
    assert {(kind, broker) for kind in BROKER_FAULTS for broker in BROKERS} <= found
    pairs = itertools.pairwise(faults)
    assert any(one.begins + one.seconds > other.begins for one, other in pairs)


def test_a_broker_takes_every_fault_that_is_planned_for_it_and_no_kind_is_left_out():
    assert BROKER_FAULTS.keys() == KINDS.keys()
    for each in plan(TABLE, seconds=5_000, seed=2):
        if each.kind in BROKER_FAULTS:
            from_json({"kind": each.kind, "seconds": each.seconds, **each.settings})


def test_a_name_and_a_target_mean_one_thing():
    names = [(kind.name, target) for kind in TABLE for target in set(kind.targets)]

    assert len(names) == len(set(names))


def test_without_a_syphon_there_is_no_fault_for_it():
    table = kinds_for(WORKERS, has_syphon=False)

    assert not [t for kind in table for t in kind.targets if "syphon" in t or t in ("java",)]


def test_a_short_run_has_no_faults():
    assert plan(TABLE, seconds=3, seed=0) == []


# --- the execution ------------------------------------------------------------------------------


class World:
    """Two kinds of faults: one takes its target, one does not. Writes down what happens."""

    def __init__(self, *planned):
        self.now, self.events = 0.0, []
        table = [
            FaultKind(
                name="kill", group="a", targets=BROKERS, begin=self._begin, takes_target=True
            ),
            FaultKind(name="slow", group="b", targets=BROKERS, begin=self._begin),
        ]
        self.nemesis = Nemesis(None, table, planned, note=lambda text: None, clock=lambda: self.now)

    def _begin(self, rig, fault):
        if fault.settings.get("is_impossible"):
            raise CannotBegin
        self.events.append(f"{fault.kind} {fault.target}")
        return lambda: self.events.append(f"end {fault.kind} {fault.target}")

    def run(self, *times):
        for self.now in times:
            self.nemesis.step(self.now)


def fault(kind, target, begins, seconds, **settings):
    return PlannedFault(kind=kind, target=target, begins=begins, seconds=seconds, settings=settings)


def test_faults_begin_and_end_in_time_and_may_overlap():
    world = World(fault("kill", "primary", 1, 5), fault("slow", "secondary", 2, 1))

    world.run(0.5, 1, 2, 3, 4, 6)

    expected = ["kill primary", "slow secondary", "end slow secondary", "end kill primary"]
    assert world.events == expected
    assert [each.kind for each in world.nemesis.faults] == ["kill", "slow"]


def test_a_fault_that_cannot_begin_is_not_listed():
    world = World(
        fault("kill", "primary", 1, 5),
        fault("slow", "primary", 2, 5),  # the primary is down
        fault("slow", "secondary", 3, 5, is_impossible=True),
    )

    world.run(1, 2, 3)

    assert [str(each) for each in world.nemesis.faults] == ["kill primary for 5.0s"]
    assert world.nemesis.left_out == 2
    assert world.nemesis.is_down("primary")
    assert not world.nemesis.is_down("secondary")


def test_at_the_end_all_faults_end_and_no_other_begins():
    world = World(fault("slow", "primary", 1, 50), fault("kill", "primary", 9, 5))

    world.run(1)
    world.nemesis.end_all()
    world.run(10, 60)

    assert world.events == ["slow primary", "end slow primary"]
