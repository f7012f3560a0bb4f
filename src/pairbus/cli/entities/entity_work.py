"""What `pairbus entities` does once its words are understood.

Long work shows its progress on stderr, where somebody watches; stdout is for the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pairbus.cli.administration import Administration, EntityKind, administration, describe
from pairbus.cli.entities import views
from pairbus.cli.entities.config_json import entity_form, rule_forms
from pairbus.cli.output import print_json, progress
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, UsageError

Names = tuple[str, ...]


# -- list and show ------------------------------------------------------------------------------


def show_list(
    target: Target, kind: EntityKind | None, parents: Sequence[str], *, as_json: bool
) -> None:
    with administration(target) as admin:
        if kind is EntityKind.RULE:
            rules = admin.all(kind, parents)
            found = [views.rule_view((*parents, rule.name), rule) for rule in rules]
        else:
            found = list(_rows(admin, kind, parents))
    if as_json:
        print_json(found)
    elif kind is EntityKind.RULE:
        views.print_rules(found)
    else:
        views.print_entities(found)


def _rows(
    admin: Administration, kind: EntityKind | None, parents: Sequence[str]
) -> Iterator[views.View]:
    if kind is not None:
        yield from _rows_of(admin, kind, parents)
        return
    yield from _rows_of(admin, EntityKind.QUEUE, ())
    topics = list(_rows_of(admin, EntityKind.TOPIC, ()))
    with progress("Topics", len(topics)) as advance:
        for topic in topics:
            yield topic
            yield from _rows_of(admin, EntityKind.SUBSCRIPTION, (topic["Name"],))
            advance(1)


def _rows_of(
    admin: Administration, kind: EntityKind, parents: Sequence[str]
) -> Iterator[views.View]:
    counts = {one.name: one for one in admin.all_counts(kind, parents)}
    for properties in admin.all(kind, parents):
        # Between the two questions, one may have been made.
        if properties.name in counts:
            path = (*parents, properties.name)
            yield views.row_view(kind, path, properties, counts[properties.name])


def show_one(target: Target, kind: EntityKind, path: Names, *, as_json: bool) -> None:
    with administration(target) as admin:
        properties = admin.get(kind, path)
        if kind is EntityKind.RULE:
            view = views.rule_view(path, properties)
        elif kind is EntityKind.SUBSCRIPTION:
            rules = admin.all(EntityKind.RULE, path)
            view = views.subscription_view(path, properties, admin.get_counts(kind, path), rules)
        else:
            view = views.entity_view(kind, path, properties, admin.get_counts(kind, path))
    if as_json:
        print_json(view)
    else:
        views.print_details(view)


# -- create and delete --------------------------------------------------------------------------


def create(
    target: Target, kind: EntityKind, path: Names, *, as_json: bool, **settings: Any
) -> None:
    with administration(target) as admin:
        admin.create(kind, path, **settings)
    if as_json:
        print_json({"created": views.place(kind, path)})
    else:
        print(f"{describe(kind, path)} created")


def create_rule(
    target: Target, path: Names, *, replaced: str | None, as_json: bool, **settings: Any
) -> None:
    with administration(target) as admin:
        admin.create(EntityKind.RULE, path, **settings)
        told = {"created": views.place(EntityKind.RULE, path)}
        if not as_json:
            print(f"{describe(EntityKind.RULE, path)} created")
        if replaced is not None:
            former = (*path[:-1], replaced)
            admin.delete(EntityKind.RULE, former)
            told["deleted"] = views.place(EntityKind.RULE, former)
            if not as_json:
                print(f"{describe(EntityKind.RULE, former)} deleted")
    if as_json:
        print_json(told)


def find_all(
    target: Target, kind: EntityKind | None, parents: Names
) -> list[tuple[EntityKind, Names]]:
    kinds = (EntityKind.QUEUE, EntityKind.TOPIC) if kind is None else (kind,)
    with administration(target) as admin:
        return [
            (each, (*parents, properties.name))
            for each in kinds
            for properties in admin.all(each, parents)
        ]


def delete(target: Target, found: Sequence[tuple[EntityKind, Names]], *, as_json: bool) -> None:
    with administration(target) as admin:
        _delete(admin, found)
    if as_json:
        print_json({"deleted": [views.place(kind, path) for kind, path in found]})
    elif len(found) == 1:
        print(f"{describe(*found[0])} deleted")
    else:
        print(f"{len(found)} deleted")


def _delete(admin: Administration, found: Sequence[tuple[EntityKind, Names]]) -> None:
    done = 0
    try:
        with progress("Deleting", len(found)) as advance:
            for kind, path in found:
                admin.delete(kind, path)
                done += 1
                advance(1)
    except NamespaceError as error:
        if len(found) == 1:
            raise
        raise NamespaceError(f"{done} of {len(found)} deleted, then: {error}") from error


# -- export -------------------------------------------------------------------------------------


def export(target: Target, file: Path | None, *, name: str | None) -> None:
    with administration(target) as admin:
        text = json.dumps(_config(admin, name), indent=2, ensure_ascii=False) + "\n"
    if file is None or str(file) == "-":
        print(text, end="")
        return
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    print(f"{file} is written", file=sys.stderr)


def _config(admin: Administration, name: str | None) -> dict[str, Any]:
    queues = [entity_form(EntityKind.QUEUE, queue) for queue in admin.all(EntityKind.QUEUE)]
    topics = []
    for topic in admin.all(EntityKind.TOPIC):
        subscriptions = []
        for subscription in admin.all(EntityKind.SUBSCRIPTION, (topic.name,)):
            form = entity_form(EntityKind.SUBSCRIPTION, subscription)
            rules = rule_forms(admin.all(EntityKind.RULE, (topic.name, subscription.name)))
            subscriptions.append({**form, "Rules": rules})
        topics.append({**entity_form(EntityKind.TOPIC, topic), "Subscriptions": subscriptions})
    namespace = {"Name": name or admin.namespace_name(), "Queues": queues, "Topics": topics}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}
