"""Node's official `ServiceBusAdministrationClient`, unmodified, against the broker.

The scenarios are written in JavaScript (`node/admin.mjs`) and run in one Node process; here each
becomes a test.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from pairbus.broker import Broker
from tests.interop.test_node import NODE, RUN_SECONDS_MAX, _node

SCRIPT = NODE / "admin.mjs"

SCENARIOS = {
    "a queue has the defaults of the service": "B-02",
    "a queue is made, changed and removed": "B-02",
    "names with slashes work everywhere": "B-02",
    "forwarding is set, shown and taken back": "B-02",
    "authorization rules come back as they were": "B-02",
    "a topic and its subscriptions are made, changed and removed": "B-02",
    "a subscription may bring its first rule": "B-08",
    "rules of every kind come back as they were": "B-08",
    "lists come page by page": "B-02",
    "counts and times are true": "B-02",
    "what is refused is refused with the right error": "B-02",
    "the namespace tells about itself": "B-02",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The result of each scenario. All of them run for the first test that needs one."""
    node = _node()
    with Broker() as broker:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path_factory.mktemp("home")),
            "PAIRBUS_CONNECTION_STRING": broker.connection_string,
            "NODE_EXTRA_CA_CERTS": str(broker.ca_file),
        }
        process = subprocess.run(
            [node, str(SCRIPT)],
            env=environment,
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
    [pytest.param(name, marks=pytest.mark.req(req), id=name) for name, req in SCENARIOS.items()],
)
def test_node_administration(scenario: str, results: dict[str, dict[str, Any]]) -> None:
    outcome = results[scenario]

    assert outcome["ok"], outcome["error"]


def test_every_scenario_of_the_script_is_a_test(results: dict[str, dict[str, Any]]) -> None:
    assert set(results) == set(SCENARIOS)
