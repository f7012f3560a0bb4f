"""Entities as Config.json writes them, from what the official SDK says of them.

The inverse of `broker/config.py`, whose tables it uses. Keys are never written: a configuration is
shown and shared.
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
        name: _written(one.field, getattr(properties, one.field, None))
        for name, one in settings_of(_DESCRIPTIONS[kind]).items()
    }


def entity_form(kind: EntityKind, properties: Any) -> dict[str, Any]:
    """With the settings that matter, so that the file means the same to us and to the emulator.

    The emulator has defaults of its own, so what it knows is written out. What only the service
    knows is written where it is not the service's default.
    """
    chosen = {
        key: value
        for key, value in setting_values(kind, properties).items()
        if value not in (None, "", FOREVER)
        and (key in EMULATOR_SETTINGS or value != _default(kind, key))
    }
    return {"Name": properties.name, "Properties": chosen}


def rule_forms(rules: Sequence[Any]) -> list[dict[str, Any]]:
    """Without rules, the file would mean the one that takes everything, so that one is left out.

    And a subscription that has no rule at all takes nothing, which has to be said.
    """
    if not rules:
        return [_rule("nothing", {"SqlExpression": FALSE_EXPRESSION})]
    forms = [rule_form(rule) for rule in rules]
    return [] if forms == [_rule(DEFAULT_RULE, {"SqlExpression": TRUE_EXPRESSION})] else forms


def rule_form(rule: Any) -> dict[str, Any]:
    if hasattr(rule.filter, "sql_expression"):
        form = _rule(rule.name, _sql(rule.filter))
    else:
        given = {
            key: getattr(rule.filter, field)
            for key, field in CORRELATION_PROPERTIES.items()
            if getattr(rule.filter, field)
        }
        if rule.filter.properties:
            given["Properties"] = _values(rule.filter.properties)
        properties = {"FilterType": "Correlation", "CorrelationFilter": given}
        form = {"Name": rule.name, "Properties": properties}
    if rule.action is not None and rule.action.sql_expression:
        form["Properties"]["Action"] = _sql(rule.action)
    return form


def _rule(name: str, sql: dict[str, Any]) -> dict[str, Any]:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": sql}}


def _sql(one: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"SqlExpression": one.sql_expression}
    if one.parameters:
        form["Parameters"] = _values(one.parameters)
    return form


def _values(values: Mapping[str, object]) -> dict[str, object]:
    return {name: _value(value) for name, value in values.items()}


def _value(value: object) -> object:
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return {"Type": "dateTime", "Value": moment.isoformat().replace("+00:00", "Z")}
    if isinstance(value, timedelta):
        return {"Type": "duration", "Value": format_duration(value)}
    return value


def _written(field: str, value: Any) -> object:
    if isinstance(value, timedelta):
        return format_duration(value)
    if field.startswith("forward_") and value:
        # The service answers with a whole URL, and the name is its path.
        return urlsplit(value).path.strip("/") if "://" in value else value
    return getattr(value, "value", value)  # the SDK's enumerations


def _default(kind: EntityKind, key: str) -> object:
    field = settings_of(_DESCRIPTIONS[kind])[key].field
    return _written(field, _DEFAULTS[field])
