"""Node's official `@azure/service-bus`, unmodified, against the broker: the main path.

The scenarios are written in JavaScript (`node/scenarios.mjs`) and run in one Node process, several
at a time; here each becomes a test. A scenario's queue carries its name; its settings stand below.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker, QueueDescription

NODE = Path(__file__).parent / "node"
SCRIPT = NODE / "scenarios.mjs"
NODE_VERSION_MIN = 18
RUN_SECONDS_MAX = 150

# requirement -> scenario -> settings of its queue
SCENARIOS: dict[str, dict[str, dict[str, Any]]] = {
    "X-08": {
        "sends and receives a message with all its properties": {},
        "bodies of every kind come back as they were": {},
        "works over TLS": {},
        "works over WebSocket": {},
    },
    "B-01": {
        "many sends in flight all arrive once": {},
        "a subscription of handlers gets each message once": {},
        "iterates over messages": {},
        "an empty receive ends in time and the link stays usable": {},
    },
    "B-02": {
        "an unknown queue is not found": {},
        "a wrong key is unauthorized": {},
    },
    "B-03": {
        "completes": {},
        "abandons with changed properties and gets it again": {},
        "defers and receives by sequence number": {},
        "dead-letters with a reason and receives from the dead-letter queue": {},
        "receives and deletes": {},
        "renews a message lock": {},
        "a lost lock is told and the message comes again": {
            "lock_duration": timedelta(seconds=1),
        },
        "settles by lock token after the link is gone": {},
        "peeks without locking and goes on where it stopped": {},
        "deletes messages in bulk": {},
    },
    "B-04": {
        "too many deliveries end in the dead-letter queue": {"max_delivery_count": 2},
        "expired messages are dead-lettered where the queue says so": {
            "dead_lettering_on_message_expiration": True,
        },
    },
    "B-05": {
        "schedules, peeks and cancels": {},
        "a scheduled message appears on time": {},
    },
    "B-06": {
        "accepts a named session and receives in order": {"requires_session": True},
        "accepts the next session, and times out when there is none": {"requires_session": True},
        "waits for a session that appears later": {"requires_session": True},
        "a session is locked for one receiver until it closes": {"requires_session": True},
        "session state is kept and cleared": {"requires_session": True},
        "renews a session lock, and tells of a lost one": {
            "requires_session": True,
            "lock_duration": timedelta(seconds=2),
        },
        "settles every way inside a session": {"requires_session": True},
        "a queue with sessions refuses what has none": {"requires_session": True},
    },
    "B-07": {
        "duplicates inside the window vanish": {"requires_duplicate_detection": True},
    },
    "B-09": {
        "a message above the limit is refused and the sender goes on": {},
    },
    "B-10": {
        "sends a list at once and keeps its order": {},
        "fills a batch up to the limit that the queue states": {},
    },
}
SETTINGS = {name: settings for group in SCENARIOS.values() for name, settings in group.items()}


@functools.cache
def _node() -> str:
    """The path of Node. Without Node the test is skipped, but in CI it fails."""
    node = shutil.which("node")
    missing = None
    if node is None:
        missing = "there is no `node` on the PATH"
    else:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
        if int(version.stdout.lstrip("v").split(".")[0]) < NODE_VERSION_MIN:
            missing = f"Node {version.stdout.strip()} is older than {NODE_VERSION_MIN}"
        elif not (NODE / "node_modules").is_dir():
            missing = f"its packages are not installed: run `npm ci` in {NODE}"
    if missing is None:
        assert node is not None
        return node
    if os.environ.get("CI"):
        pytest.fail(f"the Node tests are required here, but {missing}")
    pytest.skip(missing)


def _queue(scenario: str) -> str:
    return re.sub("[^A-Za-z]+", "-", scenario)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The result of each scenario. All of them run for the first test that needs one."""
    node = _node()
    queues = [
        QueueDescription(name=_queue(name), **settings) for name, settings in SETTINGS.items()
    ]
    with Broker(queues=queues) as broker:
        plain = broker.connection_string
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path_factory.mktemp("home")),
            "PAIRBUS_CONNECTION_STRING": plain,
            "PAIRBUS_TLS_CONNECTION_STRING": plain.replace("UseDevelopmentEmulator=true", ""),
            "PAIRBUS_CA_FILE": str(broker.ca_file),
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
    assert set(results) == set(SETTINGS)
