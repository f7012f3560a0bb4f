"""What all commands have in common; and that the documentation has them all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pairbus.broker import Broker
from pairbus.cli import main as cli
from tests.cli.conftest import Done, Run
from tests.cli.process import SECONDS, finished_after, in_shell, started

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")
PRIMARY = "Endpoint=sb://a;SharedAccessKeyName=p;SharedAccessKey=k"
SECONDARY = PRIMARY.replace("//a", "//b")
# These print nothing that a program would read, or what they print is JSON already.
WITHOUT_JSON = {"broker", "dashboard", "entities export", "package-for-spark"}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = typer.main.get_command(cli.app) if group is None else group
    for name in group.commands:
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands())


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.req("X-09")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example(name: str) -> None:
    text = COMMANDS[name].help or ""

    assert re.search(r"^Examples?:$", text, re.MULTILINE)
    assert re.search(rf"^  (?:.*\| )?pairbus {name}\b", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_or_of_its_group_has_the_exit_codes(pairbus: Run, name: str) -> None:
    group = name.rpartition(" ")[0]
    texts = [pairbus(*path.split(), "--help").out for path in (name, group) if path]

    assert any("Exit codes: 0" in text for text in texts)


@pytest.mark.parametrize("name", ["fault", "entities", "entities create", "dead-letters", "outbox"])
def test_the_help_of_a_group_has_an_example_and_the_exit_codes(pairbus: Run, name: str) -> None:
    text = pairbus(*name.split(), "--help").out

    assert f"\n  Examples:\n    pairbus {name} " in text
    assert "Exit codes: 0 success, 1" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_shows_arguments_as_they_are_typed(pairbus: Run, name: str) -> None:
    text = pairbus(*name.split(), "--help").out

    usage = text.partition("\n")[0]
    assert not re.search(r"[{}<>]", usage)
    assert not re.search(r"<[a-z]", text)  # a type of Python
    arguments = text.partition("\nArguments:\n")[2].partition("\n\n")[0]
    assert all(re.match(r"  ( {4}|[A-Z]+ +\w)", line) for line in arguments.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_on_a_terminal_of_80_columns(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    lines = pairbus(*name.split(), "--help").out.splitlines()

    # A line of its own for the two names of an option may be longer.
    assert [line for line in lines if len(line) > 80 and " / --no-" not in line] == []


@pytest.mark.req("X-09")
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_JSON))
def test_a_command_can_print_json(name: str) -> None:
    assert "--json" in options(COMMANDS[name])


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_help(pairbus: Run, name: str) -> None:
    summary = cli.COMMANDS[name].summary

    assert summary == cli.load_command(name).get_short_help_str(limit=1000)
    assert summary in " ".join(pairbus("--help").out.split())


@pytest.mark.parametrize(
    "words", [("--help",), ("broker", "--help"), ("send", "--help"), ("nonsense",)]
)
def test_only_the_command_that_is_used_is_loaded(words: tuple[str, ...]) -> None:
    """Also nothing that takes long to import: the SDK, rich's tables, the grammar of rules."""
    names = ("azure", "rich.table", "lark", "pairbus.demo", "pairbus.cli.pair")
    names += ("pairbus.cli.entities.commands",)
    code = f"import atexit; atexit.register(lambda: print({{*{names!r}}} & {{*sys.modules}}))"

    assert finished_after(code, *words).stdout.splitlines()[-1] == "set()"


def test_without_a_command_the_help_is_printed_and_the_version_on_request(pairbus: Run) -> None:
    help_, version = pairbus(), pairbus("--version")

    assert (help_.code, version.code, version.err) == (0, 0, "")
    assert "Commands:\n  broker" in help_.out
    assert version.out.startswith("pairbus ")


def test_a_mistyped_command_gets_a_suggestion(pairbus: Run) -> None:
    done = pairbus("snd")

    assert (done.code, done.out) == (2, "")
    assert done.err == "pairbus: No such command 'snd'. Did you mean 'send'?\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["receive", "q", "--count", "x"], "--count 'x' is not a whole number"),
        (["receive", "q", "--count", "0"], "--count 0: must be at least 1"),
        (["syphon", "--metrics-port", "99999"], "--metrics-port 99999: must be at most 65535"),
        (["demo", "--rate", "1"], "--rate 1: must be at least 4"),
        (["broker", "--sku", "foo"], "--sku 'foo' is not one of 'standard', 'premium'"),
        (["send"], "Missing argument 'ENTITY'; see --help"),
        (["send", "--nonsense"], "No such option: --nonsense; see --help"),
        (["send", "q", "--jsn"], "No such option: --jsn; did you mean '--json'?"),
        (
            ["receive", "q", "--sessions"],
            "No such option: --sessions; did you mean '--session-id'?",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_its_option(
    pairbus: Run, words: list[str], text: str
) -> None:
    assert pairbus(*words) == (2, "", f"pairbus: {text}\n")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("PAIRBUS_ALLOW_INSECURE", "maybe", "'maybe' is not true or false"),
        ("PAIRBUS_LOG_LEVEL", "loud", "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
def test_a_wrong_value_of_a_variable_is_reported_with_the_variable(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, text: str
) -> None:
    monkeypatch.setenv(variable, value)

    assert pairbus("broker") == (2, "", f"pairbus: {variable} {text}\n")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["cost"]),
        ("pairbus.cli.pair.cost", ["cost"]),
        ("pairbus.cli.pair.report", ["report", "--ledger", "."]),
        ("pyarrow", ["report", "--ledger", "."]),  # the command has begun
    ],
)
def test_ctrl_c_while_modules_are_loaded_is_not_a_traceback(module: str, words: list[str]) -> None:
    code = (
        "class CtrlC:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, CtrlC())"
    )
    done = finished_after(code, *words)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["cost"]),
        ("pairbus.cli.pair.cost", ["cost"]),
        ("azure.servicebus", ["peek", "orders"]),
        ("azure.servicebus.management", ["entities", "list"]),
        ("pairbus.cli.broker.namespaces", ["broker", "--memory"]),
        ("pairbus.broker.port.listener", ["broker", "--memory"]),
        ("uvloop", ["broker", "--memory"]),
    ],
)
def test_ctrl_c_ends_a_command_even_if_a_library_swallows_it_while_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, module: str, words: list[str]
) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", PRIMARY)
    code = (
        "import signal\n"
        "class CtrlC:\n"
        "    def find_spec(self, name, *_):\n"
        "        try:\n"
        f"            if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "        except BaseException: pass\n"
        "sys.meta_path.insert(0, CtrlC())"
    )
    done = finished_after(code, *words)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("package", "words", "text"),
    [
        ("typer", ["--help"], "the command line needs typer, which is not installed: "
         "pip install 'pairbus[cli]'"),
        ("pyspark", ["syphon"], "pip install 'pairbus[spark]'"),
        ("lark", ["peek", "orders", "--where", "a = 1"], "pairbus peek needs lark, which is not "
         "installed: pip install 'pairbus[cli]'"),
        ("trustme", ["verify", "--local", "--no-syphon"], "verify --local needs trustme, which is "
         "not installed: pip install 'pairbus[broker]'"),
        ("trustme", ["demo"], "the demo needs trustme, which is not installed: "
         "pip install 'pairbus[broker,spark]'"),
    ],
)  # fmt: skip
def test_a_missing_package_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, words: list[str], text: str
) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", PRIMARY)
    monkeypatch.setenv("PAIRBUS_SECONDARY", SECONDARY)

    done = finished_after(f"sys.modules[{package!r}] = None", *words)

    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    assert text in done.stderr


@pytest.mark.parametrize("command", ["report", "cost", "status", "syphon"])
def test_help_needs_neither_pyarrow_nor_spark(command: str) -> None:
    missing = "sys.modules['pyarrow'] = sys.modules['pyspark'] = None"
    done = finished_after(missing, command, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: pairbus {command} ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["send", "--help"],
        ["entities", "list"],
        ["broker", "--memory", "--log-level", "error"],
    ],
)
def test_a_full_disk_behind_stdout_is_one_line(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, words: list[str]
) -> None:
    monkeypatch.setenv("PAIRBUS_PRIMARY", broker.connection_string)
    with open("/dev/full", "w") as full, started(*words, stdout=full) as process:
        _, err = process.communicate(timeout=SECONDS)

    assert err == "pairbus: cannot write to stdout: No space left on device\n"
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("receive QUEUE --wait 1s >&-", "cannot write to stdout: Bad file descriptor"),
        ("peek QUEUE --json >&-", "cannot write to stdout: Bad file descriptor"),
        ("send QUEUE <&-", "nothing to send: stdin is empty"),
        ("entities delete --all <&-", "cannot ask for confirmation"),
    ],
)
def test_a_closed_stream_is_one_line_and_loses_nothing(
    pairbus: Run, queue: str, line: str, error: str
) -> None:
    pairbus("send", queue, "x")

    done = in_shell(f"pairbus {line.replace('QUEUE', queue)}")

    assert done.stderr.startswith(f"pairbus: {error}")
    assert done.stderr.count("\n") == 1
    assert json.loads(pairbus("peek", queue, "--json").out)["body"] == "x"


def test_nothing_is_printed_in_place_of_a_closed_stderr(pairbus: Run, queue: str) -> None:
    pairbus("send", queue, "x")

    done = in_shell(f"pairbus receive {queue} 2>&-")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n\nx\n\n")


def test_the_page_lists_every_command() -> None:
    first = {name.split()[0] for name in COMMANDS}

    assert first == set(re.findall(r"^\| `pairbus ([a-z-]+)` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_use_existing_options(name: str) -> None:
    command = COMMANDS[name]
    for line in re.findall(rf"^  (?:.*\| )?pairbus {name}\b(.*)$", command.help, re.MULTILINE):
        words = re.findall(r"(?<!\S)--?[a-z-]+", re.split(r" [|>] ", line)[0])
        assert set(words) <= options(command), line


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(queues=["orders", "bills"], topics=["events/Subscriptions/audit"]) as running:
        yield running


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pairbus st", ["status"]),
        ("pairbus send o", ["orders"]),
        ("pairbus peek events a", ["audit"]),
        ("pairbus receive orders --sub-queue d", ["dead-letter"]),
        ("pairbus dead-letters resubmit orders --to e", ["events"]),
        ("pairbus send nothing-of-that-name", []),
    ],
)
def test_the_shell_completes(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch, broker: Broker, words: str, found: list[str]
) -> None:
    done = completed(pairbus, monkeypatch, words, broker.connection_string)

    assert (done.code, done.out.split(), done.err) == (0, found, "")


@pytest.mark.parametrize("text", ["", "nonsense", "Endpoint=sb://localhost:1;SharedAccessKey=x"])
def test_completion_prints_no_errors(
    pairbus: Run, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    done = completed(pairbus, monkeypatch, "pairbus send o", text)

    assert (done.code, done.out.strip(), done.err) == (0, "", "")


def completed(pairbus: Run, monkeypatch: pytest.MonkeyPatch, words: str, text: str) -> Done:
    """What bash would ask, and hear."""
    monkeypatch.setenv("PAIRBUS_PRIMARY", text)
    monkeypatch.setenv("_PAIRBUS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    return pairbus()


def test_completion_can_be_shown(pairbus: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else it is for the shell that runs the tests, whichever that is.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    done = pairbus("--show-completion")

    assert done.code == 0
    assert "complete -o default -F _pairbus_completion pairbus" in done.out


def test_the_exit_codes_of_the_page_are_those_of_the_program(pairbus: Run, broker: Broker) -> None:
    text = ("-c", broker.connection_string)

    assert pairbus("send", "orders", "x", *text).code == 0
    assert pairbus("send", "absent", "x", *text).code == 1
    assert pairbus("send", "orders", "x", "--ttl", "?", *text).code == 2
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert codes == ["0", "1", "2", "130"]
