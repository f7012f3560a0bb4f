"""The command line: what a person types, checked and handed on.

Each command imports what it needs when it runs, so that `pairbus broker` starts fast. A mistake of
the user's ends in one line on stderr and exit code 2, a namespace that refuses or does not answer
in one line and 1, neither in a traceback; a bug keeps its traceback.
"""

from __future__ import annotations

import copy
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pairbus.cli.broker import fault
from pairbus.cli.entities import commands as entities
from pairbus.cli.messages import dead_letters
from pairbus.cli.messages.peek import peek
from pairbus.cli.messages.receive import receive
from pairbus.cli.messages.send import send
from pairbus.cli.pair.cost import cost
from pairbus.cli.pair.package import package_for_spark
from pairbus.cli.pair.report import report
from pairbus.cli.pair.status import status
from pairbus.cli.pair.syphon import syphon
from pairbus.demo.command import demo
from pairbus.errors import NamespaceError, PairbusError

FAILED: Final = 1
USER_ERROR: Final = 2
DEFAULT_DATA: Final = Path("pairbus-data")

app = typer.Typer(
    name="pairbus",
    help="Paired namespaces for Azure Service Bus, a local Service Bus, and what goes with them.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


app.add_typer(entities.app)
app.add_typer(dead_letters.app)
app.add_typer(fault.app)


class Sku(StrEnum):
    STANDARD = "Standard"
    PREMIUM = "Premium"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def main() -> None:
    """The console script, and `python -m pairbus`."""
    try:
        code = _narrowed(app, sys.argv[1:2])(prog_name="pairbus", standalone_mode=False)
    except typer.TyperException as error:
        sys.exit(_complain(f"{error.format_message().rstrip('.')}; see --help"))
    except typer.Abort:
        sys.exit(130)
    except NamespaceError as error:
        sys.exit(_complain(str(error), FAILED))
    except PairbusError as error:
        sys.exit(_complain(str(error)))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # As in `pairbus entities list | head`. Before this, typer does the same: 1 and no words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else 0)


def _narrowed(whole: typer.Typer, first: list[str]) -> typer.Typer:
    """With the one command that is asked for, if it is one: to make all of them of their functions
    takes longer than most of them do."""
    if not isinstance(whole, typer.Typer) or "_PAIRBUS_COMPLETE" in os.environ:
        return whole
    commands = [one for one in whole.registered_commands if [_name(one)] == first]
    groups = [
        one
        for one in whole.registered_groups
        if one.typer_instance is not None and [one.typer_instance.info.name] == first
    ]
    if not commands and not groups:
        return whole
    narrowed = copy.copy(whole)
    narrowed.registered_commands, narrowed.registered_groups = commands, groups
    return narrowed


def _name(command: Any) -> str:
    return str(command.name or command.callback.__name__.replace("_", "-"))


def _complain(text: str, code: int = USER_ERROR) -> int:
    print(f"pairbus: {' '.join(text.split())}", file=sys.stderr)
    return code


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
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
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def broker(
    context: typer.Context,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]",
            help="A namespace and its port; may be repeated. Without a port, or with 0, the system "
            "picks one. Default: local.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A queue in every namespace; may be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A topic in every namespace; may be repeated."),
    ] = None,
    subscription: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC/NAME",
            help="A subscription in every namespace, and its topic; may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="Config.json",
            help="Namespaces, queues, topics, subscriptions and rules, in the official emulator's "
            "form.",
        ),
    ] = None,
    sku: Annotated[
        Sku,
        typer.Option(
            case_sensitive=False,
            help="The tier whose message sizes hold: 256 KB, or up to 100 MB.",
        ),
    ] = Sku.STANDARD,
    accept_bearer: Annotated[
        bool,
        typer.Option(
            "--accept-bearer",
            help="Take any bearer token without a check, for applications that log in with "
            "azure-identity; on loopback only.",
        ),
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:KEY:RIGHTS",
            envvar="PAIRBUS_POLICY",
            help="A shared access key and its rights, out of Manage,Send,Listen; may be repeated. "
            "Default: the emulator's well-known key, which others than this machine may not use.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="PAIRBUS_DATA",
            help=f"Where messages and certificates are kept. Default: ./{DEFAULT_DATA}",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep nothing beyond the end of this process.")
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            envvar="PAIRBUS_HOST",
            help="The address to listen on. Others than loopback need --policy and take only TLS.",
        ),
    ] = "localhost",
    tls_only: Annotated[
        bool, typer.Option("--tls-only", help="Refuse connections without TLS, also on loopback.")
    ] = False,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="PAIRBUS_LOG_LEVEL", help="What goes to stderr.")
    ] = LogLevel.INFO,
) -> None:
    """Run a Service Bus in this process, until it is interrupted.

    Prints "NAME ready: CONNECTION STRING" for each namespace, and nothing else on stdout.

    \b
    Examples:
      pairbus broker --queue orders
      pairbus broker --subscription events/audit --subscription events/billing
      pairbus broker --namespace local:5672 --config Config.json
      pairbus broker --namespace east:5672 --namespace west:5673 --memory
      pairbus broker --policy app:s3cret:Send,Listen --policy ops:t0psecret:Manage
    """
    from pairbus.cli.broker.options import gather_namespaces
    from pairbus.cli.broker.serve import run

    data_source = context.get_parameter_source("data")
    if memory and data_source is not None and data_source.name == "COMMANDLINE":
        raise typer.BadParameter("--data and --memory exclude each other")
    options = gather_namespaces(
        namespaces=namespace or [],
        queues=queue or [],
        topics=topic or [],
        subscriptions=subscription or [],
        sku=sku.value,
        accepts_bearer=accept_bearer,
        policies=policy or [],
        config=config,
        data=None if memory else data or DEFAULT_DATA,
    )
    run(options, host=host, tls_only=tls_only or None, log_level=log_level.value)


app.command()(demo)
app.command()(send)
app.command()(receive)
app.command()(peek)
app.command()(status)
app.command()(syphon)
app.command()(report)
app.command()(cost)
app.command()(package_for_spark)
