"""Every command and example in the documentation is run, as a reader would run it.

A fence's first word says what is done with it:

* `python`: run by itself; if the next fence is `text output`, it must print just that;
* `python continued`: the same, in one program with the fences above it, back to a `python` one;
* `python pytest`: a file of tests, which pass;
* `yaml`: a document; what its steps run are commands that are known, with options that exist;
* `toml`: a document; of pytest's options, those that are registered;
* `diff`: before and after, it is a program whose imports are there;
* `sh`: each line is run; `pairbus broker` is started, waited for and stopped; the other commands
  find a broker with a queue and a topic; `make` only says what it would do, because it would run
  these tests, and the demo has tests of its own;
* `json`: a Config.json, loaded; the page's first one is there for its `sh` lines.

`no-run: REASON` after the word leaves a fence out, but for its commands and imports, which exist.
Anything else is a mistake in the page.
"""

import ast
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main
import yaml

import pairbus
from pairbus import events
from pairbus.broker import Broker, Limits
from pairbus.broker.entities.config import load_config
from pairbus.broker.faults.kinds import KINDS
from pairbus.cli.main import app, load_command
from pairbus.client import pool, timing
from pairbus.client.aio import background as aio_background
from pairbus.client.blocking import background as blocking_background
from pairbus.client.route.envelope import ALIASES, KEPT_PREFIX
from pairbus.client.route.status import EntityStatus, PairingStatus

ROOT = Path(__file__).parent.parent
PAGES = [
    path for folder in ("", "docs", "examples") for path in sorted((ROOT / folder).glob("*.md"))
]
FENCE = re.compile(r"^```(?P<info>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
SECONDS_MAX = 120
LANGUAGES = ("python", "diff", "sh", "json", "yaml", "toml", "text")
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
RUN = [block for block in BLOCKS if block.note in ("", "continued", "pytest")]


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


@pytest.mark.parametrize("block", [c for c in cases("python") if c.values[0].note != "continued"])
def test_an_example_runs_and_prints_what_the_page_says(block, shell, tmp_path):
    if block.note == "pytest":
        (tmp_path / "test_example.py").write_text(block.text)
        finished(shell([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]))
        return
    blocks = [block, *continuations(block)]

    printed = finished(shell([sys.executable, "-c", "\n".join(each.text for each in blocks)]))

    outputs = [each.output for each in blocks if each.output is not None]
    if outputs:
        assert printed == "".join(outputs)


def continuations(block):
    below = RUN[RUN.index(block) + 1 :]
    programs = (b for b in below if (b.page, b.language) == (block.page, "python"))
    return takewhile(lambda b: b.note == "continued", programs)


def unknown_words(words):
    """Of a line in a shell, the commands and options of `pairbus` that there are not."""
    if words[:1] != ["pairbus"]:
        return set()
    command, rest = typer.main.get_command(app), words[1:]
    while rest and rest[0] in getattr(command, "commands", ()):
        command, rest = command.get_command(None, rest[0]), rest[1:]
    if getattr(command, "commands", None):
        return set(rest[:1]) - {"--help", "--install-completion"}
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return {word for word in rest if re.match(r"--?[a-z]", word)} - options - {"--help"}


NOT_RUN = [block for block in BLOCKS if block.note.startswith("no-run")]


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.place) for b in NOT_RUN if b.language == "sh"]
)
def test_a_command_that_is_not_run_is_one_that_there_is(block):
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"\||&&|;", line.partition("#")[0]):
            try:
                words = shlex.split(part)
            except ValueError:
                continue  # cut in the middle of what is quoted
            assert not unknown_words(words), f"{block.place}: {part}"


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.place) for b in NOT_RUN if b.language == "python"]
)
def test_an_example_that_is_not_run_is_a_program_whose_imports_are_there(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("pairbus", "azure")):
            module = import_module(node.module)
            assert not [name.name for name in node.names if not hasattr(module, name.name)]


@pytest.mark.parametrize("block", cases("yaml"))
def test_a_recipe_is_a_document_whose_commands_are_there(block):
    document = yaml.safe_load(block.text)
    jobs = document.get("jobs", {}).values()
    lines = [
        line for job in jobs for step in job["steps"] for line in step.get("run", "").split("\n")
    ]
    pods = document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    commands = [shlex.split(line) for line in lines] + [pod["args"] for pod in pods]
    assert commands

    for words in commands:
        assert not unknown_words(words), words


@pytest.mark.parametrize("block", cases("toml"))
def test_settings_of_pytest_are_registered(block, pytestconfig):
    options = tomllib.loads(block.text)["tool"]["pytest"]["ini_options"]

    for name in options:
        pytestconfig.getini(name)


@pytest.mark.parametrize("block", cases("diff"))
@pytest.mark.parametrize("side", ["-", "+"])
def test_a_difference_is_one_of_programs_whose_imports_are_there(block, side):
    lines = block.text.splitlines()
    assert {line[:1] for line in lines} <= {"", " ", "-", "+"}

    program = ast.parse("\n".join(line[1:] for line in lines if line[:1] in ("", " ", side)))

    for node in program.body:
        if isinstance(node, ast.ImportFrom):
            module = import_module(node.module)
            assert not [name.name for name in node.names if not hasattr(module, name.name)]


@pytest.fixture
def local():
    """The connection string of a broker that has some entities."""
    with Broker(queues=["orders"], topics=["events/Subscriptions/audit"]) as broker:
        yield broker.connection_string


@pytest.fixture
def other():
    with Broker() as broker:
        yield broker.connection_string


@pytest.mark.parametrize("block", cases("sh"))
def test_a_command_runs(block, shell, local, other, tmp_path, request):
    configs = [b for b in RUN if b.page == block.page and b.language == "json"]
    if configs:
        (tmp_path / "Config.json").write_text(configs[0].text)

    for line in block.text.replace("\\\n", " ").splitlines():
        line = line.replace("$PAIRBUS_SECONDARY", other)
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] in SHELL_COMMANDS, f"{block.place}: how is {words[0]!r} to be tested?"
        if words[0] == "make":
            finished(shell(["make", "--dry-run", *words[1:]], cwd=ROOT))
        elif words[-1] == "--help" or "broker" not in words:
            finished(shell(words, PAIRBUS_PRIMARY=local))
        else:
            request.getfixturevalue("fixed_ports")
            start_and_stop(shell(words))


def start_and_stop(process):
    ready = process.stdout.readline()  # the suite's time-out bounds it
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()  # `communicate` would leave out what was read ahead
    finished(process)

    assert re.match(r"\S+ ready: Endpoint=sb://", ready)
    assert all(" ready: Endpoint=sb://" in line for line in rest.splitlines())


@pytest.mark.parametrize("block", cases("json"))
def test_a_config_is_one_that_loads(block, tmp_path):
    path = tmp_path / "Config.json"
    path.write_text(block.text)

    assert load_config(path)
    assert json.loads(block.text)


def test_every_fence_is_run_or_says_why_not():
    known = {(language, "") for language in LANGUAGES}
    known |= {("python", "continued"), ("python", "pytest"), ("text", "output")}
    odd = [
        block.place
        for block in BLOCKS
        if (block.language, block.note) not in known
        and not re.fullmatch(r"no-run: .{10,}", block.note)
    ]

    assert not odd


@pytest.mark.parametrize("name", ["broker", "syphon", "demo", "verify", "dashboard"])
def test_the_options_of_a_command_are_those_on_its_page(name):
    shown = [each for each in load_command(name).params if not each.hidden]
    options = {option for each in shown for option in each.opts}
    words = {cell.split()[0] for table in first_columns(f"{name}.md") for cell in table}

    assert {word for word in words if word.startswith("--")} == options


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text("utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name} links to {target}"
            if anchor:
                assert anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def anchors(path):
    """Of the headings of a page, as they are made where it is shown."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_reference_is_what_the_docstrings_say(shell):
    finished(shell([sys.executable, str(ROOT / "scripts" / "reference"), "--check"]))


# --- what the pages list is what the code has -----------------------------------------------------


def first_columns(page):
    """The names in the first column of the page's tables, one set for each table."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text("utf-8"))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = [row.split("|")[1] for row in table.splitlines()[2:]]
        yield set(re.findall(r"`([^`(]+)(?:\([^`]*\))?`", " ".join(cells)))


def public(kind):
    """The names of a value's fields, and of what it can be asked."""
    return {name for name in vars(kind) if not name.startswith("_")}


TABLES = {
    "pairing.md: options": set(
        inspect.signature(pairbus.SendAvailabilityPairedNamespaceOptions).parameters
    ),
    "pairing.md: options of the outbox": set(inspect.signature(pairbus.Outbox).parameters),
    "pairing.md: errors": {
        name
        for name in pairbus.__all__
        if inspect.isclass(kind := getattr(pairbus, name))
        and issubclass(kind, Exception)
        and kind is not pairbus.PairbusError
    },
    "pairing.md: events": {
        kind.__name__
        for _, kind in inspect.getmembers(events, inspect.isclass)
        if issubclass(kind, events.Event) and not kind.__subclasses__()
    },
    "pairing.md: status": public(PairingStatus) - {"as_dict"},
    "pairing.md: status of an entity": public(EntityStatus),
    "pairing.md: envelope": {*ALIASES, f"{KEPT_PREFIX}NAME"},
    "broker.md: parameters": set(inspect.signature(Broker).parameters),
    "behaviour.md: limits": set(inspect.signature(Limits).parameters),
    "faults.md: kinds": set(KINDS),
}


@pytest.mark.req("R-02")
@pytest.mark.parametrize("page", ["README.md", "docs/pairing.md"])
@pytest.mark.parametrize("words", ["order is not kept", "session state exists on the primary only"])
def test_what_a_failover_does_not_keep_is_said_where_people_look(page, words):
    text = re.sub(r"[\s*]+", " ", (ROOT / page).read_text("utf-8")).lower()

    assert words in text


BOUNDS = {
    "one backlog queue": pool.CONNECTIONS_PER_QUEUE_MAX,
    "are closed after": pool.IDLE_SECONDS_MAX,
    "one of them may take": timing.TASK_SECONDS_MAX,
    "take a backlog queue back": timing.QUEUE_REST_SECONDS,
    "ready again": timing.READY_RETRY_SECONDS,
    " threads, or": blocking_background.TASKS_AT_ONCE_MAX,
    " tasks;": aio_background.TASKS_AT_ONCE_MAX,
}


@pytest.mark.parametrize("words", BOUNDS)
def test_a_bound_of_a_paired_client_is_the_one_in_the_code(words):
    page = (ROOT / "docs" / "failover.md").read_text("utf-8")
    _, bounds = page.split("## Bounds")
    [row] = [row for row in bounds.splitlines() if words in row]

    assert re.search(rf"\b{BOUNDS[words]:g}\b", row)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_all_that_is_in_the_code(table):
    page, _, _ = table.partition(":")

    assert TABLES[table] in list(first_columns(page))


def test_the_map_of_the_folders_is_that_of_the_code():
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    source = ROOT / "src" / "pairbus"
    files = {path.name for path in source.rglob("*.py")}
    folders = {path.parent.relative_to(source).parts for path in source.rglob("*.py")} - {()}
    named = set(re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.py)`", page))
    missing = {parts[-1] for parts in folders if f"{parts[-1]}/" not in page}

    assert not missing, "ARCHITECTURE.md lacks these folders"
    assert not named - files, "ARCHITECTURE.md names modules that are gone"


def test_the_shells_are_twins():
    """If you have read one, you know your way in the other."""
    blocking, aio = (
        {path.name for path in (ROOT / "src" / "pairbus" / "client" / shell).glob("*.py")}
        for shell in ("blocking", "aio")
    )

    assert aio == blocking


def test_the_layers_are_those_that_are_enforced():
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [layers] = [
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["pairbus"]
    ]
    names = [layer.strip("()") for layer in layers if "__main__" not in layer]

    assert ", ".join(f"`{name}`" for name in names) in page.replace("\n", " ")
