"""The demo's processes: the same namespace after a kill, and nothing that outlives them."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pairbus.demo.processes import Member, Namespace

SECONDS_MAX = 30


def wait_until(is_so):
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # dead, and nobody has asked for its exit code


@pytest.fixture
def namespace(tmp_path, monkeypatch):
    # What is meant for a broker of somebody's own is not for ours.
    monkeypatch.setenv("PAIRBUS_POLICY", "app:of-somebody-else:Send")
    namespace = Namespace("east", tmp_path, {"Queues": [{"Name": "orders"}]})
    yield namespace
    namespace.kill()


def test_a_killed_namespace_comes_back_with_its_port(namespace):
    namespace.start()
    wait_until(lambda: namespace.is_ready)
    text, pid = namespace.connection_string, namespace.pid

    namespace.kill()

    assert not namespace.is_ready
    assert not namespace.has_ended  # not by itself
    assert not runs(pid)

    namespace.start()
    wait_until(lambda: namespace.is_ready)

    assert namespace.connection_string == text
    assert "of-somebody-else" not in text
    assert namespace.ca_file.exists()


def test_one_that_somebody_else_has_killed_is_known_by_it(namespace):
    namespace.start()
    wait_until(lambda: namespace.is_ready)

    os.kill(namespace.pid, signal.SIGKILL)
    wait_until(lambda: namespace.has_ended)

    assert not namespace.is_ready
    assert namespace.complaint == "east was killed (SIGKILL)"


def test_one_that_cannot_start_says_why(tmp_path):
    namespace = Namespace("east", tmp_path, {"Queues": [{"Name": "orders", "Nonsense": 1}]})
    namespace.start()
    wait_until(lambda: namespace.has_ended)
    wait_until(lambda: "Nonsense" in namespace.complaint)

    assert namespace.complaint.startswith("east has ended with 2: ")
    namespace.kill()


def test_all_that_a_member_has_started_ends_with_it(tmp_path, monkeypatch):
    """As the Java machine of a syphon, whose workers have process groups of their own."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nsh -c 'echo $$; set -m; sleep 1000 & wait'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    heard = []
    member = Member("one", tmp_path)
    monkeypatch.setattr(member, "heard", heard.append)
    member.spawn(["anything"])
    wait_until(lambda: heard)

    member.kill()

    assert not runs(int(heard[0]))
    member.kill()  # once is enough, and twice does no harm
