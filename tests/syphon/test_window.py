"""How long a task works and waits."""

import pytest

from pairbus.syphon.window import (
    ANSWER_LATE_SECONDS,
    ANSWER_SECONDS_MAX,
    EMPTY_SECONDS,
    RELEASE_LATE_SECONDS,
    Pace,
    opening,
)

NOW = 1_000.0


def begun(seconds=2.0, took=0.01):
    pace = Pace(seconds)
    pace.opened(took=took, now=NOW)
    return pace


def test_where_all_are_near_a_task_ends_soon_after_its_time():
    pace = begun()
    pace.reached(took=0.01, patience=0.0)
    assert pace.empty == EMPTY_SECONDS
    assert pace.deadline == pytest.approx(NOW + 2.01)
    assert pace.home_until == pace.deadline + ANSWER_LATE_SECONDS
    assert pace.backlog_until == pace.home_until + RELEASE_LATE_SECONDS
    assert pace.has_time(now=NOW + 2.0)
    assert not pace.has_time(now=NOW + 2.02)


def test_a_task_is_given_the_time_that_the_way_takes():
    pace = begun(seconds=0.5, took=1.8)  # 0.3 s away
    assert pace.seconds == 1.8
    assert pace.empty == pytest.approx(0.9)
    pace.reached(took=1.8, patience=0.0)
    assert pace.deadline == pytest.approx(NOW + 1.8 + 1.8)
    assert pace.late == 3.6
    assert pace.backlog_until == pytest.approx(pace.home_until + 1.8)


@pytest.mark.parametrize(("patience", "late"), [(0.0, 1.0), (6.0, 6.0), (60.0, ANSWER_SECONDS_MAX)])
def test_a_primary_that_is_known_to_be_slow_is_waited_for(patience, late):
    pace = begun()
    pace.reached(took=0.01, patience=patience)
    assert pace.late == late


def test_nothing_is_sent_whose_answer_would_come_too_late():
    pace = begun()
    pace.reached(took=0.0, patience=0.0)
    pace.answered(took=1.5)
    assert pace.has_time(now=NOW + 1.4)
    assert not pace.has_time(now=NOW + 1.6)


def test_no_more_is_asked_for_once_there_is_enough_for_the_time_that_is_left():
    pace = begun(seconds=2.0)
    assert not pace.is_enough(2_500, of=500, now=NOW + 0.5), "too early to tell"
    assert not pace.is_enough(2_500, of=12_000, now=NOW + 1.5)
    assert pace.is_enough(2_500, of=12_000, now=NOW + 1.7)


def test_namespaces_have_little_time_to_let_a_task_in_and_now_and_then_a_lot():
    assert [opening(rounds) for rounds in range(10)] == [3, 3, 3, 3, 15, 3, 3, 3, 15, 3]
