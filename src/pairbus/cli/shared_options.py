"""Option groups that commands share, so that an option has the same name and help everywhere.

A group is a dataclass whose fields are options. `flatten_options` lets a command take such a group
as one parameter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Final, TypeVar, dataclass_transform, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from pairbus.cli.administration import (
    Administration,
    EntityKind,
    names_within_timeout,
    queues_and_topics,
)
from pairbus.cli.entity_path import SubQueue
from pairbus.cli.target import CA_ENVIRONMENT, ENVIRONMENT, Target, parse_target
from pairbus.errors import UsageError

_COMPLETION_SECONDS_MAX: Final = 3.0
_INFO: Final = "typer"
_COUNT_MAX: Final = 10**9
_Group = TypeVar("_Group")


def option(metavar: str, help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option with a value. Its help says what its default is, if that matters."""
    return typer.Option(default, *names, metavar=metavar, help=help, show_default=False, **more)


def flag(help: str, *names: str, default: bool | None = False, **more: Any) -> Any:
    """Without a name, it is a pair of options: --name and --no-name."""
    return typer.Option(default, *names, help=help, show_default=False, **more)


def argument(metavar: str, help: str, *, default: Any = ..., **more: Any) -> Any:
    """It is required unless it has a default."""
    return typer.Argument(default, metavar=metavar, help=help, show_default=False, **more)


def count_option(help: str, *, default: int | None = None) -> Any:
    return option("N", help, min=1, max=_COUNT_MAX, default=default)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def option_group(group: type[_Group]) -> type[_Group]:
    """A dataclass whose fields are options, each of which has the default of its field."""
    for name in group.__annotations__:
        info = getattr(group, name)
        setattr(group, name, field(default=info.default, metadata={_INFO: info}))
    return dataclass(frozen=True, kw_only=True)(group)


def flatten_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: each field becomes a parameter of its own."""
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _fields_as_parameters(groups[parameter.name])
        else:
            hint = hints[parameter.name]
            parameters.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    # typer reads both: the signature for names and defaults, the annotations for types.
    flat.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat


def _fields_as_parameters(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group)
    for one in fields(group):
        info, hint = one.metadata[_INFO], hints[one.name]
        yield Parameter(one.name, Parameter.KEYWORD_ONLY, default=info, annotation=hint)


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Whether the user gave this parameter, and neither its default nor the environment did."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# -- names of entities for shell completion ------------------------------------------------------


def complete_queue_or_topic(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, queues_and_topics)


def complete_subscription(context: typer.Context, incomplete: str) -> list[str]:
    topic = context.params.get("entity")
    if not isinstance(topic, str) or not topic:
        return []
    return _complete(context, incomplete, lambda admin: admin.names(EntityKind.SUBSCRIPTION, topic))


def _complete(
    context: typer.Context, incomplete: str, list_names: Callable[[Administration], list[str]]
) -> list[str]:
    """A failure completes to nothing, because an error message would disturb the shell's prompt."""
    text = context.params.get("connection_string") or os.environ.get(ENVIRONMENT)
    try:
        target = parse_target(text, context.params.get("ca_file"))
    except Exception:
        return []
    found = names_within_timeout(target, list_names, seconds=_COMPLETION_SECONDS_MAX)
    return sorted(name for name in found if name.startswith(incomplete))


# -- options and arguments that several commands have --------------------------------------------


@option_group
class ConnectionOptions:
    """The namespace of the command."""

    connection_string: str | None = option(
        "TEXT",
        "Connection string of the namespace, or its host name, to log in without a key.",
        "--connection-string",
        "-c",
        envvar=ENVIRONMENT,
    )
    ca_file: Path | None = option(
        "FILE",
        f"Certificate authority to trust for TLS (default: {CA_ENVIRONMENT}). Azure does not "
        "need it, nor does a broker on this machine whose connection string has "
        "UseDevelopmentEmulator=true.",
    )

    @property
    def target(self) -> Target:
        """Raises UsageError."""
        return parse_target(self.connection_string, self.ca_file)


ENTITY = argument(
    "ENTITY", "Queue, or topic of SUBSCRIPTION.", autocompletion=complete_queue_or_topic
)
SUBSCRIPTION = argument(
    "SUBSCRIPTION",
    "Subscription of the topic ENTITY.",
    autocompletion=complete_subscription,
    default=None,
)
SUB_QUEUE_NAMES = "|".join(SubQueue)
SUB_QUEUE = option(SUB_QUEUE_NAMES, "Use this sub-queue instead of the messages of the entity.")
AS_JSON = flag("Print JSON instead of text.", "--json")
IS_SURE = flag("Delete without asking.", "--yes", "-y")


# -- commands and groups of commands -------------------------------------------------------------


class PlainCommand(TyperCommand):
    """Its help shows arguments without typer's braces and without Python's types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.params if isinstance(one, TyperArgument)]
        names = [
            (one.display_name_raw if one.required else f"[{one.display_name_raw}]")
            + ("" if one.nargs == 1 else "...")
            for one in arguments
        ]
        return ["[OPTIONS]", *names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for one in self.get_params(ctx):
            if isinstance(one, TyperArgument):
                rows["Arguments"].append((one.display_name_raw, one.help or ""))
            elif record := one.get_help_record(ctx):
                rows["Options"].append(record)
        for title, texts in rows.items():
            if texts:
                with formatter.section(title):
                    formatter.write_dl(texts)


class CommandApp(typer.Typer):
    """All its commands are PlainCommands, and it prints help as plain text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(add_completion=False, rich_markup_mode=None, **settings)

    def command(  # type: ignore[override]  # it needs no other settings
        self, name: str | None = None
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        return super().command(name, cls=PlainCommand)


class CommandGroup(TyperGroup):
    """Lists its commands with their whole summaries; typer cuts them off at the screen's width."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.commands])

    def summary(self, ctx: Any, name: str) -> str:
        """The first sentence of the command's help."""
        return self.commands[name].get_short_help_str(limit=1000)


def command_group(name: str, help: str) -> CommandApp:
    """A group of commands. Without a command, it prints its help."""
    group = CommandApp(name=name, cls=CommandGroup)

    @group.callback(invoke_without_command=True, help=help)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


# -- questions -----------------------------------------------------------------------------------


def confirm(question: str) -> None:
    """Ask before something is deleted. Any answer but y or yes ends the command with code 1."""
    if not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation because stdin is not a terminal; use --yes to delete "
            "without asking"
        )
    # Not typer's question: of that, a part goes to stdout.
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("nothing was deleted", file=sys.stderr)
        raise typer.Exit(1)
