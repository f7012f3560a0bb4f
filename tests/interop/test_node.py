"""Node's official `@azure/service-bus`, unmodified, against the broker.

The scenarios are written in JavaScript, in three scripts of `node/`: queues, topics with the rule
manager, which speaks AMQP, and administration. A script runs in one Node process, several scenarios
at a time; here each becomes a test. A scenario's queue or topic carries its name.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker, QueueDescription
from pairbus.broker.entities.descriptions import (
    EntityDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)

NODE = Path(__file__).parent / "node"
NODE_VERSION_MIN = 18
RUN_SECONDS_MAX = 150

# requirement -> scenario -> settings of its queue
QUEUES: dict[str, dict[str, dict[str, Any]]] = {
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
        "a lost lock is an error and the message comes again": {
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

# requirement -> scenarios
TOPICS: dict[str, tuple[str, ...]] = {
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

ADMINISTRATION: dict[str, tuple[str, ...]] = {
    "B-02": (
        "a queue has the defaults of the service",
        "a queue is made, changed and removed",
        "names with slashes work everywhere",
        "forwarding is set, shown and taken back",
        "authorization rules come back as they were",
        "a topic and its subscriptions are made, changed and removed",
        "lists come page by page",
        "counts and times are true",
        "what is refused is refused with the right error",
        "the namespace tells about itself",
    ),
    "B-08": (
        "a subscription may bring its first rule",
        "rules of every kind come back as they were",
    ),
}

SCRIPTS = {"scenarios": QUEUES, "topics": TOPICS, "admin": ADMINISTRATION}
SCENARIOS = [
    pytest.param(script, name, marks=pytest.mark.req(number), id=name)
    for script, by_requirement in SCRIPTS.items()
    for number, names in by_requirement.items()
    for name in names
]


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


def _name(scenario: str) -> str:
    return re.sub("[^A-Za-z]+", "-", scenario)


def _queues() -> list[QueueDescription]:
    groups = QUEUES.values()
    return [QueueDescription(name=_name(n), **more) for each in groups for n, more in each.items()]


def _topics() -> list[EntityDescription]:
    """Each has three subscriptions."""
    found: list[EntityDescription] = []
    for scenario in (scenario for group in TOPICS.values() for scenario in group):
        topic = _name(scenario)
        found.append(TopicDescription(name=topic))
        for name in ("all", "some", "sessions"):
            path = subscription_path(topic, name)
            found.append(SubscriptionDescription(name=path, requires_session=name == "sessions"))
    return found


Results = Callable[[str], dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The result of each scenario of a script. All run for the first test that needs one."""
    node = _node()

    @functools.cache
    def run(script: str) -> dict[str, dict[str, Any]]:
        queues = _queues() if script == "scenarios" else []
        topics = _topics() if script == "topics" else []
        with Broker(queues=queues, topics=topics) as broker:
            plain = broker.connection_string
            process = subprocess.run(
                [node, str(NODE / f"{script}.mjs")],
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(tmp_path_factory.mktemp("home")),
                    "PAIRBUS_CONNECTION_STRING": plain,
                    "PAIRBUS_TLS_CONNECTION_STRING": plain.replace(
                        "UseDevelopmentEmulator=true", ""
                    ),
                    "PAIRBUS_CA_FILE": str(broker.ca_file),
                    "NODE_EXTRA_CA_CERTS": str(broker.ca_file),
                },
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS_MAX,
                check=False,
            )
        lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
        if process.returncode:
            pytest.fail(f"node ended with {process.returncode}:\n{process.stdout}{process.stderr}")
        return {outcome["name"]: outcome for outcome in map(json.loads, lines)}

    return run


@pytest.mark.parametrize(("script", "scenario"), SCENARIOS)
def test_node_client(script: str, scenario: str, results: Results) -> None:
    outcome = results(script)[scenario]

    assert outcome["ok"], outcome["error"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_scenario_of_a_script_is_a_test(script: str, results: Results) -> None:
    assert set(results(script)) == {name for names in SCRIPTS[script].values() for name in names}
