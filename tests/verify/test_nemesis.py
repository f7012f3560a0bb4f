"""Trouble is seeded, ends before the run does, and every kind can happen."""

import pytest

from pairbus.broker.faults.kinds import KINDS as FAULTS
from pairbus.verify.nemesis import KINDS, plan


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_fits_into_its_run(seed):
    troubles = plan(seconds=60, seed=seed)

    assert troubles == plan(seconds=60, seed=seed)
    assert troubles
    assert [each.begins for each in troubles] == sorted(each.begins for each in troubles)
    assert all(each.begins > 3 and each.begins + each.seconds <= 60 for each in troubles)


def test_every_kind_happens_and_is_a_kill_or_a_fault():
    troubles = [each for seed in range(50) for each in plan(seconds=60, seed=seed)]

    assert {each.kind for each in troubles} == set(KINDS)
    for each in troubles:
        if each.kind in FAULTS:
            assert each.to_fault()["kind"] == each.kind
        else:
            assert each.kind.split()[0] in ("kill", "stop")


def test_a_short_run_has_no_trouble():
    assert plan(seconds=3, seed=0) == []
