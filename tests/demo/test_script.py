"""The demo's script, with time and facts by hand: no process, no sleep."""

from dataclasses import replace
from random import Random

import pytest

from pairbus.demo.script import (
    ACCOUNT_SECONDS_MAX,
    COUNT_SECONDS_MAX,
    FAILOVER_SECONDS_MAX,
    RETURN_SECONDS_MAX,
    STOP_SECONDS_MAX,
    TELL_SECONDS_MAX,
    WHOLE_SECONDS_MAX,
    Action,
    Facts,
    Pace,
    Scene,
    Script,
)

PACE = Pace(healthy=10, outage=12, after=3)
WELL = Facts(
    entities=4,
    failed_over=0,
    primary_pid=4711,
    is_primary_ready=True,
    is_syphon_ready=True,
    sent=100,
    diverted=0,
    raised=0,
    received=90,
    moved=0,
    is_sending=True,
    left=0,
)
DOWN = replace(WELL, failed_over=4, is_primary_ready=False, diverted=50, backlog=50, left=None)
BACK = replace(WELL, diverted=50, moved=50, received=100)


class Stage:
    """A script, its time, and all that it has said and done."""

    def __init__(self, pace=PACE):
        self.now = 1000.0
        self.script = Script(pace, now=self.now)
        self.texts = []
        self.actions = []

    def after(self, seconds, facts, *, is_counted=True):
        self.now += seconds
        if is_counted:
            facts = replace(facts, counted_at=self.now - 0.01)
        for cue in self.script.advance(facts, now=self.now):
            self.texts.append(cue.text)
            if cue.action:
                self.actions.append(cue.action)
        return self.script.scene

    def until(self, scene):
        """Plays it as it should be, up to the beginning of a scene."""
        way = [
            (Scene.FAILING_OVER, 10, WELL),
            (Scene.OUTAGE, 1, DOWN),
            (Scene.RETURNING, 12, DOWN),
            (Scene.DRAINING, 2, BACK),
            (Scene.STOPPING, 3, BACK),
            (Scene.COUNTING, 1, replace(BACK, is_sending=False)),
            (Scene.OVER, 1, replace(BACK, is_sending=False)),
        ]
        for reached, seconds, facts in way:
            assert self.after(seconds, facts) is reached
            if reached is scene:
                return self
        raise AssertionError(scene)


def test_it_goes_from_well_to_an_account_in_the_order_of_the_story():
    stage = Stage().until(Scene.OVER)

    assert stage.actions == [Action.KILL, Action.RESTART, Action.STOP_SENDING, Action.END]
    assert not stage.script.failure
    story = "\n".join(stage.texts)
    words = [
        "kill -9 4711",
        "failed over",
        "starts again",
        "A ping found it",
        "brought 50 home",
    ]
    places = [story.index(word) for word in [*words, "nothing can arrive any more"]]
    assert places == sorted(places)
    assert stage.after(100, DOWN) is Scene.OVER  # and nothing more


def test_nothing_is_killed_before_messages_arrive():
    stage = Stage()

    assert stage.after(30, replace(WELL, received=0)) is Scene.HEALTHY
    assert stage.after(1, WELL) is Scene.FAILING_OVER


def test_the_syphon_is_told_of_once_when_it_is_ready():
    stage = Stage()
    stage.after(1, replace(WELL, is_syphon_ready=False))
    stage.after(1, WELL)
    stage.after(1, WELL)

    assert [text for text in stage.texts if "Spark" in text] == [stage.texts[0]]


def test_the_backlog_is_told_of_once_when_there_is_one():
    stage = Stage().until(Scene.OUTAGE)
    stage.after(8, replace(DOWN, backlog=0))
    stage.after(1, DOWN)
    stage.after(1, DOWN)

    assert len([text for text in stage.texts if "50 messages wait on the secondary" in text]) == 1


def test_the_primary_is_not_found_before_it_is_up():
    stage = Stage().until(Scene.RETURNING)

    assert stage.after(1, replace(BACK, is_primary_ready=False)) is Scene.RETURNING
    assert stage.after(1, replace(BACK, failed_over=1)) is Scene.RETURNING
    assert stage.after(1, BACK) is Scene.DRAINING


def test_an_old_count_does_not_empty_the_backlog():
    stage = Stage().until(Scene.DRAINING)

    assert stage.after(5, BACK, is_counted=False) is Scene.DRAINING
    assert stage.after(1, BACK) is Scene.STOPPING


def test_the_syphon_has_a_while_to_say_what_it_has_brought_home():
    stage = Stage().until(Scene.DRAINING)
    silent = replace(BACK, moved=0)
    stage.after(1, replace(silent, backlog=50))

    assert stage.after(PACE.after, silent) is Scene.DRAINING
    assert stage.after(TELL_SECONDS_MAX, silent) is Scene.STOPPING


def test_it_is_not_drained_while_an_entity_is_failed_over_again():
    stage = Stage().until(Scene.DRAINING)

    assert stage.after(20, replace(BACK, failed_over=1)) is Scene.DRAINING


def test_the_account_is_closed_only_when_both_namespaces_are_empty():
    stage = Stage().until(Scene.COUNTING)
    quiet = replace(BACK, is_sending=False)

    for facts in (replace(quiet, left=1), replace(quiet, left=None), replace(quiet, backlog=1)):
        assert stage.after(1, facts) is Scene.COUNTING
    assert stage.after(1, quiet, is_counted=False) is Scene.COUNTING
    assert stage.after(1, quiet) is Scene.OVER
    assert not stage.script.failure


def test_what_does_not_arrive_is_waited_for_with_a_bound_and_told():
    stage = Stage().until(Scene.COUNTING)
    stuck = replace(BACK, is_sending=False, left=7, backlog=2)

    assert stage.after(COUNT_SECONDS_MAX - 1, stuck) is Scene.COUNTING
    assert stage.after(1, stuck) is Scene.OVER
    assert "2 messages are left in the backlog and 7 on the primary" in stage.texts[-1]
    assert stage.script.failure


def test_who_still_receives_has_more_time_and_not_without_end():
    stage = Stage().until(Scene.COUNTING)
    slow = replace(BACK, is_sending=False, left=7)
    began = stage.now

    while stage.after(1, replace(slow, received=slow.received + int(stage.now))) is Scene.COUNTING:
        pass

    assert stage.now - began == ACCOUNT_SECONDS_MAX


@pytest.mark.parametrize(
    ("scene", "seconds", "facts", "words"),
    [
        (Scene.FAILING_OVER, FAILOVER_SECONDS_MAX, replace(DOWN, failed_over=3), "only 3 of 4"),
        (Scene.RETURNING, RETURN_SECONDS_MAX, DOWN, "the primary is not up"),
        (
            Scene.RETURNING,
            RETURN_SECONDS_MAX,
            replace(DOWN, is_primary_ready=True),
            "no ping has found it",
        ),
        (Scene.DRAINING, WHOLE_SECONDS_MAX, replace(BACK, backlog=9), "it is still draining"),
        (
            Scene.DRAINING,
            WHOLE_SECONDS_MAX,
            replace(BACK, backlog=9, is_syphon_ready=False),
            "still draining, and Spark is not up",
        ),
    ],
)
def test_what_does_not_happen_in_time_is_said_and_the_account_is_made(scene, seconds, facts, words):
    stage = Stage().until(scene)

    assert stage.after(seconds, facts) is Scene.STOPPING
    assert words in stage.script.failure
    assert words in stage.texts[-2]
    assert stage.actions[-1] is Action.STOP_SENDING


def test_a_send_that_has_failed_is_told():
    stage = Stage().until(Scene.FAILING_OVER)
    stage.after(1, replace(DOWN, raised=2))

    assert "Calls that failed, and were repeated: 2." in stage.texts[-1]


def test_a_send_that_does_not_end_does_not_hold_up_the_account():
    stage = Stage().until(Scene.STOPPING)

    assert stage.after(STOP_SECONDS_MAX - 1, BACK) is Scene.STOPPING
    assert stage.after(1, BACK) is Scene.COUNTING
    assert "a send has not ended" in stage.script.failure


def test_it_ends_within_two_minutes_whatever_happens():
    assert WHOLE_SECONDS_MAX + STOP_SECONDS_MAX + ACCOUNT_SECONDS_MAX < 120


def test_the_seed_decides_when_the_kill_comes():
    paces = {Pace.of(10, Random(seed)) for seed in (1, 1, 2)}

    assert len(paces) == 2
    assert all(8 <= pace.healthy <= 12 for pace in paces)
