"""Entities for people and programs: rows and details for tables, objects for JSON.

Keys are camelCase; settings and rules are objects of Config.json, with the service's names. Keys of
policies are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pairbus.broker.entities.durations import INFINITE, format_duration
from pairbus.cli.administration import EntityKind
from pairbus.cli.output import make_table, print_rows, print_table
from pairbus.json_style import camel_case_keys

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
_FOREVER: Final = format_duration(INFINITE)


def entity_name(kind: EntityKind, path: Sequence[str]) -> View:
    parents = {parent.value: name for parent, name in zip(kind.parents, path, strict=False)}
    return {"kind": kind.value, **parents, "name": path[-1]}


def entity_view(kind: EntityKind, path: Sequence[str], properties: Any, counts: Any) -> View:
    from pairbus.cli.entities.config_json import setting_values  # loads the broker's tables

    return {
        **entity_name(kind, path),
        "properties": setting_values(kind, properties),
        "authorizationRules": _authorization_rules(properties),
        "runtime": {**_counts(counts), **_times(counts)},
    }


def subscription_view(path: Sequence[str], properties: Any, counts: Any, rules: list[Any]) -> View:
    from pairbus.cli.entities.config_json import rule_json

    view = entity_view(EntityKind.SUBSCRIPTION, path, properties, counts)
    del view["authorizationRules"]  # a subscription has those of its topic
    return {**view, "rules": [rule_json(rule) for rule in rules]}


def rule_view(path: Sequence[str], rule: Any) -> View:
    from pairbus.cli.entities.config_json import rule_json

    return {
        **entity_name(EntityKind.RULE, path),
        "properties": rule_json(rule)["Properties"],
        "createdAt": _time(rule.created_at_utc),
    }


def row_view(kind: EntityKind, path: Sequence[str], properties: Any, counts: Any) -> View:
    status = getattr(properties.status, "value", properties.status)
    return {**entity_name(kind, path), "status": status, **_counts(counts)}


def _counts(counts: Any) -> View:
    return camel_case_keys(
        {name: getattr(counts, name) for name in _COUNTS if hasattr(counts, name)}
    )


def _times(counts: Any) -> View:
    return camel_case_keys(
        {
            name.removesuffix("_utc"): _time(getattr(counts, name))
            for name in _TIMES
            if hasattr(counts, name)
        }
    )


def _time(time: datetime | None) -> str | None:
    """Returns None for the year 1, which the service writes for "never"."""
    if time is None or time.year == _YEAR_OF_NEVER:
        return None
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def _authorization_rules(properties: Any) -> list[View]:
    return [
        {
            "keyName": rule.key_name,
            "rights": [str(getattr(right, "value", right)) for right in rule.rights or ()],
        }
        for rule in getattr(properties, "authorization_rules", None) or ()
    ]


# -- printing -----------------------------------------------------------------------------------


def print_entities(views: Iterable[View], *, if_empty: str) -> None:
    table = make_table("kind", "name", "status", right=("active", "dead-lettered", "scheduled"))
    for view in views:
        name = f"{view['topic']}/{view['name']}" if "topic" in view else view["name"]
        counts = (
            view.get(f"{state}MessageCount") for state in ("active", "deadLetter", "scheduled")
        )
        texts = ("-" if count is None else f"{count:,}" for count in counts)
        table.add_row(view["kind"], name, str(view["status"]), *texts)
    print_rows(table, if_empty=if_empty)


def print_rules(views: Iterable[View], *, if_empty: str) -> None:
    table = make_table("name", "type", "filter", "action")
    for view in views:
        properties = view["properties"]
        kind = properties["FilterType"]
        action = properties.get("Action", {})
        text = _filter_text(properties[f"{kind}Filter"])
        table.add_row(view["name"], kind, text, action.get("SqlExpression", ""))
    print_rows(table, if_empty=if_empty)


def print_details(view: View) -> None:
    table = make_table()
    for key, value in view.items():
        if isinstance(value, Mapping):
            for inner, one in value.items():
                table.add_row(inner, _text(one))
        elif isinstance(value, list):
            for one in value:
                table.add_row(key.removesuffix("s"), _item_text(one))
        else:
            table.add_row(key, _text(value))
    print_table(table)


def _item_text(item: Mapping[str, Any]) -> str:
    if "keyName" in item:
        return f"{item['keyName']}: {', '.join(item['rights'])}"
    properties = item["Properties"]
    text = f"{item['Name']}: {_filter_text(properties[properties['FilterType'] + 'Filter'])}"
    return f"{text}; {properties['Action']['SqlExpression']}" if "Action" in properties else text


def _filter_text(filter: Mapping[str, Any]) -> str:
    if "SqlExpression" in filter:
        return str(filter["SqlExpression"])
    own = filter.get("Properties", {})
    system = {f"sys.{key}": value for key, value in filter.items() if key != "Properties"}
    return " and ".join(f"{key} = {_text(value)!r}" for key, value in {**system, **own}.items())


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    return "unlimited" if value == _FOREVER else str(value)
