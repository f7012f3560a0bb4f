"""Closing a paired client: what ends with it, what it leaves behind, and how long it takes.

What is left is counted in a process of its own, in which nothing else has threads or sockets.
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
        told = {
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
            [*command, world.shell.name, scenario, json.dumps(told)],
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


@pytest.mark.req("A-06", "C-02")
def test_a_client_that_never_failed_leaves_nothing(world, start):
    """And without `enable_syphon` it has run no part of the pipeline."""
    queue = world.queue()
    subject = start("healthy", queue)
    subject.reaches("healthy")
    subject.goes_on()
    counted = subject.ends()
    assert counted["errors"] == []
    assert counted["end"]["pipeline"] == []
    assert ids(world.primary.peek(queue)) == ["1", "2", "2"]


@pytest.mark.req("C-02", "G-03")
def test_a_client_that_is_closed_while_it_is_failed_over_leaves_nothing(world, start):
    queue = world.queue()
    subject = start("killed pinging", queue)
    subject.reaches("killed")
    world.primary.kill()
    subject.goes_on()
    subject.reaches("pinging")
    subject.goes_on()
    assert subject.ends()["errors"] == []
    world.primary.start()
    assert ids(world.primary.peek(queue)) == ["1"]
    assert ids(world.backlog(queue)) == ["2", "2", "2", "2"]


@pytest.mark.req("C-02")
def test_a_client_whose_both_namespaces_are_gone_leaves_nothing(world, start):
    queue = world.queue()
    subject = start("primary-killed both-killed", queue)
    subject.reaches("primary-killed")
    world.primary.kill()
    subject.goes_on()
    subject.reaches("both-killed")
    world.secondary.kill()
    subject.goes_on()
    counted = subject.ends()
    assert counted["errors"] == ["BacklogExhausted", "BacklogExhausted"]


@pytest.mark.req("C-02")
def test_a_client_that_comes_back_before_it_is_closed_leaves_nothing(world, start):
    queue = world.queue()
    subject = start("killed back", queue)
    subject.reaches("killed")
    world.primary.kill()
    subject.goes_on()
    subject.reaches("back")
    world.primary.start()
    subject.goes_on()
    assert subject.ends()["errors"] == []
    assert ids(world.primary.peek(queue)) == ["1", "2", "2"]


@pytest.mark.req("C-02")
@pytest.mark.parametrize("scenario", ["silent", "stuck", "silent pinging"])
def test_a_client_that_is_closed_in_a_silence_leaves_nothing(world, start, scenario):
    """Also while one of its senders waits for an answer, or a ping does."""
    queue = world.queue()
    subject = start(scenario, queue)
    subject.reaches(scenario.split()[0])
    world.primary.fault("hang")
    for step in scenario.split()[1:]:
        subject.goes_on()
        subject.reaches(step)
    subject.goes_on()
    assert subject.ends()["close_seconds"] < 40


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
    """Sends go to the primary as long as that is well; then there is nowhere left."""
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
