"""`pairbus entities`: what a person types about queues, topics, subscriptions and rules.

Only words are dealt with here; the work is in `entity_work.py`, imported when there is any, because
the official SDK takes its time to load.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pairbus.console.entity_create import create_app
from pairbus.console.kinds import Kind
from pairbus.console.options import AS_JSON, CA_FILE, CONNECTION_STRING, command_group
from pairbus.console.rule_create import rule
from pairbus.console.target import parse_target

app = command_group(
    "entities",
    "List, show, create, delete and export the entities of a namespace, here or on Azure.\n\n"
    "The namespace is that of --connection-string, or of PAIRBUS_PRIMARY in the environment; its "
    "policy needs Manage. Ends with 0 if all went well, 1 if the namespace refused or did not "
    "answer, and 2 if the words are wrong.",
)
create_app.command()(rule)
app.add_typer(create_app)


def parse_kind(text: str) -> Kind:
    """`queue` and `queues` alike."""
    try:
        return Kind(text.lower().removesuffix("s"))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(Kind)}") from None


KIND = Annotated[
    Kind, typer.Argument(parser=parse_kind, metavar="KIND", help=f"One of {', '.join(Kind)}.")
]
KIND_OR_ALL = Annotated[
    Kind | None,
    typer.Argument(
        parser=parse_kind,
        metavar="KIND",
        help=f"One of {', '.join(Kind)}; all but rules, unless given.",
        show_default=False,
    ),
]


@app.command("list")
def list_(
    kind: KIND_OR_ALL = None,
    parents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES", help="TOPIC for subscriptions, TOPIC SUBSCRIPTION for rules."
        ),
    ] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """List entities with their status and counts of messages.

    \b
    Examples:
      pairbus entities list
      pairbus entities list queues --json
      pairbus entities list rules events audit
    """
    given = tuple(parents or ())
    _check_count(kind, given, needed=0 if kind is None else len(kind.parents), more=0)
    target = parse_target(connection_string, ca_file)
    from pairbus.console.entity_work import show_list

    show_list(target, kind, given, as_json=as_json)


@app.command()
def show(
    kind: KIND,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAMES", help="NAME, TOPIC NAME, or TOPIC SUBSCRIPTION NAME."),
    ],
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Show the settings, counts and times of one entity.

    \b
    Examples:
      pairbus entities show queue orders
      pairbus entities show subscription events audit --json
    """
    _check_count(kind, names, needed=len(kind.parents) + 1, more=0)
    target = parse_target(connection_string, ca_file)
    from pairbus.console.entity_work import show_one

    show_one(target, kind, tuple(names), as_json=as_json)


@app.command()
def delete(
    kind: KIND_OR_ALL = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES",
            help="NAME..., TOPIC NAME..., or TOPIC SUBSCRIPTION NAME...",
        ),
    ] = None,
    is_all: Annotated[
        bool,
        typer.Option("--all", help="All of this kind, or every queue and topic without a kind."),
    ] = False,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --all.")] = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
) -> None:
    """Delete entities with all their messages. A topic's subscriptions go with it.

    \b
    Examples:
      pairbus entities delete queue orders bills
      pairbus entities delete rule events audit '$Default'
      pairbus entities delete subscriptions events --all
      pairbus entities delete --all --yes
    """
    given = tuple(names or ())
    if kind is None and not is_all:
        raise typer.BadParameter("say what to delete: KIND NAME..., or --all")
    parents = 0 if kind is None else len(kind.parents)
    _check_count(kind, given, needed=parents + (not is_all), more=0 if is_all else 1000)
    target = parse_target(connection_string, ca_file)
    from pairbus.console import entity_work

    if kind is not None and not is_all:
        paths = [(*given[:parents], name) for name in given[parents:]]
        entity_work.delete(target, [(kind, path) for path in paths])
        return
    found = entity_work.find_all(target, kind, given)
    if found and not is_sure:
        _ask(f"Delete {len(found)} entities of {target.address} with all their messages?")
    entity_work.delete(target, found)


@app.command()
def export(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to; standard output, unless given."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the file calls the namespace, if not by its name."),
    ] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
) -> None:
    """Write all entities as a Config.json, for `pairbus broker --config` or Microsoft's emulator.

    Messages, keys and authorization rules are left out.

    \b
    Examples:
      pairbus entities export Config.json
      pairbus entities export --name sbemulatorns > Config.json
    """
    target = parse_target(connection_string, ca_file)
    from pairbus.console.entity_work import export as write

    write(target, file, name=name)


def _check_count(
    kind: Kind | None, names: tuple[str, ...] | list[str], *, needed: int, more: int
) -> None:
    if needed <= len(names) <= needed + more:
        return
    if kind is None:
        raise typer.BadParameter(f"{names[0]!r} is too much: without a kind, everything is meant")
    words = [parent.upper() for parent in kind.parents]
    if needed > len(words):
        words.append("NAME..." if more else "NAME")
    form = " ".join([kind, *words])
    raise typer.BadParameter(f"a {kind} is named as: {form}; given was: {' '.join([kind, *names])}")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to be asked: say --yes with --all")
    typer.confirm(question, abort=True, err=True)
