"""The demo's script with given times and facts: no process, no sleep."""

from dataclasses import replace
from random import Random

import pytest

from pairbus.demo.script import (
    COUNTING_SECONDS_MAX,
    FAILOVER_SECONDS_MAX,
    IDLE_SECONDS_MAX,
    REPORT_SECONDS_MAX,
    RETURN_SECONDS_MAX,
    SENDING_SECONDS_MAX,
    STOPPING_SECONDS_MAX,
    Action,
    DemoFacts,
    Phase,
    PhaseSeconds,
    Script,
)

TIMING = PhaseSeconds(healthy=10, outage=12, after=3)
WELL = DemoFacts(
    entities=4,
    failed_over=0,
    primary_pid=4711,
    is_primary_ready=True,
    is_syphon_ready=True,
    sent=100,
    diverted=0,
    raised=0,
    received=90,
    brought_home=0,
    is_sending=True,
    left=0,
)
DOWN = replace(WELL, failed_over=4, is_primary_ready=False, diverted=50, backlog=50, left=None)
BACK = replace(WELL, diverted=50, brought_home=50, received=100)


class Stage:
    """A script, its clock, and all of its steps."""

    def __init__(self, timing=TIMING):
        self.now = 1000.0
        self.script = Script(timing, now=self.now)
        self.texts = []
        self.actions = []

    def after(self, seconds, facts, *, is_counted=True):
        self.now += seconds
        if is_counted:
            facts = replace(facts, counted_at=self.now - 0.01)
        for step in self.script.advance(facts, now=self.now):
            self.texts.append(step.text)
            if step.action:
                self.actions.append(step.action)
        return self.script.phase

    def until(self, phase):
        """Advances as in a good run, up to the start of a phase."""
        way = [
            (Phase.FAILING_OVER, 10, WELL),
            (Phase.OUTAGE, 1, DOWN),
            (Phase.RETURNING, 12, DOWN),
            (Phase.DRAINING, 2, BACK),
            (Phase.STOPPING, 3, BACK),
            (Phase.COUNTING, 1, replace(BACK, is_sending=False)),
            (Phase.OVER, 1, replace(BACK, is_sending=False)),
        ]
        for reached, seconds, facts in way:
            assert self.after(seconds, facts) is reached
            if reached is phase:
                return self
        raise AssertionError(phase)


def test_a_good_run_has_all_phases_in_order():
    stage = Stage().until(Phase.OVER)

    assert stage.actions == [Action.KILL, Action.RESTART, Action.STOP_SENDING, Action.END]
    assert not stage.script.failure
    story = "\n".join(stage.texts)
    words = [
        "kill -9 4711",
        "failed over",
        "starts again",
        "A ping reached it",
        "brought 50 home",
    ]
    places = [story.index(word) for word in [*words, "nothing more can arrive"]]
    assert places == sorted(places)
    assert stage.after(100, DOWN) is Phase.OVER  # and nothing more


def test_nothing_is_killed_before_messages_arrive():
    stage = Stage()

    assert stage.after(30, replace(WELL, received=0)) is Phase.HEALTHY
    assert stage.after(1, WELL) is Phase.FAILING_OVER


def test_the_syphon_is_reported_once_when_it_is_ready():
    stage = Stage()
    stage.after(1, replace(WELL, is_syphon_ready=False))
    stage.after(1, WELL)
    stage.after(1, WELL)

    assert [text for text in stage.texts if "Spark" in text] == [stage.texts[0]]


def test_the_backlog_is_reported_once_when_there_is_one():
    stage = Stage().until(Phase.OUTAGE)
    stage.after(8, replace(DOWN, backlog=0))
    stage.after(1, DOWN)
    stage.after(1, DOWN)

    assert len([text for text in stage.texts if "50 messages wait on the secondary" in text]) == 1


def test_the_primary_must_be_up_before_it_counts_as_reached():
    stage = Stage().until(Phase.RETURNING)

    assert stage.after(1, replace(BACK, is_primary_ready=False)) is Phase.RETURNING
    assert stage.after(1, replace(BACK, failed_over=1)) is Phase.RETURNING
    assert stage.after(1, BACK) is Phase.DRAINING


def test_an_old_count_does_not_show_an_empty_backlog():
    stage = Stage().until(Phase.DRAINING)

    assert stage.after(5, BACK, is_counted=False) is Phase.DRAINING
    assert stage.after(1, BACK) is Phase.STOPPING


def test_the_syphon_has_some_time_to_report():
    stage = Stage().until(Phase.DRAINING)
    silent = replace(BACK, brought_home=0)
    stage.after(1, replace(silent, backlog=50))

    assert stage.after(TIMING.after, silent) is Phase.DRAINING
    assert stage.after(REPORT_SECONDS_MAX, silent) is Phase.STOPPING


def test_draining_does_not_end_while_an_entity_is_failed_over():
    stage = Stage().until(Phase.DRAINING)

    assert stage.after(20, replace(BACK, failed_over=1)) is Phase.DRAINING


def test_counting_ends_when_both_namespaces_are_empty():
    stage = Stage().until(Phase.COUNTING)
    quiet = replace(BACK, is_sending=False)

    for facts in (replace(quiet, left=1), replace(quiet, left=None), replace(quiet, backlog=1)):
        assert stage.after(1, facts) is Phase.COUNTING
    assert stage.after(1, quiet, is_counted=False) is Phase.COUNTING
    assert stage.after(1, quiet) is Phase.OVER
    assert not stage.script.failure


def test_messages_that_do_not_arrive_end_the_counting_with_a_failure():
    stage = Stage().until(Phase.COUNTING)
    stuck = replace(BACK, is_sending=False, left=7, backlog=2)

    assert stage.after(IDLE_SECONDS_MAX - 1, stuck) is Phase.COUNTING
    assert stage.after(1, stuck) is Phase.OVER
    assert "2 messages are left in the backlog and 7 on the primary" in stage.texts[-1]
    assert stage.script.failure


def test_counting_has_a_limit_even_while_messages_arrive():
    stage = Stage().until(Phase.COUNTING)
    slow = replace(BACK, is_sending=False, left=7)
    began = stage.now

    while stage.after(1, replace(slow, received=slow.received + int(stage.now))) is Phase.COUNTING:
        pass

    assert stage.now - began == COUNTING_SECONDS_MAX


@pytest.mark.parametrize(
    ("phase", "seconds", "facts", "words"),
    [
        (Phase.FAILING_OVER, FAILOVER_SECONDS_MAX, replace(DOWN, failed_over=3), "only 3 of 4"),
        (Phase.RETURNING, RETURN_SECONDS_MAX, DOWN, "the primary is not up"),
        (
            Phase.RETURNING,
            RETURN_SECONDS_MAX,
            replace(DOWN, is_primary_ready=True),
            "no ping has reached it",
        ),
        (Phase.DRAINING, SENDING_SECONDS_MAX, replace(BACK, backlog=9), "still draining"),
        (
            Phase.DRAINING,
            SENDING_SECONDS_MAX,
            replace(BACK, backlog=9, is_syphon_ready=False),
            ", and Spark is not up",
        ),
    ],
)
def test_a_phase_that_takes_too_long_is_reported_and_counting_starts(phase, seconds, facts, words):
    stage = Stage().until(phase)

    assert stage.after(seconds, facts) is Phase.STOPPING
    assert words in stage.script.failure
    assert words in stage.texts[-2]
    assert stage.actions[-1] is Action.STOP_SENDING


def test_failed_sends_are_reported():
    stage = Stage().until(Phase.FAILING_OVER)
    stage.after(1, replace(DOWN, raised=2))

    assert "Sends that failed and were repeated: 2." in stage.texts[-1]


def test_a_send_that_does_not_end_does_not_delay_counting():
    stage = Stage().until(Phase.STOPPING)

    assert stage.after(STOPPING_SECONDS_MAX - 1, BACK) is Phase.STOPPING
    assert stage.after(1, BACK) is Phase.COUNTING
    assert "a send has not ended" in stage.script.failure


def test_it_ends_within_two_minutes_whatever_happens():
    assert SENDING_SECONDS_MAX + STOPPING_SECONDS_MAX + COUNTING_SECONDS_MAX < 120


def test_the_seed_decides_when_the_kill_comes():
    timings = {PhaseSeconds.random(10, Random(seed)) for seed in (1, 1, 2)}

    assert len(timings) == 2
    assert all(8 <= timing.healthy <= 12 for timing in timings)
