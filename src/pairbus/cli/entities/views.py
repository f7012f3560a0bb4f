"""Entities as a person or a program wants to see them: rows for a table, values for JSON.

Names of settings and counts are the service's own, as in Config.json. Keys are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pairbus.cli.administration import EntityKind
from pairbus.cli.entities.config_json import FOREVER, rule_form, setting_values
from pairbus.cli.output import make_table, print_table

View = dict[str, Any]

_COUNTS: Final = (
    "active_message_count",
    "dead_letter_message_count",
    "scheduled_message_count",
    "transfer_message_count",
    "transfer_dead_letter_message_count",
    "total_message_count",
    "size_in_bytes",
    "subscription_count",
)
_TIMES: Final = ("created_at_utc", "updated_at_utc", "accessed_at_utc")
_YEAR_OF_NEVER: Final = 1


def entity_view(kind: EntityKind, path: Sequence[str], properties: Any, counts: Any) -> View:
    return {
        **place(kind, path),
        "Properties": setting_values(kind, properties),
        "AuthorizationRules": _keys(properties),
        "Runtime": {**_counts(counts), **_times(counts)},
    }


def subscription_view(path: Sequence[str], properties: Any, counts: Any, rules: list[Any]) -> View:
    view = entity_view(EntityKind.SUBSCRIPTION, path, properties, counts)
    del view["AuthorizationRules"]  # a subscription has those of its topic
    return {**view, "Rules": [rule_form(rule) for rule in rules]}


def rule_view(path: Sequence[str], rule: Any) -> View:
    return {
        **place(EntityKind.RULE, path),
        **rule_form(rule),
        "CreatedAt": _time(rule.created_at_utc),
    }


def row_view(kind: EntityKind, path: Sequence[str], properties: Any, counts: Any) -> View:
    status = getattr(properties.status, "value", properties.status)
    return {**place(kind, path), "Status": status, **_counts(counts)}


def place(kind: EntityKind, path: Sequence[str]) -> View:
    names = {parent.value.title(): name for parent, name in zip(kind.parents, path, strict=False)}
    return {"Kind": kind.value, **names, "Name": path[-1]}


def _counts(counts: Any) -> View:
    return {_title(name): getattr(counts, name) for name in _COUNTS if hasattr(counts, name)}


def _times(counts: Any) -> View:
    return {
        _title(name.removesuffix("_utc")): _time(getattr(counts, name))
        for name in _TIMES
        if hasattr(counts, name)
    }


def _time(moment: datetime | None) -> str | None:
    """The service's word for "never" is the year 1."""
    if moment is None or moment.year == _YEAR_OF_NEVER:
        return None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _keys(properties: Any) -> list[View]:
    return [
        {
            "KeyName": rule.key_name,
            "Rights": [str(getattr(right, "value", right)) for right in rule.rights or ()],
        }
        for rule in getattr(properties, "authorization_rules", None) or ()
    ]


def _title(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))


# -- printing -----------------------------------------------------------------------------------


def print_entities(views: Iterable[View]) -> None:
    table = make_table("Kind", "Name", "Status", right=("Active", "Dead-lettered", "Scheduled"))
    for view in views:
        name = f"{view['Topic']}/{view['Name']}" if "Topic" in view else view["Name"]
        counts = (view.get(f"{word}MessageCount") for word in ("Active", "DeadLetter", "Scheduled"))
        table.add_row(view["Kind"], name, str(view["Status"]), *map(_shown, counts))
    print_table(table)


def print_rules(views: Iterable[View]) -> None:
    table = make_table("Name", "Type", "Filter", "Action")
    for view in views:
        properties = view["Properties"]
        kind = properties["FilterType"]
        body = properties[f"{kind}Filter"]
        action = properties.get("Action", {})
        table.add_row(view["Name"], kind, _filter_text(body), action.get("SqlExpression", ""))
    print_table(table)


def print_details(view: View) -> None:
    table = make_table()
    for key, value in view.items():
        if isinstance(value, Mapping):
            for inner, one in value.items():
                table.add_row(inner, _shown(one))
        elif isinstance(value, list):
            for one in value:
                table.add_row(key.removesuffix("s"), _item_text(one))
        else:
            table.add_row(key, _shown(value))
    print_table(table)


def _item_text(item: Mapping[str, Any]) -> str:
    if "KeyName" in item:
        return f"{item['KeyName']}: {', '.join(item['Rights'])}"
    properties = item["Properties"]
    text = f"{item['Name']}: {_filter_text(properties[properties['FilterType'] + 'Filter'])}"
    return f"{text}; {properties['Action']['SqlExpression']}" if "Action" in properties else text


def _filter_text(body: Mapping[str, Any]) -> str:
    if "SqlExpression" in body:
        return str(body["SqlExpression"])
    own = body.get("Properties", {})
    system = {f"sys.{key}": value for key, value in body.items() if key != "Properties"}
    return " and ".join(f"{key} = {_shown(value)!r}" for key, value in {**system, **own}.items())


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    return "unlimited" if value == FOREVER else str(value)
