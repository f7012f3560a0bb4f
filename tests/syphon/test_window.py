"""How long a task works and waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.window import (
    AHEAD_MAX,
    ANSWER_LATE_SECONDS,
    ANSWER_SECONDS_MAX,
    NEAR_MAX,
    RELEASE_LATE_SECONDS,
    TaskWindow,
    open_seconds,
)

NOW = 1_000.0


def begun(seconds=2.0, took=0.01, chunk=6_000, is_stoppable=False):
    window = TaskWindow(seconds, chunk=chunk, is_stoppable=is_stoppable)
    window.secondary_opened(took=took, now=NOW)
    return window


def test_a_task_with_near_namespaces_ends_soon_after_its_time():
    window = begun(took=0.0)
    window.primary_opened(took=0.01, waited=0.01, answer_seconds=0.0)
    assert window.deadline == pytest.approx(NOW + 2.01)
    assert window.primary_until == window.deadline + ANSWER_LATE_SECONDS
    assert window.secondary_until == window.primary_until + RELEASE_LATE_SECONDS
    assert window.has_time(now=NOW + 2.0)
    assert not window.has_time(now=NOW + 2.02)


def test_a_task_with_far_namespaces_gets_more_time():
    window = begun(seconds=0.5, took=1.8)  # 0.3 s away
    assert window.seconds == 3.0
    window.primary_opened(took=1.8, waited=1.8, answer_seconds=0.0)
    assert window.deadline == pytest.approx(NOW + 3.0 + 1.8)
    assert window.late_seconds == 3.6
    assert window.secondary_until == pytest.approx(window.primary_until + 1.8)


@pytest.mark.parametrize(
    ("answer_seconds", "late"), [(0.0, 1.0), (6.0, 6.0), (60.0, ANSWER_SECONDS_MAX)]
)
def test_a_primary_that_is_known_to_be_slow_gets_more_time_to_answer(answer_seconds, late):
    window = begun()
    window.primary_opened(took=0.01, waited=0.01, answer_seconds=answer_seconds)
    assert window.late_seconds == late


def test_nothing_is_sent_if_the_answer_would_come_too_late():
    window = begun()
    window.primary_opened(took=0.0, waited=0.0, answer_seconds=0.0)
    window.answered(took=1.5)
    assert window.has_time(now=NOW + 1.4)
    assert not window.has_time(now=NOW + 1.6)


def test_messages_ahead_cover_the_rest_of_the_time_at_the_pace_so_far():
    window = begun(seconds=2.0)
    assert not window.is_covered_by(2_500, taken=500, now=NOW + 0.5), "too early to tell"
    assert not window.is_covered_by(2_500, taken=12_000, now=NOW + 1.5)
    assert window.is_covered_by(2_500, taken=12_000, now=NOW + 1.7)


def test_the_wait_for_the_first_answer_does_not_count_for_the_pace():
    window = begun(seconds=3.0, took=1.8)  # 0.3 s away: the first answer comes after 0.6 s
    assert not window.is_covered_by(4_000, taken=6_000, now=NOW + 1.9), "6,000 in 1.3 s"
    assert window.is_covered_by(4_000, taken=6_000, now=NOW + 2.1)


@pytest.mark.req("S-03")
@pytest.mark.parametrize(
    ("cycle", "chunk", "size"),
    [
        (0.0, 6_000, 1_000),
        (0.06, 6_000, 2_500),
        (0.1, 6_000, 3_500),
        (0.5, 6_000, 6_000),
        (60.0, 6_000, 6_000),
        (0.2, 1_500, 1_500),
        (0.6, 100, 100),
    ],
)
def test_what_is_sent_ahead_of_the_settlements_follows_the_distance(cycle, chunk, size):
    window = begun(chunk=chunk)
    window.settled(took=cycle)
    assert window.size == size


def test_a_busy_namespace_is_not_taken_for_one_that_is_far_away():
    window = begun()
    window.settled(took=0.05)
    window.settled(took=3.0)
    assert window.size == NEAR_MAX + 1_250


def test_before_the_first_answer_the_time_to_open_the_connection_shows_the_distance():
    assert begun(took=0.006).size == NEAR_MAX + 50
    assert begun(took=0.6).size == NEAR_MAX + 5_000  # 0.1 s away


def test_more_is_received_ahead_if_the_secondary_is_far_away():
    assert begun(took=0.006).ahead == 2_525
    assert begun(took=0.3).ahead == 3_750
    assert begun(took=60.0).ahead == AHEAD_MAX


@given(
    chunk=st.integers(1, 10_000),
    opening=st.floats(0, 60),
    cycles=st.lists(st.floats(0, 1e6)),
)
def test_never_more_than_a_chunk_is_sent_ahead_of_the_settlements(chunk, opening, cycles):
    window = begun(took=opening, chunk=chunk)
    for cycle in cycles:
        window.settled(took=cycle)
        assert 1 <= window.size <= chunk


def test_every_fourth_futile_round_gives_namespaces_more_time_to_accept_a_connection():
    assert [open_seconds(rounds) for rounds in range(10)] == [3, 3, 3, 3, 15, 3, 3, 3, 15, 3]


@pytest.mark.parametrize(
    ("took", "expected", "stoppable"),
    [
        (0.0, 1.75, 1.75),
        (0.2, 2.75, 2.75),
        (0.6, 3.0, 4.75),
        (1.8, 3.0, 10.0),
        (15.0, 15.0, 15.0),
    ],
)
def test_a_far_task_works_longer_most_of_all_if_it_notices_a_stop(took, expected, stoppable):
    assert begun(seconds=1.75, took=took).seconds == pytest.approx(expected)
    window = begun(seconds=1.75, took=took, is_stoppable=True)
    assert window.seconds == pytest.approx(stoppable)


def test_only_a_far_task_waits_for_more_messages_before_it_sends_a_few():
    assert begun(took=0.2).gather_seconds == 0.0
    assert begun(took=1.8).gather_seconds == pytest.approx(0.025)
