"""Entities in the form of Config.json, from the SDK's properties.

The inverse of `broker/entities/config.py`, whose tables it uses. It never writes keys: people show
and share configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from pairbus.broker.entities.config_rules import FALSE_EXPRESSION, TRUE_EXPRESSION
from pairbus.broker.entities.descriptions import (
    DEFAULT_RULE,
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    settings_of,
)
from pairbus.broker.entities.durations import INFINITE, format_duration
from pairbus.broker.entities.settings import EMULATOR_SETTINGS
from pairbus.broker.rules import CORRELATION_PROPERTIES
from pairbus.cli.administration import EntityKind

_DESCRIPTIONS: Final[Mapping[EntityKind, type[EntityDescription]]] = {
    EntityKind.QUEUE: QueueDescription,
    EntityKind.TOPIC: TopicDescription,
    EntityKind.SUBSCRIPTION: SubscriptionDescription,
}
_DEFAULTS: Final = {
    field.name: field.default for kind in _DESCRIPTIONS.values() for field in fields(kind)
}
FOREVER: Final = format_duration(INFINITE)


def setting_values(kind: EntityKind, properties: Any) -> dict[str, object]:
    """All settings of the entity, by the service's names."""
    return {
        name: _to_json(one.field, getattr(properties, one.field, None))
        for name, one in settings_of(_DESCRIPTIONS[kind]).items()
    }


def entity_json(kind: EntityKind, properties: Any) -> dict[str, Any]:
    """The settings that a file needs to have the same meaning in pairbus and in the emulator.

    The emulator's defaults differ from the service's, so all settings that it knows are written. A
    setting that only the service knows is written if it differs from the service's default.
    """
    chosen = {
        key: value
        for key, value in setting_values(kind, properties).items()
        if value not in (None, "", FOREVER)
        and (key in EMULATOR_SETTINGS or value != _default(kind, key))
    }
    return {"Name": properties.name, "Properties": chosen}


def rules_json(rules: Sequence[Any]) -> list[dict[str, Any]]:
    """In a file, a subscription without rules gets the default rule, so that one is left out.

    A real subscription without rules receives nothing, so it gets a rule that matches nothing.
    """
    if not rules:
        return [_rule("nothing", {"SqlExpression": FALSE_EXPRESSION})]
    written = [rule_json(rule) for rule in rules]
    return [] if written == [_rule(DEFAULT_RULE, {"SqlExpression": TRUE_EXPRESSION})] else written


def rule_json(rule: Any) -> dict[str, Any]:
    if hasattr(rule.filter, "sql_expression"):
        written = _rule(rule.name, _sql(rule.filter))
    else:
        given = {
            key: getattr(rule.filter, field)
            for key, field in CORRELATION_PROPERTIES.items()
            if getattr(rule.filter, field)
        }
        if rule.filter.properties:
            given["Properties"] = _values(rule.filter.properties)
        properties = {"FilterType": "Correlation", "CorrelationFilter": given}
        written = {"Name": rule.name, "Properties": properties}
    if rule.action is not None and rule.action.sql_expression:
        written["Properties"]["Action"] = _sql(rule.action)
    return written


def _rule(name: str, sql: dict[str, Any]) -> dict[str, Any]:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": sql}}


def _sql(one: Any) -> dict[str, Any]:
    written: dict[str, Any] = {"SqlExpression": one.sql_expression}
    if one.parameters:
        written["Parameters"] = _values(one.parameters)
    return written


def _values(values: Mapping[str, object]) -> dict[str, object]:
    return {name: _value(value) for name, value in values.items()}


def _value(value: object) -> object:
    if isinstance(value, datetime):
        time = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return {"Type": "dateTime", "Value": time.isoformat().replace("+00:00", "Z")}
    if isinstance(value, timedelta):
        return {"Type": "duration", "Value": format_duration(value)}
    return value


def _to_json(field: str, value: Any) -> object:
    if isinstance(value, timedelta):
        return format_duration(value)
    if field.startswith("forward_") and value:
        # The service answers with a URL, whose path is the name.
        return urlsplit(value).path.strip("/") if "://" in value else value
    return getattr(value, "value", value)  # the SDK's enums


def _default(kind: EntityKind, key: str) -> object:
    field = settings_of(_DESCRIPTIONS[kind])[key].field
    return _to_json(field, _DEFAULTS[field])
