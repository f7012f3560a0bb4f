"""The keys that docs/command-line.md lists are those that `--json` prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pairbus.broker import Broker
from pairbus.client.outbox_file import OutboxFile
from tests.cli.conftest import Run

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")
SECTION = PAGE.split("\n## JSON\n", 1)[1].split("\n## ", 1)[0]
ROWS = dict(re.findall(r"^\| `([^|]+)` \| (.*) \|$", SECTION, re.MULTILINE))
COMMANDS = {
    "send": "send orders x",
    "receive --output-dir": "receive orders --wait 0.1s --output-dir {folder}",
    "dead-letters resubmit": "dead-letters resubmit orders",
    "dead-letters purge": "dead-letters purge orders --yes",
    "dead-letters purge --dry-run": "dead-letters purge orders --dry-run",
    "outbox list": "outbox list {folder}/outbox.db",
    "outbox drain": "outbox drain {folder}/outbox.db --entity none",
    "outbox purge": "outbox purge {folder}/outbox.db --yes",
    "entities list": "entities list queues",
    "entities show": "entities show queue orders",
    "fault list": "fault list",
    "fault clear": "fault clear",
    "status": "status",
    "cost": "cost",
}


def test_all_rows_of_the_page_are_tested() -> None:
    # What `create`, `delete` and `kinds` print is tested with these commands.
    assert {*ROWS} == {*COMMANDS, "entities create`, `entities delete", "fault kinds"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_the_keys_of_the_page(
    pairbus: Run, broker: Broker, tmp_path: Path, name: str
) -> None:
    if name == "fault list":
        broker.faults.hang()  # it has no settings
    outbox = OutboxFile(tmp_path / "outbox.db", namespace="localhost")
    outbox.put("orders", [("1", b"")])
    outbox.close()
    words = COMMANDS[name].format(folder=tmp_path)

    printed = json.loads(pairbus(*words.split(), "--json").out)

    first = printed[0] if isinstance(printed, list) else printed
    keys = re.findall(r"`(\w+)`", ROWS[name].partition(";")[0])
    assert list(first) == keys
    assert isinstance(printed, list) == ROWS[name].startswith("a list")
