"""When faults start and end."""

from random import Random

import pytest

from pairbus.broker.faults import (
    CutAfterAccept,
    DiskFull,
    Hang,
    Restart,
)
from pairbus.broker.faults.active_faults import ActiveFaults
from pairbus.broker.faults.schedule import FAULTS_MAX, FaultSchedule
from pairbus.errors import ConfigError

pytestmark = pytest.mark.req("B-13")


def test_a_fault_is_found_by_its_number_until_it_is_over():
    schedule = FaultSchedule(Random(1))
    [entry] = schedule.plan([(0, Hang())], seed=None, now=0.0)

    assert schedule.find(entry.id) is entry
    schedule.end(entry)
    assert schedule.find(entry.id) is None


def test_faults_start_and_end_at_their_times():
    schedule = FaultSchedule(Random(1))
    schedule.plan([(0, Hang(seconds=5)), (3, DiskFull())], seed=None, now=100.0)
    hang, full = schedule.faults

    assert schedule.pass_time(now=100.0) == ([hang], [])
    assert (hang.state, full.state, schedule.next_at) == ("active", "planned", 103.0)
    assert schedule.pass_time(now=103.0) == ([full], [])
    assert schedule.active == [hang, full]
    assert schedule.next_at == 105.0
    assert schedule.pass_time(now=105.0) == ([], [hang])
    assert (hang.state, schedule.faults, schedule.next_at) == ("over", [full], None)


def test_a_fault_that_was_slept_through_still_started():
    schedule = FaultSchedule(Random(1))
    [entry] = schedule.plan([(1, Restart(seconds=2))], seed=None, now=0.0)

    assert schedule.pass_time(now=10.0) == ([entry], [entry])
    assert entry.state == "over"


def test_a_fault_with_a_limit_of_hits_is_over_with_the_last():
    spent = []
    schedule = FaultSchedule(Random(1), when_spent=lambda: spent.append(entry.hits))
    [entry] = schedule.plan([(0, CutAfterAccept(times=2))], seed=None, now=0.0)
    schedule.pass_time(now=0.0)
    those = ActiveFaults([entry])

    assert [those.cuts_after_accept("a") for _ in range(4)] == [True, True, False, False]
    assert spent == [2]
    assert schedule.pass_time(now=0.0) == ([], [entry])


def test_the_number_of_faults_is_limited():
    schedule = FaultSchedule(Random(1))
    schedule.plan([(0, Hang())] * FAULTS_MAX, seed=None, now=0.0)

    with pytest.raises(ConfigError, match="1000 faults are planned or active, and 1 more would"):
        schedule.plan([(0, Hang())], seed=None, now=0.0)


@pytest.mark.parametrize("at", [-1, float("nan"), 10**9])
def test_a_script_within_reason(at):
    schedule = FaultSchedule(Random(1))

    with pytest.raises(ConfigError, match=r"hang starts at .* from 0 to 2592000"):
        schedule.plan([(0, Hang()), (at, Hang())], seed=None, now=0.0)
    assert schedule.faults == []
