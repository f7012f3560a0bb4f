"""Closing a paired client: what ends with it, what it leaves behind, and how long it takes.

What is left is counted in a separate process, in which nothing else has threads or sockets.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.client.sdk.pairing_errors import BacklogExhausted, PairingError
from pairbus.events import Closed
from tests.pairing.namespaces import environment
from tests.pairing.world import ids

WAIT_SECONDS_MAX = 60


class Subject:
    """`tests/pairing/residue.py` at work."""

    def __init__(self, world, scenario: str, queue: str, **case: str) -> None:
        reported = {
            "primary": world.primary.connection_string(),
            "secondary": world.secondary.connection_string(),
            "manager": world.secondary.connection_string(),
            "ca_file": world.secondary.ca_file,
            "name": world.name,
            "queue": queue,
            **case,
        }
        # All warnings are shown, those of sockets and coroutines that nobody closed included.
        command = [sys.executable, "-X", "dev", "-m", "tests.pairing.residue"]
        self._process = subprocess.Popen(
            [*command, world.shell.name, scenario, json.dumps(reported)],
            cwd=Path(__file__).parents[2],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def reaches(self, step: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()
        assert json.loads(line) == step

    def goes_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ends(self) -> dict:
        out, complaints = self._process.communicate(timeout=WAIT_SECONDS_MAX)
        assert self._process.returncode == 0, complaints
        assert complaints == ""
        counted = json.loads(out.splitlines()[-1])
        assert counted["after"] == counted["before"], "left after close"
        assert counted["end"] == counted["before"]
        return counted

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(world):
    subjects = []

    def started(scenario: str, queue: str, **case: str) -> Subject:
        subjects.append(Subject(world, scenario, queue, **case))
        return subjects[-1]

    yield started
    for subject in subjects:
        subject.kill()


def kill(name):
    return lambda world: getattr(world, name).kill()


def hang(world):
    world.primary.fault("hang")


# What happens before each step, the errors of its sends, and where its messages are in the end.
SCENARIOS = {
    "it never failed": ({"healthy": None}, [], ["1", "2", "2"], []),
    "it is failed over": ({"killed": kill("primary"), "pinging": None}, [], ["1"], ["2"] * 4),
    "both namespaces are gone": (
        {"primary-killed": kill("primary"), "both-killed": kill("secondary")},
        ["BacklogExhausted"] * 2,
        ["1"],
        ["2"] * 2,
    ),
    "it is back": (
        {"killed": kill("primary"), "back": lambda world: world.primary.start()},
        [],
        ["1", "2", "2"],
        ["2"] * 2,
    ),
    # Also while one of its senders waits for an answer, or a ping does.
    "silence": ({"silent": hang}, None, None, None),
    "a send that is stuck": ({"stuck": hang}, None, None, None),
    "a ping that is stuck": ({"silent": hang, "pinging": None}, None, None, None),
}


@pytest.mark.req("A-06", "C-02", "G-03")
@pytest.mark.parametrize(
    ("steps", "errors", "primary", "backlog"), SCENARIOS.values(), ids=SCENARIOS
)
def test_a_client_that_is_closed_leaves_nothing(world, start, steps, errors, primary, backlog):
    queue = world.queue()
    subject = start(" ".join(steps), queue)
    for step, happens in steps.items():
        subject.reaches(step)
        if happens is not None:
            happens(world)
        subject.goes_on()
    counted = subject.ends()
    assert counted["end"]["pipeline"] == [], "without `enable_syphon` it has run none of it"
    assert counted["close_seconds"] < 40
    if errors is None:  # a send without an answer has an unknown outcome
        return
    assert counted["errors"] == errors
    for namespace in (world.primary, world.secondary):
        namespace.heal()
    assert ids(world.primary.peek(queue)) == primary
    assert ids(world.backlog(queue)) == backlog


@pytest.mark.req("C-02")
def test_a_client_that_is_closed_while_its_connections_are_made_leaves_nothing(world, start):
    counted = start("hasty", world.queue()).ends()
    assert counted["errors"] == []
    assert counted["close_seconds"] < 40


@pytest.mark.req("A-07", "C-02")
@pytest.mark.parametrize("who", ["manager", "secondary"])
def test_a_pairing_that_was_refused_leaves_nothing(world, start, who):
    wrong = world.secondary.connection_string(key="bm90IHRoZSBrZXk=")
    counted = start("refused", world.queue(), **{who: wrong}).ends()
    assert counted["errors"] == ["PairingError"]


@pytest.mark.req("C-02", "F-07")
def test_a_secondarys_client_that_was_closed_first_harms_nobody(world):
    """Sends go to the primary as long as it is well; after that, no namespace is left."""
    queue = world.queue()
    client, factory = world.client(), world.factory()
    world.pair(client, factory=factory)
    sender = world.sender(client, queue)
    world.send(sender, "1")
    factory.close()
    world.send(sender, "2")
    with world.primary.fault("cannot_send", queue), pytest.raises(BacklogExhausted) as raised:
        world.send(sender, "3")
    assert "closed" in str(raised.value.backlog_error)
    client.pairing.mark_path_healthy(queue)
    world.send(sender, "4")
    client.close()
    world.check(queue, primary=["1", "2", "4"])


@pytest.mark.req("C-02", "A-01")
def test_a_client_in_a_with_block_closes_its_pairing(world):
    queue = world.queue()
    client = world.shell.client(world.primary.connection_string(), retry_total=0)
    with client:
        world.pair(client)
        with client.get_queue_sender(queue) as sender:
            world.send(sender, "1")
    assert len(world.events_of(Closed)) == 1
    world.check(queue, primary=["1"])


def test_a_client_cannot_be_paired_again_after_it_was_closed(world):
    client = world.client()
    world.pair(client)
    client.close()
    with pytest.raises((PairingError, ValueError)):
        client.pair_namespace(world.options())
