"""`pairbus entities`: what a person types about queues, topics, subscriptions and rules.

Only words are dealt with here; the work is in `entity_work.py`, imported when there is any, because
the official SDK takes its time to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.administration import EntityKind
from pairbus.cli.entities.create import create_app
from pairbus.cli.entities.rule_create import rule
from pairbus.cli.options import AS_JSON, CA_FILE, CONNECTION_STRING, command_group, confirm
from pairbus.cli.target import parse_target
from pairbus.errors import UsageError

app = command_group(
    "entities",
    "List, show, create, delete and export the entities of a namespace, here or on Azure.\n\n"
    "The namespace is that of --connection-string, or of PAIRBUS_PRIMARY in the environment; its "
    "policy needs Manage. Ends with 0 if all went well, 1 if the namespace refused or did not "
    "answer, and 2 if the words are wrong.",
)
create_app.command()(rule)
app.add_typer(create_app)


def parse_kind(text: str) -> EntityKind:
    """`queue` and `queues` alike."""
    try:
        return EntityKind(text.lower().removesuffix("s"))
    except ValueError:
        raise UsageError(f"{text!r} is not one of {', '.join(EntityKind)}") from None


KIND = Annotated[
    EntityKind,
    typer.Argument(parser=parse_kind, metavar="KIND", help=f"One of {', '.join(EntityKind)}."),
]
KIND_OR_ALL = Annotated[
    EntityKind | None,
    typer.Argument(
        parser=parse_kind,
        metavar="KIND",
        help=f"One of {', '.join(EntityKind)}; all but rules, unless given.",
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
    _check(kind, given)
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.entities.entity_work import show_list

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
    _check(kind, names, "NAME")
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.entities.entity_work import show_one

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
    as_json: AS_JSON = False,
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
        raise UsageError("say what to delete: KIND NAME..., or --all")
    _check(kind, given, "--all" if is_all else "NAME...")
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.entities import entity_work

    if kind is not None and not is_all:
        depth = len(kind.parents)
        named = [(kind, (*given[:depth], name)) for name in given[depth:]]
        entity_work.delete(target, named, as_json=as_json)
        return
    found = entity_work.find_all(target, kind, given)
    if found and not is_sure:
        confirm(f"Delete {len(found)} entities of {target.address} with all their messages?")
    entity_work.delete(target, found, as_json=as_json)


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
    from pairbus.cli.entities.entity_work import export as write

    write(target, file, name=name)


def _check(kind: EntityKind | None, names: Sequence[str], last: str = "") -> None:
    """Of the form `KIND [TOPIC [SUBSCRIPTION]] LAST`, where LAST may be several, or an option."""
    parents = kind.parents if kind else ()
    form = [*(parent.upper() for parent in parents), *([last] if last else ())]
    needed = sum(not word.startswith("--") for word in form)
    if len(names) == needed or (len(names) > needed and last.endswith("...")):
        return
    if kind is None:
        raise UsageError(f"{names[0]!r} is too much: without a kind, all is meant")
    right, given = " ".join([kind, *form]), " ".join([kind, *names])
    raise UsageError(f"the form is: {right}; given was: {given}")
