"""`pairbus entities`: lists, shows, deletes and exports queues, topics, subscriptions and rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pairbus.cli.administration import (
    Administration,
    EntityKind,
    EntityNotFound,
    administration,
    describe,
)
from pairbus.cli.entities import views
from pairbus.cli.entities.create import create_app
from pairbus.cli.output import did_you_mean, json_text, print_json, progress, write_file
from pairbus.cli.shared_options import (
    AS_JSON,
    ConnectionOptions,
    argument,
    command_group,
    confirm,
    flag,
    flatten_options,
    option,
)
from pairbus.errors import NamespaceError, UsageError

Names = tuple[str, ...]

app = command_group(
    "entities",
    "List, show, create, delete and export the entities of a namespace, here or on Azure.\n\n"
    "The policy needs the Manage right.\n\n"
    "Exit codes: 0 success, 1 the namespace refused or did not answer, 2 usage error, 130 "
    "interrupted.\n\n"
    "\b\n"
    "Examples:\n"
    "  pairbus entities list\n"
    "  pairbus entities create queue orders",
)
app.add_typer(create_app)


def parse_kind(text: str) -> EntityKind:
    """`queue` and `queues` are the same."""
    try:
        return EntityKind(text.lower().removesuffix("s"))
    except ValueError:
        raise UsageError(f"KIND {text!r} is not one of {', '.join(EntityKind)}") from None


_KINDS = f"One of {', '.join(EntityKind)}"
KIND = argument("KIND", f"{_KINDS}.", parser=parse_kind)
KIND_OR_ALL = argument(
    "KIND", f"{_KINDS} (default: all except rules).", parser=parse_kind, default=None
)


@app.command("list")
@flatten_options
def list_(
    kind: EntityKind | None = KIND_OR_ALL,
    parents: list[str] | None = argument(
        "NAMES", "TOPIC for subscriptions, TOPIC SUBSCRIPTION for rules.", default=None
    ),
    *,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """List entities with their status and message counts.

    \b
    Examples:
      pairbus entities list
      pairbus entities list queues --json
      pairbus entities list rules events audit
    """
    names = tuple(parents or ())
    _check_names(kind, names)
    with administration(connection.target) as admin:
        if kind is EntityKind.RULE:
            rules = admin.all(kind, names)
            found = [views.rule_view((*names, rule.name), rule) for rule in rules]
        else:
            found = list(_rows(admin, kind, names))
    if as_json:
        print_json(found)
        return
    what = "queues or topics" if kind is None else f"{kind}s"
    where = describe(kind.parents[-1], names) if kind and names else connection.target.address
    show = views.print_rules if kind is EntityKind.RULE else views.print_entities
    show(found, if_empty=f"no {what} in {where}")


@app.command()
@flatten_options
def show(
    kind: EntityKind = KIND,
    names: list[str] = argument("NAMES", "NAME, TOPIC NAME, or TOPIC SUBSCRIPTION NAME."),
    *,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Show the settings, counts and times of one entity.

    \b
    Examples:
      pairbus entities show queue orders
      pairbus entities show subscription events audit --json
    """
    _check_names(kind, names, "NAME")
    with administration(connection.target) as admin:
        with _suggestions(admin, kind, names):
            properties = admin.get(kind, names)
        if kind is EntityKind.RULE:
            view = views.rule_view(names, properties)
        elif kind is EntityKind.SUBSCRIPTION:
            counts, rules = admin.get_counts(kind, names), admin.all(EntityKind.RULE, names)
            view = views.subscription_view(names, properties, counts, rules)
        else:
            view = views.entity_view(kind, names, properties, admin.get_counts(kind, names))
    if as_json:
        print_json(view)
    else:
        views.print_details(view)


@app.command()
@flatten_options
def delete(
    kind: EntityKind | None = KIND_OR_ALL,
    names: list[str] | None = argument(
        "NAMES", "NAME..., TOPIC NAME..., or TOPIC SUBSCRIPTION NAME...", default=None
    ),
    *,
    is_all: bool = flag("Delete all of this kind; without KIND, all queues and topics.", "--all"),
    is_sure: bool = flag("Delete without asking; only --all asks.", "--yes", "-y"),
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Delete entities with all their messages. A topic's subscriptions are deleted with it.

    \b
    Examples:
      pairbus entities delete queue orders bills
      pairbus entities delete rule events audit '$Default'
      pairbus entities delete subscriptions events --all
      pairbus entities delete --all --yes
    """
    given = tuple(names or ())
    if kind is None and not is_all:
        raise UsageError("nothing to delete: give KIND NAME..., or --all")
    _check_names(kind, given, "--all" if is_all else "NAME...")
    target = connection.target
    if kind is not None and not is_all:
        depth = len(kind.parents)
        found = [(kind, (*given[:depth], name)) for name in given[depth:]]
    else:
        with administration(target) as admin:
            found = _all_of(admin, kind, given)
        if found and not is_sure:
            entities = f"{len(found):,} {'entity' if len(found) == 1 else 'entities'}"
            confirm(f"Delete {entities} of {target.address} with all their messages?")
    with administration(target) as admin:
        _delete(admin, found)
    if as_json:
        print_json({"deleted": [views.entity_name(each, path) for each, path in found]})
    elif len(found) == 1:
        print(f"deleted {describe(*found[0])}")
    else:
        print(f"deleted {len(found):,} entities")


@app.command()
@flatten_options
def export(
    *,
    output: Path | None = option("FILE", "File to write (default: stdout)."),
    name: str | None = option("NAME", "Name of the namespace in the file (default: its own)."),
    connection: ConnectionOptions,
) -> None:
    """Write all entities as a Config.json for `pairbus broker --config` or Microsoft's emulator.

    It contains no messages, no keys and no authorization rules.

    \b
    Examples:
      pairbus entities export --output Config.json
      pairbus entities export --name sbemulatorns > Config.json
    """
    with administration(connection.target) as admin:
        text = json_text(_config(admin, name), indent=2) + "\n"
    if output is None:
        print(text, end="")
        return
    write_file(output, text, "--output")
    print(f"wrote {output}", file=sys.stderr)


# -- reading -------------------------------------------------------------------------------------


def _rows(admin: Administration, kind: EntityKind | None, parents: Names) -> Iterator[views.View]:
    if kind is not None:
        yield from _rows_of_kind(admin, kind, parents)
        return
    yield from _rows_of_kind(admin, EntityKind.QUEUE, ())
    topics = list(_rows_of_kind(admin, EntityKind.TOPIC, ()))
    with progress("Topics", len(topics)) as advance:
        for topic in topics:
            yield topic
            yield from _rows_of_kind(admin, EntityKind.SUBSCRIPTION, (topic["name"],))
            advance(1)


def _rows_of_kind(admin: Administration, kind: EntityKind, parents: Names) -> Iterator[views.View]:
    counts = {one.name: one for one in admin.all_counts(kind, parents)}
    for properties in admin.all(kind, parents):
        # An entity may have been created between the two requests.
        if properties.name in counts:
            path = (*parents, properties.name)
            yield views.row_view(kind, path, properties, counts[properties.name])


def _all_of(
    admin: Administration, kind: EntityKind | None, parents: Names
) -> list[tuple[EntityKind, Names]]:
    kinds = (EntityKind.QUEUE, EntityKind.TOPIC) if kind is None else (kind,)
    return [(each, (*parents, name)) for each in kinds for name in admin.names(each, *parents)]


def _config(admin: Administration, name: str | None) -> dict[str, Any]:
    # Imported here because it loads the broker's tables of settings.
    from pairbus.cli.entities.config_json import entity_json, rules_json

    queues = [entity_json(EntityKind.QUEUE, queue) for queue in admin.all(EntityKind.QUEUE)]
    topics, found = [], admin.all(EntityKind.TOPIC)
    with progress("Topics", len(found)) as advance:
        for topic in found:
            subscriptions = []
            for subscription in admin.all(EntityKind.SUBSCRIPTION, (topic.name,)):
                rules = admin.all(EntityKind.RULE, (topic.name, subscription.name))
                settings = entity_json(EntityKind.SUBSCRIPTION, subscription)
                subscriptions.append({**settings, "Rules": rules_json(rules)})
            topics.append({**entity_json(EntityKind.TOPIC, topic), "Subscriptions": subscriptions})
            advance(1)
    namespace = {"Name": name or admin.namespace_name(), "Queues": queues, "Topics": topics}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


@contextmanager
def _suggestions(admin: Administration, kind: EntityKind, path: Sequence[str]) -> Iterator[None]:
    """Adds a similar name to the error for an entity that does not exist."""
    try:
        yield
    except EntityNotFound as error:
        *parents, own = path
        names: list[str] = []
        with suppress(NamespaceError):  # a parent does not exist either
            names = admin.names(kind, *parents)
        raise EntityNotFound(f"{error}{did_you_mean(own, names)}") from error


# -- deleting ------------------------------------------------------------------------------------


def _delete(admin: Administration, found: Sequence[tuple[EntityKind, Names]]) -> None:
    done = 0
    try:
        with progress("Deleting", len(found)) as advance:
            for kind, path in found:
                with _suggestions(admin, kind, path):
                    admin.delete(kind, path)
                done += 1
                advance(1)
    except NamespaceError as error:
        if len(found) == 1:
            raise
        raise NamespaceError(f"deleted {done} of {len(found)}, then: {error}") from error


def _check_names(kind: EntityKind | None, names: Sequence[str], last: str = "") -> None:
    """The form is `KIND [TOPIC [SUBSCRIPTION]] LAST`; LAST may be several names, or an option."""
    parents = kind.parents if kind else ()
    form = [*(parent.upper() for parent in parents), *([last] if last else ())]
    needed = sum(not word.startswith("--") for word in form)
    if len(names) == needed or (len(names) > needed and last.endswith("...")):
        return
    if kind is None:
        raise UsageError(f"unexpected name {names[0]!r}: without KIND, give no names")
    right, given = " ".join([kind, *form]), " ".join([kind, *names])
    raise UsageError(f"use: {right}; you gave: {given}")
