"""The rules of a subscription, as the emulator's Config.json writes them.

A filter is a set of values that must match ("Correlation") or an expression ("Sql"). The expression
`1=1` matches every message, and `1=0` none. Beyond the emulator's format, expressions may have
Parameters, and values may be numbers, booleans, times and durations.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from pairbus.broker.entities.descriptions import RuleDescription, default_rules
from pairbus.broker.entities.located_json import ConfigMistake, Members, Node
from pairbus.broker.rules import (
    CORRELATION_PROPERTIES,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    compile_action,
    compile_filter,
)
from pairbus.broker.rules.values import utc
from pairbus.errors import ConfigError

TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"
_FILTER_TYPES: Final = ("Correlation", "Sql")


def read_rules(of: Members, subscription: str) -> tuple[RuleDescription, ...]:
    """Without rules, returns the default rule, which matches every message: tools write `[]` for
    it.
    """
    seen: dict[str, int] = {}
    nodes = of.list("Rules", f"Rules of subscription {subscription!r}")
    return tuple(_rule(node, subscription, seen) for node in nodes) or default_rules()


def _rule(node: Node, subscription: str, seen: dict[str, int]) -> RuleDescription:
    rule = node.members("a rule", ("Name", "Properties"))
    name, line = rule.name("rule", seen)
    what = f"rule {name!r} of subscription {subscription!r}"
    _check(line, what, lambda: RuleDescription(name=name))
    if "Properties" not in rule:
        raise ConfigMistake(line, f"{what} has no Properties")
    known = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
    properties = rule["Properties"].node.members(f"Properties of {what}", known)
    found = _filter(properties, rule["Properties"].line, what)
    return RuleDescription(name=name, filter=found, action=_action(properties, what))


def _filter(properties: Members, line: int, what: str) -> Filter:
    if "FilterType" not in properties:
        raise ConfigMistake(line, f"{what} has no FilterType: {' or '.join(_FILTER_TYPES)}")
    kind = properties["FilterType"].node.one_of(f"FilterType of {what}", _FILTER_TYPES)
    key = f"{kind}Filter"
    if key not in properties:
        raise ConfigMistake(
            properties["FilterType"].line, f"{what} is of type {kind}, but has no {key}"
        )
    read = _sql_filter if kind == "Sql" else _correlation_filter
    return read(properties[key].node, what)


def _correlation_filter(node: Node, what: str) -> Filter:
    known = (*CORRELATION_PROPERTIES, "Properties")
    given = node.members(f"CorrelationFilter of {what}", known)
    settings = {
        CORRELATION_PROPERTIES[key]: member.node.text_or_none(f"{key} of {what}")
        for key, member in given.items()
        if key != "Properties"
    }
    found = CorrelationFilter(**settings, properties=_values(given, "Properties", what))
    _check(node.line, what, lambda: compile_filter(found))
    return found


def _sql_filter(node: Node, what: str) -> Filter:
    given = node.members(f"SqlFilter of {what}", ("SqlExpression", "Parameters"))
    expression, line = _expression(given, f"SqlFilter of {what}")
    parameters = _values(given, "Parameters", what)
    if not parameters and expression in (TRUE_EXPRESSION, FALSE_EXPRESSION):
        return TrueFilter() if expression == TRUE_EXPRESSION else FalseFilter()
    found = SqlFilter(expression, parameters)
    _check(line, what, lambda: compile_filter(found))
    return found


def _action(properties: Members, what: str) -> SqlAction | None:
    if "Action" not in properties:
        return None
    node = properties["Action"].node
    given = node.members(f"Action of {what}", ("SqlExpression", "Parameters"))
    if not given:
        return None
    expression, line = _expression(given, f"Action of {what}")
    action = SqlAction(expression, _values(given, "Parameters", what))
    _check(line, what, lambda: compile_action(action))
    return action


def _expression(given: Members, what: str) -> tuple[str, int]:
    if "SqlExpression" not in given:
        raise ConfigMistake(given.line, f"{what} has no SqlExpression")
    member = given["SqlExpression"]
    return member.node.text(f"SqlExpression of {what}"), member.line


def _check(line: int, what: str, make: Callable[[], object]) -> None:
    """Report an error of `make` as a mistake in this line."""
    try:
        make()
    except ConfigError as error:
        raise ConfigMistake(line, f"{what}: {error}") from error


# -- values that messages are compared with -----------------------------------------------------


def _values(given: Members, key: str, what: str) -> dict[str, object]:
    if key not in given:
        return {}
    own = given[key].node.members(f"{key} of {what}", None)
    return {
        name: _value(member.node, f"{name!r} in the {key} of {what}")
        for name, member in own.items()
    }


def _value(node: Node, what: str) -> object:
    if not node.is_object and not isinstance(node.value, list):
        return node.value
    if not node.is_object:
        raise ConfigMistake(
            node.line, f"{what} must be a string, a number, true or false, not {node}"
        )
    # JSON has no times and durations: {"Type": "duration", "Value": "PT1M"}.
    typed = node.members(what, ("Type", "Value"))
    if set(typed) != {"Type", "Value"}:
        raise ConfigMistake(node.line, f"{what} needs a Type and a Value")
    kind = typed["Type"].node.one_of(f"the Type of {what}", tuple(_TYPED))
    return _TYPED[kind](typed["Value"].node, what)


def _time(node: Node, what: str) -> datetime:
    try:
        return utc(datetime.fromisoformat(node.text(what)))
    except (ValueError, OverflowError) as error:
        raise ConfigMistake(
            node.line, f'{what} must be a time such as "2030-12-31T23:59:59Z", not {node}'
        ) from error


_TYPED: Final[dict[str, Callable[[Node, str], object]]] = {
    "dateTime": _time,
    "duration": Node.duration,
}
