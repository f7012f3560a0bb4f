"""The command line: loads the command that is asked for, runs it, and reports errors.

An error is one line on stderr, without a traceback; a bug keeps its traceback. Exit codes: 0 done,
1 failed, 2 usage error, 130 interrupted by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TextIO, cast

import typer
import typer.main

from pairbus.cli.loading import INTERRUPTED, interrupt_ends_process
from pairbus.cli.output import did_you_mean
from pairbus.cli.shared_options import CommandApp, CommandGroup, flag, is_on_command_line
from pairbus.errors import (
    ConfigError,
    OptionsError,
    OutputError,
    PairbusError,
    UsageError,
    requires_extra,
)

FAILED: Final = 1
USAGE_ERROR: Final = 2


class Command(NamedTuple):
    home: str
    """Module and name; loaded when the command is used, so that each one starts fast."""
    summary: str
    """The first sentence of its help, so that `pairbus --help` loads no command."""
    extra: str = "cli"
    """The extra of the package that it needs."""


COMMANDS: Final = {
    "broker": Command(
        "pairbus.cli.broker.serve:broker",
        "Run a Service Bus in this process, until it is interrupted.",
        "broker",
    ),
    "send": Command(
        "pairbus.cli.messages.send:send",
        "Send messages to a queue or a topic.",
    ),
    "receive": Command(
        "pairbus.cli.messages.receive:receive",
        "Receive messages from a queue or a subscription, print them, and complete them.",
    ),
    "peek": Command(
        "pairbus.cli.messages.peek:peek",
        "Show messages of a queue or a subscription without locking or changing them.",
    ),
    "dead-letters": Command(
        "pairbus.cli.messages.dead_letters:app",
        "List, show, resubmit and purge the dead letters of a queue or a subscription.",
    ),
    "entities": Command(
        "pairbus.cli.entities.commands:app",
        "List, show, create, delete and export the entities of a namespace, here or on Azure.",
    ),
    "fault": Command(
        "pairbus.cli.broker.fault:app",
        "Make a local broker fail as a datacenter does: throttle, hang, restart, lose its disk.",
        "broker",
    ),
    "status": Command(
        "pairbus.cli.pair.status:status",
        "Show both namespaces of a pair, the backlog, and what clients and syphons report.",
    ),
    "outbox": Command(
        "pairbus.cli.pair.outbox:app",
        "List, show, send and delete the messages in the file of an outbox.",
    ),
    "dashboard": Command(
        "pairbus.dashboard.command:dashboard",
        "Show a pair on one page, live: state, backlog, failovers, dead letters, messages and "
        "cost.",
        "dashboard",
    ),
    "syphon": Command(
        "pairbus.cli.pair.syphon:syphon",
        "Bring diverted messages home: from the backlog queues to their entities, on Spark.",
        "spark",
    ),
    "report": Command(
        "pairbus.cli.pair.report:report",
        "Report what a syphon's ledger holds: messages, waiting times, outages and operations.",
        "spark",
    ),
    "cost": Command(
        "pairbus.cli.pair.cost:cost",
        "Estimate what a pair of namespaces costs: billed operations, and money by a price list.",
    ),
    "package-for-spark": Command(
        "pairbus.cli.pair.package:package_for_spark",
        "Write an archive of pairbus for Spark's --py-files: all but the local broker.",
        "spark",
    ),
    "verify": Command(
        "pairbus.verify.command:verify",
        "Certify a pair: send through it, count every message, and say whether one was lost.",
        "all",
    ),
    "demo": Command(
        "pairbus.demo.command:demo",
        "Kill a namespace under load and lose nothing: all of pairbus, on this machine.",
        "all",
    ),
}


class LazyCommands(CommandGroup):
    """The commands by name. Only the one that is used is imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # for "Did you mean"

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def summary(self, ctx: Any, name: str) -> str:
        return COMMANDS[name].summary


@cache
def load_command(name: str) -> Any:
    module, _, attribute = COMMANDS[name].home.partition(":")
    with interrupt_ends_process():
        found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function = found
        found = CommandApp()
        found.command(name)(function)
    return typer.main.get_command(found)


app = typer.Typer(
    cls=LazyCommands,
    name="pairbus",
    help="Paired namespaces for Azure Service Bus, and a local Service Bus for tests.\n\n"
    "Every command has --help with examples. Exit codes: 0 success, 1 failure, 2 usage error, 130 "
    "interrupted.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked_for: bool) -> None:
    if is_asked_for:
        from importlib import metadata

        try:
            version = metadata.version("pairbus")
        except metadata.PackageNotFoundError:
            version = "(not installed: run from its source)"
        typer.echo(f"pairbus {version}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = flag("Show the version.", "--version", callback=_print_version, is_eager=True),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command of sys.argv, and exit with its code."""
    _open_closed_streams()
    stdout = sys.stdout
    checked = CheckedStdout(stdout)
    sys.stdout = cast("TextIO", checked)
    try:
        code = _run()
        checked.flush()
    except OutputError as error:
        code = code or print_error(str(error), FAILED)  # else it is reported already
        _discard_output(stdout)
    except BrokenPipeError:
        # As in `pairbus entities list | head`: exit with 1, without a message.
        code = FAILED
        _discard_output(stdout)
    finally:
        sys.stdout = stdout
    sys.exit(code)


def _open_closed_streams() -> None:
    """Python's stream is None if it was closed, as in `pairbus receive orders >&-`. What is printed
    would be lost without an error, and the next socket would get the number of the stream.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # open until the end
    if sys.stdout is None:
        # Read-only, so that writing to it fails.
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _run() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    extra = COMMANDS[name].extra if name in COMMANDS else "cli"
    try:
        with requires_extra(f"pairbus {name}".strip(), extra):
            code = app(prog_name="pairbus", standalone_mode=False)
    except typer.TyperException as error:
        return print_error(usage_text(error), USAGE_ERROR)
    except typer.Abort:  # Ctrl-C at a question
        return INTERRUPTED
    except SystemExit as exit_:  # shell completion, and typer for a pipe that breaks
        return exit_.code if isinstance(exit_.code, int) else FAILED
    except PairbusError as error:
        is_usage = isinstance(error, (UsageError, OptionsError, ConfigError))
        return print_error(str(error), USAGE_ERROR if is_usage else FAILED)
    return code if isinstance(code, int) else 0


_TYPE_NAMES: Final = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}


def usage_text(error: typer.TyperException) -> str:
    """The text for a command line that typer does not understand."""
    parameter, context = (getattr(error, name, None) for name in ("param", "ctx"))
    faults = getattr(error.__cause__, "errors", None)  # pydantic's, with the value
    if parameter is not None and context is not None and faults is not None:
        fault = faults()[0]
        name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
        if not is_on_command_line(context, parameter.name):
            name = parameter.envvar
        value = fault["input"]
        if kind := _TYPE_NAMES.get(fault["type"]):
            return f"{name} {value!r} is not {kind}"
        if fault["type"] in ("greater_than_equal", "less_than_equal"):
            return f"{name} {value}: must be {_range_text(fault['ctx'])}"
        if fault["type"] == "value_error":
            return f"{name} {str(fault['ctx']['error']).rstrip('.')}"
    text = error.format_message().rstrip(".")
    if options := getattr(error, "possibilities", None):  # some are hardly similar
        text = f"{error.message}{did_you_mean(getattr(error, 'option_name', ''), options)}"
    return text if text.endswith("?") else f"{text}; see --help"


def _range_text(bounds: Mapping[str, float]) -> str:
    """From pydantic's `{"ge": 1}` or `{"le": 65535}`."""
    words = {"ge": "at least", "le": "at most"}
    return " and ".join(f"{words[name]} {bound:.12g}" for name, bound in bounds.items())


class CheckedStdout:
    """Stdout, with OutputError if it cannot be written to: its disk is full, or its encoding lacks
    a character.

    An OSError would not say which file it is about. A broken pipe remains one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._checked():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror}") from error
        except UnicodeEncodeError as error:
            raise OutputError(
                f"cannot write to stdout: its encoding, {error.encoding}, has no "
                f"{error.object[error.start]!r}; set PYTHONIOENCODING=utf-8"
            ) from error


def _discard_output(stdout: TextIO) -> None:
    """Python flushes stdout once more when it exits, and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def print_error(text: str, code: int) -> int:
    print(f"pairbus: {' '.join(text.split())}", file=sys.stderr)
    return code
