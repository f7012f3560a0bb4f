"""Every command and example in the documentation is run, as a reader would run it.

A fence's first word says what is done with it:

* `python`: run by itself; if the next fence is `text output`, it must print just that;
* `sh`: each line is run; `pairbus broker` is started, waited for and stopped; the other commands
  find a broker with a queue and a topic; `make` only says what it would do, because it would run
  these tests, except `make demo`;
* `json`: a Config.json, loaded; the page's first one is there for its `sh` lines.

`no-run: REASON` after the word leaves a fence out. Anything else is a mistake in the page.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

from pairbus.broker import Broker
from pairbus.broker.config import load_config
from pairbus.console.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
SECONDS_MAX = 60
SHELL_COMMANDS = {"pairbus", "python", "make"}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    note: str
    text: str
    output: str | None

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def blocks_of(page, text):
    fences = list(FENCE.finditer(text))
    for fence, following in zip_longest(fences, fences[1:]):
        language, _, note = fence["info"].partition(" ")
        output = following["text"] if following and following["info"] == "text output" else None
        line = text.count("\n", 0, fence.start()) + 1
        yield Block(page, line, language, note, fence["text"], output)


BLOCKS = [
    block
    for path in PAGES
    for block in blocks_of(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
]
RUN = [block for block in BLOCKS if not block.note]


def cases(language):
    found = [block for block in RUN if block.language == language]
    return [pytest.param(block, id=block.place) for block in found]


@pytest.fixture
def shell(tmp_path):
    """Runs one command in a folder of its own, with this environment's programs first."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }

    started = []

    def start(arguments, cwd=tmp_path, **more):
        process = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()  # does nothing to one that has ended
        process.communicate()


def finished(process):
    """What it printed; it must end well, and in time."""
    try:
        out, err = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"{process.args} still ran after {SECONDS_MAX} s: {process.communicate()}")
    assert process.returncode == 0, f"{process.args} ended with {process.returncode}:\n{out}\n{err}"
    return out


@pytest.mark.parametrize("block", cases("python"))
def test_an_example_runs_and_prints_what_the_page_says(block, shell):
    printed = finished(shell([sys.executable, "-c", block.text]))

    if block.output is not None:
        assert printed == block.output


@pytest.fixture
def local():
    """The connection string of a broker that has some entities."""
    with Broker(queues=["orders"], topics=["events/Subscriptions/audit"]) as broker:
        yield broker.connection_string


@pytest.mark.parametrize("block", cases("sh"))
def test_a_command_runs(block, shell, local, tmp_path):
    configs = [b for b in RUN if b.page == block.page and b.language == "json"]
    if configs:
        (tmp_path / "Config.json").write_text(configs[0].text)

    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] in SHELL_COMMANDS, f"{block.place}: how is {words[0]!r} to be tested?"
        if words[:2] == ["make", "demo"]:
            finished(shell(["make", "--dry-run", *words[1:]], cwd=ROOT))
            finished(shell(["pairbus", "demo"]))
        elif words[0] == "make":
            finished(shell(["make", "--dry-run", *words[1:]], cwd=ROOT))
        elif words[-1] == "--help" or "broker" not in words:
            finished(shell(words, PAIRBUS_PRIMARY=local))
        else:
            start_and_stop(shell(words))


def start_and_stop(process):
    ready = process.stdout.readline()  # the suite's time-out bounds it
    process.send_signal(signal.SIGINT)
    rest = finished(process)

    assert re.match(r"\S+ ready: Endpoint=sb://", ready)
    assert all(" ready: Endpoint=sb://" in line for line in rest.splitlines())


@pytest.mark.parametrize("block", cases("json"))
def test_a_config_is_one_that_loads(block, tmp_path):
    path = tmp_path / "Config.json"
    path.write_text(block.text)

    assert load_config(path)
    assert json.loads(block.text)


def test_every_fence_is_run_or_says_why_not():
    known = {("python", ""), ("sh", ""), ("json", ""), ("text", ""), ("text", "output")}
    odd = [
        block.place
        for block in BLOCKS
        if (block.language, block.note) not in known
        and not re.fullmatch(r"no-run: .{10,}", block.note)
    ]

    assert not odd


def test_every_option_of_the_broker_is_on_its_page():
    page = (ROOT / "docs" / "broker.md").read_text("utf-8")
    command = typer.main.get_group(app).commands["broker"]
    options = {option for parameter in command.params for option in parameter.opts}

    assert not [option for option in options if f"| `{option}" not in page]


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_map_of_the_modules_is_that_of_the_code():
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    source = ROOT / "src" / "pairbus"
    there = {path.name for path in source.rglob("*.py")}
    to_be_named = {
        path.name
        for package in ("amqp", "broker")
        for path in (source / package).glob("*.py")
        if path.name != "__init__.py"
    }
    named = set(re.findall(r"`([a-z_]+\.py)`", page))

    assert not to_be_named - named, "ARCHITECTURE.md lacks these modules"
    assert not named - there, "ARCHITECTURE.md names modules that are gone"
