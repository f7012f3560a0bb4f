"""The rules of a subscription, as the emulator's Config.json writes them.

A filter is a set of values that must match ("Correlation") or an expression ("Sql"). The expression
`1=1` matches every message, and `1=0` none. Beyond the emulator's format, expressions may have
Parameters, and values may be numbers, booleans, times and durations.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from pairbus.broker.entities.descriptions import Filter, RuleDescription, default_rules
from pairbus.broker.entities.located_json import (
    ConfigMistake,
    Members,
    Node,
    Object,
    Scalar,
    check_unique,
    duration,
    items,
    members,
    name_of,
    one_of,
    text,
    text_or_none,
)
from pairbus.broker.rules import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from pairbus.broker.rules.filters import CORRELATION_PROPERTIES
from pairbus.errors import ConfigError

TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"
_FILTER_TYPES: Final = ("Correlation", "Sql")


def read_rules(of: Members, subscription: str) -> tuple[RuleDescription, ...]:
    """Without rules, returns the default rule, which matches every message: tools write `[]` for
    it.
    """
    seen: dict[str, int] = {}
    nodes = items(of, "Rules", f"Rules of subscription {subscription!r}")
    return tuple(_rule(node, subscription, seen) for node in nodes) or default_rules()


def _rule(node: Node, subscription: str, seen: dict[str, int]) -> RuleDescription:
    rule = members(node, "a rule", ("Name", "Properties"))
    name, line = name_of(rule, node, "rule")
    check_unique(seen, name, line, "rule")
    what = f"rule {name!r} of subscription {subscription!r}"
    _described(line, what, lambda: RuleDescription(name=name))
    if "Properties" not in rule:
        raise ConfigMistake(line, f"{what} has no Properties")
    known = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
    properties = members(rule["Properties"].node, f"Properties of {what}", known)
    found = _filter(properties, rule["Properties"].line, what, name)
    action = _action(properties, what, name)
    return RuleDescription(name=name, filter=found, action=action)


def _filter(properties: Members, line: int, what: str, name: str) -> Filter:
    if "FilterType" not in properties:
        raise ConfigMistake(line, f"{what} has no FilterType: {' or '.join(_FILTER_TYPES)}")
    kind = one_of(properties["FilterType"].node, f"FilterType of {what}", _FILTER_TYPES)
    key = f"{kind}Filter"
    if key not in properties:
        raise ConfigMistake(
            properties["FilterType"].line, f"{what} is of type {kind}, but has no {key}"
        )
    read = _sql_filter if kind == "Sql" else _correlation_filter
    return read(properties[key].node, what, name)


def _correlation_filter(node: Node, what: str, name: str) -> Filter:
    known = (*CORRELATION_PROPERTIES, "Properties")
    given = members(node, f"CorrelationFilter of {what}", known)
    settings = {
        CORRELATION_PROPERTIES[key]: text_or_none(member.node, f"{key} of {what}")
        for key, member in given.items()
        if key != "Properties"
    }
    own = _values(given, "Properties", what)

    def make() -> RuleDescription:
        return RuleDescription(name=name, filter=CorrelationFilter(**settings, properties=own))

    return _described(node.line, what, make).filter


def _sql_filter(node: Node, what: str, name: str) -> Filter:
    given = members(node, f"SqlFilter of {what}", ("SqlExpression", "Parameters"))
    expression, line = _expression(given, node, f"SqlFilter of {what}")
    parameters = _values(given, "Parameters", what)
    if not parameters and expression in (TRUE_EXPRESSION, FALSE_EXPRESSION):
        return TrueFilter() if expression == TRUE_EXPRESSION else FalseFilter()

    def make() -> RuleDescription:
        return RuleDescription(name=name, filter=SqlFilter(expression, parameters))

    return _described(line, what, make).filter


def _action(properties: Members, what: str, name: str) -> SqlAction | None:
    if "Action" not in properties:
        return None
    node = properties["Action"].node
    given = members(node, f"Action of {what}", ("SqlExpression", "Parameters"))
    if not given:
        return None
    expression, line = _expression(given, node, f"Action of {what}")
    action = SqlAction(expression, _values(given, "Parameters", what))
    _described(line, what, lambda: RuleDescription(name=name, action=action))
    return action


def _expression(given: Members, node: Node, what: str) -> tuple[str, int]:
    if "SqlExpression" not in given:
        raise ConfigMistake(node.line, f"{what} has no SqlExpression")
    member = given["SqlExpression"]
    return text(member.node, f"SqlExpression of {what}"), member.line


def _described(line: int, what: str, make: Callable[[], RuleDescription]) -> RuleDescription:
    try:
        return make()
    except ConfigError as error:
        raise ConfigMistake(line, f"{what}: {error}") from error


# -- values that messages are compared with -----------------------------------------------------


def _values(given: Members, key: str, what: str) -> dict[str, object]:
    if key not in given:
        return {}
    own = members(given[key].node, f"{key} of {what}", None)
    return {
        name: _value(member.node, f"{name!r} in the {key} of {what}")
        for name, member in own.items()
    }


def _value(node: Node, what: str) -> object:
    if isinstance(node, Scalar):
        return node.value
    if not isinstance(node, Object):
        raise ConfigMistake(
            node.line, f"{what} must be a text, a number, true or false, not {node}"
        )
    # JSON has no times and durations: {"Type": "duration", "Value": "PT1M"}.
    typed = members(node, what, ("Type", "Value"))
    if set(typed) != {"Type", "Value"}:
        raise ConfigMistake(node.line, f"{what} needs a Type and a Value")
    kind = one_of(typed["Type"].node, f"the Type of {what}", tuple(_TYPED))
    return _TYPED[kind](typed["Value"].node, what)


def _time(node: Node, what: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text(node, what))
    except ValueError as error:
        raise ConfigMistake(
            node.line, f'{what} must be a time such as "2030-12-31T23:59:59Z", not {node}'
        ) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_TYPED: Final[dict[str, Callable[[Node, str], object]]] = {"dateTime": _time, "duration": duration}
