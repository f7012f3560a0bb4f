"""Node's official `@azure/service-bus` with topics, and its rule manager, which speaks AMQP.

As in test_node.py: the scenarios are in JavaScript (`node/topics.mjs`), run in one Node process,
and each becomes a test. A scenario's topic carries its name and has three subscriptions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from tests.interop.test_node import NODE, RUN_SECONDS_MAX, _node

SCRIPT = NODE / "topics.mjs"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "B-01": ("a message to a topic comes from each subscription",),
    "B-02": ("an unknown subscription is not found",),
    "B-03": ("settles every way on a subscription",),
    "B-05": ("schedules on a topic and cancels",),
    "B-06": ("accepts sessions of a subscription",),
    "B-08": (
        "a new subscription has the rule that takes everything",
        "creates rules of every kind and lists them as they are",
        "rules decide what comes, and actions what it looks like",
        "a subscription without rules takes nothing",
        "lists more rules than a page holds",
        "refuses a second rule of a name, and what is no rule",
    ),
}
NAMES = [name for group in SCENARIOS.values() for name in group]


def _entities() -> list[EntityDescription]:
    found: list[EntityDescription] = []
    for scenario in NAMES:
        topic = re.sub("[^A-Za-z]+", "-", scenario)
        found.append(TopicDescription(name=topic))
        for name in ("all", "some", "sessions"):
            path = subscription_path(topic, name)
            found.append(SubscriptionDescription(name=path, requires_session=name == "sessions"))
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The result of each scenario. All of them run for the first test that needs one."""
    node = _node()
    with Broker(topics=_entities()) as broker:
        process = subprocess.run(
            [node, str(SCRIPT)],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path_factory.mktemp("home")),
                "PAIRBUS_CONNECTION_STRING": broker.connection_string,
            },
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
    outcomes = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode:
        pytest.fail(f"node ended with {process.returncode}:\n{process.stdout}\n{process.stderr}")
    return {outcome["name"]: outcome for outcome in outcomes}


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=pytest.mark.req(number), id=name)
        for number, group in SCENARIOS.items()
        for name in group
    ],
)
def test_node_client(scenario: str, results: dict[str, dict[str, Any]]) -> None:
    outcome = results[scenario]

    assert outcome["ok"], outcome["error"]


def test_every_scenario_of_the_script_is_a_test(results: dict[str, dict[str, Any]]) -> None:
    assert set(results) == set(NAMES)
