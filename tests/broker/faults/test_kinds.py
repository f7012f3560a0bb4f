"""Descriptions of faults: what they check, and what they say."""

import json
from dataclasses import fields
from random import Random

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
from pairbus.broker.faults.fault_json import from_json, running_to_json, script_from_json, to_json
from pairbus.broker.faults.schedule import FaultSchedule
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


# -- as JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", EXAMPLES, ids=lambda fault: fault.kind)
def test_a_fault_survives_json(fault):
    assert from_json(json.loads(json.dumps(to_json(fault)))) == fault


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "a fault is a JSON object"),
        ({}, "kind is None, but must be one of unreachable, hang"),
        ({"kind": "flood"}, "kind is 'flood'"),
        ({"kind": []}, "kind is []"),
        ({"kind": "slow", "latencySeconds": -1}, "slow: latencySeconds is -1, but must be"),
        ({"kind": "slow", "latency_seconds": 1}, "slow has no setting 'latency_seconds'; it has"),
        ({"kind": "hang", "loud": 1}, "hang has no setting 'loud'; it has entity, seconds, seed"),
        ({"kind": "throttle", "rate": 2}, "rate is 2"),
        ({"kind": "x" * 1000}, "..."),
    ],
)
def test_json_that_is_not_a_fault_is_refused(value, words):
    with pytest.raises(ConfigError) as refused:
        from_json(value)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("hang", "a script is a JSON list"),
        ([{"kind": "hang"}], "entry 0 of the script needs 'at'"),
        ([{"at": 0, "kind": "hang"}, 7], "entry 1 of the script needs 'at'"),
        ([{"at": "soon", "kind": "hang"}], "'at' is 'soon', not seconds"),
        ([{"at": True, "kind": "hang"}], "'at' is True"),
        ([{"at": 0, "kind": "sleep"}], "kind is 'sleep'"),
    ],
)
def test_json_that_is_not_a_script_is_refused(value, words):
    with pytest.raises(ConfigError) as refused:
        script_from_json(value)

    assert words in str(refused.value)


def test_a_start_beyond_all_numbers_is_refused_like_any_other():
    [far] = script_from_json([{"at": 10**400, "kind": "hang"}])

    with pytest.raises(ConfigError, match="must be a number"):
        FaultSchedule(Random(1)).plan([far], seed=None, now=0.0)


def test_a_script_is_read_from_json():
    script = [{"at": 0, "kind": "hang", "seconds": 5}, {"at": 2.5, "kind": "disk_full"}]

    assert script_from_json(script) == [(0.0, Hang(seconds=5)), (2.5, DiskFull())]


def test_a_listed_fault_says_all_that_is_needed_to_do_it_again():
    schedule = FaultSchedule(Random(1))
    [entry] = schedule.plan([(60, Throttle("Orders", seconds=30))], seed=7, now=0.0)

    assert running_to_json(entry) == {
        "id": 1,
        "kind": "throttle",
        "entity": "Orders",
        "seconds": 30,
        "rate": 0.0,
        "on": ["send", "management", "manage"],
        "seed": entry.seed,
        "state": "planned",
        "startsAt": "1970-01-01T00:01:00.000Z",
        "endsAt": "1970-01-01T00:01:30.000Z",
        "hits": 0,
    }
