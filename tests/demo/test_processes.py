"""The demo's processes: a broker is the same after a kill, and nothing outlives the demo."""

import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from pairbus.demo.processes import BrokerProcess, ChildProcess, DashboardProcess, free_port
from tests.waiting import wait_until

SECONDS_MAX = 30


def runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # dead, and nobody has asked for its exit code


@pytest.fixture
def broker(tmp_path, monkeypatch):
    # Settings that the user made for another broker must not reach ours.
    monkeypatch.setenv("PAIRBUS_POLICY", "app:of-somebody-else:Send")
    broker = BrokerProcess("east", tmp_path, {"Queues": [{"Name": "orders"}]})
    yield broker
    broker.kill()


def test_a_killed_broker_starts_again_with_its_port(broker):
    broker.start()
    wait_until(lambda: broker.is_ready)
    text, pid = broker.connection_string, broker.pid

    broker.kill()

    assert not broker.is_ready
    assert not broker.has_ended  # not by itself
    assert not runs(pid)

    broker.start()
    wait_until(lambda: broker.is_ready)

    assert broker.connection_string == text
    assert "of-somebody-else" not in text
    assert broker.ca_file.exists()


def test_a_broker_killed_by_somebody_else_is_noticed(broker):
    broker.start()
    wait_until(lambda: broker.is_ready)

    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: broker.has_ended)

    assert not broker.is_ready
    assert broker.exit_message == "east was killed (SIGKILL)"


def test_a_broker_that_cannot_start_has_a_reason(tmp_path):
    broker = BrokerProcess("east", tmp_path, {"Queues": [{"Name": "orders", "Nonsense": 1}]})
    broker.start()
    wait_until(lambda: broker.has_ended)
    wait_until(lambda: "Nonsense" in broker.exit_message)

    assert broker.exit_message.startswith("east ended with exit code 2: ")
    broker.kill()


def test_a_kill_ends_everything_that_the_child_has_started(tmp_path, monkeypatch):
    """Like the Java machine of a syphon, whose workers have their own process groups."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nsh -c 'echo $$; set -m; sleep 1000 & wait'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    lines = []
    child = ChildProcess("one", tmp_path)
    monkeypatch.setattr(child, "on_line", lines.append)
    child.spawn(["anything"])
    wait_until(lambda: lines)

    child.kill()

    assert not runs(int(lines[0]))
    child.kill()  # once is enough, and twice does no harm


def test_the_dashboard_says_where_it_is(tmp_path):
    port = free_port()
    nobody, nowhere = (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName=a;SharedAccessKey=b;"
        "UseDevelopmentEmulator=true"
        for host in ("localhost", "127.0.0.1")
    )
    dashboard = DashboardProcess(tmp_path, "east")
    dashboard.start(nobody, nowhere, [f"http://127.0.0.1:{port}/metrics"])
    try:
        wait_until(lambda: dashboard.address or dashboard.has_ended)
        assert dashboard.address, dashboard.exit_message
        with urllib.request.urlopen(dashboard.address, timeout=30) as page:
            assert b"<title>pairbus dashboard</title>" in page.read()
    finally:
        dashboard.kill()
    assert not dashboard.is_running
