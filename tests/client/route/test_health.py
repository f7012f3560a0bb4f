import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.route.health import TRANSITIONS, Health, HealthState, Signal

SENT, FAILED, PING, BY_HAND = (
    Signal.SENT,
    Signal.FAILED,
    Signal.PING_ANSWERED,
    Signal.MARKED_HEALTHY,
)
TIME = None  # nobody says anything: somebody looks

# With an interval of 10 seconds: what happened when, and what that makes of the entity.
HISTORIES = {
    "starts healthy": ([], HealthState.HEALTHY),
    "a success changes nothing": ([(0, SENT), (5, SENT)], HealthState.HEALTHY),
    "one failure is only a suspicion": ([(0, FAILED)], HealthState.SUSPECT),
    "many failures within the interval are no more": (
        [(0, FAILED), (1, FAILED), (9.999, FAILED)],
        HealthState.SUSPECT,
    ),
    "a success clears the timer": ([(0, FAILED), (9, SENT)], HealthState.HEALTHY),
    "after a success the interval starts anew": (
        [(0, FAILED), (9, SENT), (11, FAILED), (20.999, FAILED)],
        HealthState.SUSPECT,
    ),
    "and it starts with the first failure after it": (
        [(0, FAILED), (9, SENT), (11, FAILED), (20, FAILED), (21, FAILED)],
        HealthState.FAILED_OVER,
    ),
    "the interval is inclusive": ([(0, FAILED), (10, FAILED)], HealthState.FAILED_OVER),
    "later failures do not prolong it": (
        [(0, FAILED), (5, FAILED), (9, FAILED), (10, FAILED)],
        HealthState.FAILED_OVER,
    ),
    "time alone fails over": ([(0, FAILED), (10, TIME)], HealthState.FAILED_OVER),
    "but not before the interval is over": ([(0, FAILED), (9.999, TIME)], HealthState.SUSPECT),
    "time alone harms nothing healthy": ([(0, SENT), (1e6, TIME)], HealthState.HEALTHY),
    "a success in the last moment clears": ([(0, FAILED), (9.999, SENT)], HealthState.HEALTHY),
    "a success as the interval ends is too late": (
        [(0, FAILED), (10, SENT)],
        HealthState.FAILED_OVER,
    ),
    "even if nobody looked before": ([(0, FAILED), (3600, SENT)], HealthState.FAILED_OVER),
    "a late success is no failback": (
        [(0, FAILED), (10, FAILED), (11, SENT)],
        HealthState.FAILED_OVER,
    ),
    "nor do late failures matter": (
        [(0, FAILED), (10, TIME), (11, FAILED)],
        HealthState.FAILED_OVER,
    ),
    "an answered ping is a failback": (
        [(0, FAILED), (10, FAILED), (11, PING)],
        HealthState.HEALTHY,
    ),
    "so is a word by hand": ([(0, FAILED), (10, FAILED), (11, BY_HAND)], HealthState.HEALTHY),
    "which clears a suspicion, too": ([(0, FAILED), (5, BY_HAND)], HealthState.HEALTHY),
    "and harms nothing healthy": ([(0, BY_HAND)], HealthState.HEALTHY),
    "after the way back the interval is a whole one again": (
        [(0, FAILED), (10, TIME), (11, PING), (12, FAILED), (21.999, FAILED)],
        HealthState.SUSPECT,
    ),
    "and is over in its turn": (
        [(0, FAILED), (10, TIME), (11, PING), (12, FAILED), (22, TIME)],
        HealthState.FAILED_OVER,
    ),
}


def after(history, *, failover_seconds=10.0):
    health = Health(failover_seconds)
    for now, signal in history:
        if signal is TIME:
            health.advance(now=now)
        else:
            health.observe(signal, now=now)
    return health


@pytest.mark.req("A-05", "F-03", "F-04")
@pytest.mark.parametrize(("history", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_history_leads_to_state(history, expected):
    assert after(history).state is expected


@pytest.mark.req("A-05")
def test_with_no_interval_the_first_failure_fails_over():
    health = Health(0.0)

    assert health.observe(FAILED, now=5.0) is HealthState.FAILED_OVER
    assert (health.since, health.first_failure) == (5.0, 5.0)


def test_a_failover_begins_when_the_interval_is_over_whoever_notices_when():
    early, late = after([(3, FAILED), (13, TIME)]), after([(3, FAILED), (99, TIME)])

    assert early == late
    assert early.since == 13.0


@pytest.mark.parametrize(
    ("history", "since", "first_failure", "deadline"),
    [
        ([], 0.0, None, None),
        ([(1, SENT)], 0.0, None, None),
        ([(3, FAILED)], 3, 3, 13),
        ([(3, FAILED), (4, FAILED)], 3, 3, 13),
        ([(3, FAILED), (4, SENT)], 4, None, None),
        ([(3, FAILED), (13, FAILED), (14, FAILED)], 13, 3, None),
        ([(3, FAILED), (13, FAILED), (14, PING)], 14, None, None),
    ],
    ids=[
        "healthy from the start",
        "a success is no new state",
        "suspect from the first failure",
        "which the second does not move",
        "healthy from the success",
        "failed over from the deadline",
        "healthy from the ping",
    ],
)
def test_it_knows_when_its_state_began_and_when_it_ends(history, since, first_failure, deadline):
    health = after(history)

    assert (health.since, health.first_failure, health.deadline) == (since, first_failure, deadline)


@pytest.mark.parametrize(
    ("history", "epoch"),
    [
        ([(0, FAILED), (1, SENT), (2, FAILED), (3, BY_HAND)], 0),
        ([(0, FAILED), (10, TIME)], 0),
        ([(0, FAILED), (10, TIME), (11, PING)], 1),
        ([(0, FAILED), (10, TIME), (11, BY_HAND)], 1),
        ([(0, FAILED), (10, TIME), (11, PING), (12, FAILED), (22, TIME), (23, PING)], 2),
    ],
    ids=[
        "a suspicion that is cleared is no way back",
        "a failover is none",
        "a ping's answer is one",
        "a word by hand is one",
        "and each is one more",
    ],
)
def test_the_epoch_counts_the_ways_back(history, epoch):
    assert after(history).epoch == epoch


def test_no_state_is_a_trap_or_unreachable():
    moves = {(before, after) for (before, _), after in TRANSITIONS.items() if before is not after}

    assert {before for before, _ in moves} == {after for _, after in moves} == set(HealthState)


def test_an_unlisted_signal_is_a_bug_and_says_so():
    unlisted = set(itertools.product(HealthState, Signal)) - set(TRANSITIONS)

    assert unlisted == {
        (HealthState.HEALTHY, Signal.INTERVAL_ELAPSED),
        (HealthState.HEALTHY, Signal.PING_ANSWERED),
        (HealthState.SUSPECT, Signal.PING_ANSWERED),
        (HealthState.FAILED_OVER, Signal.INTERVAL_ELAPSED),
    }
    for state, signal in unlisted:
        with pytest.raises(KeyError):
            Health(10.0, state=state).observe(signal, now=0.0)


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 4, 5, 6, 10]), st.sampled_from([SENT, FAILED, BY_HAND])),
    max_size=12,
)


@given(steps=STEPS, interval=st.sampled_from([0, 1, 5, 10]), looks=st.sets(st.integers(0, 120)))
def test_how_often_somebody_looks_makes_no_difference(steps, interval, looks):
    watched, unwatched, now = Health(interval), Health(interval), 0
    for seconds, signal in steps:
        for moment in range(now, now + seconds + 1):
            if moment in looks:
                watched.advance(now=moment)
        now += seconds
        watched.observe(signal, now=now)
        unwatched.observe(signal, now=now)

    assert watched == unwatched
