import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.route.health import TRANSITIONS, Health, HealthState, Signal

SENT, FAILED, PING, NO_ANSWER, BY_HAND = (
    Signal.SENT,
    Signal.FAILED,
    Signal.PING_ANSWERED,
    Signal.PING_FAILED,
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


def after(history, *, failover_seconds=10.0, fail_back_pings=1):
    health = Health(failover_seconds, fail_back_pings)
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


AWAY = {HealthState.FAILED_OVER, HealthState.RETURNING, HealthState.HOLDING}
ON_THE_WAY_BACK = AWAY - {HealthState.FAILED_OVER}
# Signals that only some states know. All states know the others.
KNOWN_TO = {
    Signal.INTERVAL_ELAPSED: {HealthState.SUSPECT},
    Signal.CALM_ELAPSED: {HealthState.HEALTHY},
    Signal.PING_ANSWERED: AWAY,
    Signal.PING_FAILED: AWAY,
    Signal.ANSWERS_SUFFICE: {HealthState.FAILED_OVER},
    Signal.BACKLOG_HOME: ON_THE_WAY_BACK,
    Signal.BACKLOG_NEAR: ON_THE_WAY_BACK,
    Signal.HOLD_ELAPSED: {HealthState.HOLDING},
    Signal.WAIT_ELAPSED: {HealthState.RETURNING},
}


def test_an_unlisted_signal_is_a_bug_and_says_so():
    unlisted = set(itertools.product(HealthState, Signal)) - set(TRANSITIONS)

    assert unlisted == {
        (state, signal) for signal, known in KNOWN_TO.items() for state in set(HealthState) - known
    }
    for state, signal in unlisted:
        with pytest.raises(KeyError):
            Health(10.0, state=state, awaits_backlog=True).observe(signal, now=0.0)


# With an interval of 10 seconds and `fail_back_pings=2`: the state, and the pings that it needs.
OVER = [(0, FAILED), (10, TIME)]
BACK = [*OVER, (20, PING), (30, PING)]
FLAP = [*BACK, (31, FAILED), (41, TIME)]
CALM_HISTORIES = {
    "one answer is not enough": ([*OVER, (20, PING)], HealthState.FAILED_OVER, 2),
    "two in a row are": (BACK, HealthState.HEALTHY, 2),
    "two are not if one between them failed": (
        [*OVER, (20, PING), (30, NO_ANSWER), (40, PING)],
        HealthState.FAILED_OVER,
        2,
    ),
    "a word by hand is, at once": ([*OVER, (11, BY_HAND)], HealthState.HEALTHY, 2),
    "a failover soon after doubles the number": (FLAP, HealthState.FAILED_OVER, 4),
    "so three are not enough": (
        [*FLAP, (50, PING), (60, PING), (70, PING)],
        HealthState.FAILED_OVER,
        4,
    ),
    "but four are": (
        [*FLAP, (50, PING), (60, PING), (70, PING), (80, PING)],
        HealthState.HEALTHY,
        4,
    ),
    "a failover after ten calm minutes does not double it": (
        [*BACK, (620, FAILED), (630, TIME)],
        HealthState.FAILED_OVER,
        2,
    ),
    "one in the last moment does": (
        [*BACK, (619.9, FAILED), (629.9, TIME)],
        HealthState.FAILED_OVER,
        4,
    ),
    "ten calm minutes halve it": ([*FLAP, (50, BY_HAND), (650, TIME)], HealthState.HEALTHY, 2),
    "not a moment earlier": ([*FLAP, (50, BY_HAND), (649.9, TIME)], HealthState.HEALTHY, 4),
    "nor below the first number": ([*FLAP, (50, BY_HAND), (1e6, TIME)], HealthState.HEALTHY, 2),
    "a suspicion that is cleared does not start the ten minutes anew": (
        [*FLAP, (50, BY_HAND), (600, FAILED), (605, SENT), (650, TIME)],
        HealthState.HEALTHY,
        2,
    ),
}


@pytest.mark.req("X-11")
@pytest.mark.parametrize(
    ("history", "state", "needed"), CALM_HISTORIES.values(), ids=CALM_HISTORIES
)
def test_an_entity_that_flaps_needs_more_answers_until_it_is_calm(history, state, needed):
    health = after(history, fail_back_pings=2)

    assert (health.state, health.pings_needed) == (state, needed)


@pytest.mark.req("X-11")
def test_the_pings_that_an_entity_needs_have_a_bound_and_halve_one_by_one():
    flaps = [(10 + each, FAILED if each % 2 else BY_HAND) for each in range(1, 20)]
    health = after(flaps, failover_seconds=0.0, fail_back_pings=3)
    assert health.pings_needed == 3 * 16
    health.observe(BY_HAND, now=100)

    halved = [(health.advance(now=100 + 600 * n), health.pings_needed)[1] for n in range(6)]
    assert halved == [48, 24, 12, 6, 3, 3]
    assert health.deadline is None


@pytest.mark.req("X-11", "F-08")
def test_by_default_the_first_answer_is_enough_however_often_it_flaps():
    flaps = [(each, FAILED if each % 2 else PING) for each in range(1, 40)]
    health = after(flaps, failover_seconds=0.0)

    assert (health.state, health.pings_needed) == (HealthState.FAILED_OVER, 1)
    assert health.observe(PING, now=40) is HealthState.HEALTHY
    assert health.deadline is None


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 4, 5, 6, 10]), st.sampled_from([SENT, FAILED, BY_HAND])),
    max_size=12,
)


@given(
    steps=STEPS,
    interval=st.sampled_from([0, 1, 5, 10]),
    pings=st.sampled_from([1, 3]),
    looks=st.sets(st.integers(0, 120)),
)
def test_how_often_somebody_looks_makes_no_difference(steps, interval, pings, looks):
    watched, unwatched, now = Health(interval, pings), Health(interval, pings), 0
    for seconds, signal in steps:
        for moment in range(now, now + seconds + 1):
            if moment in looks:
                watched.advance(now=moment)
        now += seconds
        watched.observe(signal, now=now)
        unwatched.observe(signal, now=now)

    assert watched == unwatched
