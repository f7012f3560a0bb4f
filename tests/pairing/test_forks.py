"""A paired client does not survive a fork: the child gets an error, and the parent continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.pairing.namespaces import environment


def test_a_paired_client_is_refused_after_a_fork(world):
    queue = world.queue()
    case = {
        "primary": world.primary.connection_string(),
        "secondary": world.secondary.connection_string(),
        "ca_file": world.secondary.ca_file,
        "name": world.name,
        "queue": queue,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pairing.forked", world.shell.name, json.dumps(case)],
        cwd=Path(__file__).parents[2],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["before"] == answers["parent"] == "sent"
    for side in ("child", "new"):
        assert "fork" in answers[side], answers
        assert "PairingError" in answers[side], answers
        assert "make and pair a client in the child process" in answers[side]
    assert answers["child"].endswith("and closed"), "which leaves the parent's connections alone"
    world.acknowledge(queue, "before", "parent")
    world.check(queue, primary=["before", "parent"])
