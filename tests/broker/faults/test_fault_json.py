"""Faults as JSON, both ways."""

import json
from random import Random

import pytest

from pairbus.broker.faults import (
    DiskFull,
    Hang,
    Throttle,
)
from pairbus.broker.faults.fault_json import from_json, running_to_json, script_from_json, to_json
from pairbus.broker.faults.schedule import FaultSchedule
from pairbus.errors import ConfigError
from tests.broker.faults.examples import EXAMPLES

pytestmark = pytest.mark.req("B-13")


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
        ({"kind": "slow", "latency_seconds": 1}, "slow has no setting 'latency_seconds', but"),
        ({"kind": "hang", "loud": 1}, "hang has no setting 'loud', but entity, seconds, seed"),
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
