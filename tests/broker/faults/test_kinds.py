"""Descriptions of faults: what they check, and what they say."""

from dataclasses import fields

import pytest

from pairbus.broker.faults import (
    KINDS,
    ClockJump,
    DiskFull,
    Error,
    Hang,
    Restart,
    Slow,
    Throttle,
    Unreachable,
)
from pairbus.errors import ConfigError
from tests.broker.faults.examples import EXAMPLES

pytestmark = pytest.mark.req("B-13")


def test_every_kind_has_an_example_here():
    assert {fault.kind for fault in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_field_has_a_check(kind):
    assert all("check" in each.metadata for each in fields(kind))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Throttle(rate=1.5), "throttle: rate is 1.5, but must be a number from 0 to 1"),
        (lambda: Throttle(rate=float("nan")), "rate is nan"),
        (lambda: Throttle(rate="1"), "rate is '1'"),
        (lambda: Throttle(rate=True), "rate is True"),
        (lambda: Hang(seconds=0), "seconds is 0, but must be a number from 0.001 to 2_592_000"),
        (lambda: Hang(seconds=-1), "seconds is -1"),
        (lambda: Hang(seed=1.5), "seed is 1.5, but must be a whole number from 0"),
        (lambda: Hang(""), "entity is ''"),
        (lambda: Hang("/"), "entity is '/'"),
        (lambda: Hang(7), "entity is 7, but must be the path of an entity"),
        (lambda: Unreachable(mode="loud"), "mode is 'loud', but must be one of refuse, drop"),
        (lambda: Error(on=[]), "on is [], but must be one or more of send, receive"),
        (lambda: Error(on=["send", "fly"]), "on is ['send', 'fly']"),
        (lambda: Error(on=7), "on is 7"),
        (lambda: Error(condition=""), "condition is ''"),
        (lambda: Error(times=0), "times is 0, but must be a whole number from 1"),
        (lambda: Error(probability=-0.1), "probability is -0.1"),
        (lambda: Slow(), "slow: set latency_seconds, bytes_per_second, or both"),
        (lambda: Slow(bytes_per_second=0), "bytes_per_second is 0"),
        (lambda: Restart(seconds=None), "restart: seconds is None"),
        (lambda: ClockJump(), "clock_jump: set offset_seconds"),
        (lambda: DiskFull("orders"), "disk_full hits the whole namespace"),
        (lambda: ClockJump("orders", offset_seconds=1), "leave out the entity 'orders'"),
    ],
)
def test_an_impossible_setting_is_refused_with_what_would_be_right(make, words):
    with pytest.raises(ConfigError) as refused:
        make()

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Unreachable(seconds=30), "unreachable on all entities mode=refuse, for 30 s"),
        (
            Throttle("orders", rate=0.2, on=("send", "receive")),
            "throttle on orders rate=0.2 on=send,receive, until it is cleared",
        ),
        (
            Slow(latency_seconds=0.25),
            "slow on all entities latency-seconds=0.25 distribution=constant, until it is cleared",
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_text_of_a_fault_is_for_people(fault, text):
    assert str(fault) == text
