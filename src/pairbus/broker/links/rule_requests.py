"""Rules over AMQP: the operations of a subscription's `$management` that list and change its rules.

The Python SDK does this over HTTP. The rule managers of .NET, Java, Go and Node use this. Filters
and actions are read from maps and written as described lists, each kind with a code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pairbus.amqp.codec.types import Described, Int, Timestamp, ULong
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import RuleDescription
from pairbus.broker.entities.policies import Right
from pairbus.broker.links.operation import (
    Context,
    ManagementOperation,
    Refused,
    SendReply,
    integer,
    reply_when_durable,
    text,
    wrong,
)
from pairbus.broker.links.request_codec import Reply, no_entity
from pairbus.broker.messages.topic import Subscription
from pairbus.broker.rules import (
    CORRELATION_PROPERTIES,
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from pairbus.broker.rules.values import to_amqp, to_python
from pairbus.errors import ConfigError

_RULE: Final = 0x13700000004
_EMPTY_ACTION: Final = 0x13700000005
_SQL_ACTION: Final = 0x13700000006
_SQL_FILTER: Final = 0x1370000006
_TRUE_FILTER: Final = 0x1370000007
_FALSE_FILTER: Final = 0x1370000008
_CORRELATION_FILTER: Final = 0x1370000009
_COMPATIBILITY_LEVEL: Final = 20

# Key in a request's map -> field of CorrelationFilter, in the order of the reply's list.
_CORRELATION: Final = {field.replace("_", "-"): field for field in CORRELATION_PROPERTIES.values()}


def add_rule(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    subscription = _subscription(context)
    name = text(body, "rule-name")
    described = body.get("rule-description")
    if not isinstance(described, dict):
        raise wrong("rule-description", described, "a map")
    try:
        rule = RuleDescription(
            name=name,
            filter=_filter(described),
            action=_action(described.get("sql-rule-action")),
            created_ms=context.now_ms,
        )
    except ConfigError as error:
        raise Refused(AmqpError("com.microsoft:argument-error", str(error))) from error
    if subscription.description.find_rule(name) is not None:
        raise Refused(
            AmqpError(
                "com.microsoft:entity-already-exists",
                f"{subscription.description} has a rule {name!r} already",
            )
        )
    _store(context, subscription, (*subscription.description.rules, rule), reply)


def remove_rule(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    subscription = _subscription(context)
    name = text(body, "rule-name")
    rule = subscription.description.find_rule(name)
    if rule is None:
        raise Refused(no_entity(context.namespace.name, f"{subscription.name}/Rules/{name}"))
    rules = tuple(other for other in subscription.description.rules if other is not rule)
    _store(context, subscription, rules, reply)


def enumerate_rules(context: Context, body: dict[str, Any], reply: SendReply) -> None:
    subscription = _subscription(context)
    skip, top = integer(body, "skip"), integer(body, "top", least=1)
    page = subscription.description.rules[skip : skip + top]
    found = [{"rule-description": _described(rule)} for rule in page]
    reply(Reply(200, body={"rules": found}) if found else Reply(204, "No Content"))


def _subscription(context: Context) -> Subscription:
    if not isinstance(context.queue, Subscription):
        raise Refused(AmqpError("amqp:not-allowed", f"{context.queue.description} has no rules"))
    return context.queue


def _store(
    context: Context,
    subscription: Subscription,
    rules: tuple[RuleDescription, ...],
    reply: SendReply,
) -> None:
    try:
        context.namespace.update(subscription, replace(subscription.description, rules=rules))
    except ConfigError as error:
        raise Refused(AmqpError("amqp:not-allowed", str(error))) from error
    reply_when_durable(context, reply, "the rule")


# reading


def _filter(described: dict[str, Any]) -> Filter:
    readers: dict[str, Callable[[Any], Filter]] = {
        "sql-filter": lambda value: SqlFilter(text(_map(value, "sql-filter"), "expression")),
        "correlation-filter": lambda value: _correlation(_map(value, "correlation-filter")),
        "true-filter": lambda value: TrueFilter(),
        "false-filter": lambda value: FalseFilter(),
    }
    for key, read in readers.items():
        if described.get(key) is not None:
            return read(described[key])
    raise wrong("rule-description", list(described), f"a map with one of {', '.join(readers)}")


def _correlation(values: dict[str, Any]) -> CorrelationFilter:
    fields: dict[str, Any] = {}
    for key, name in _CORRELATION.items():
        if values.get(key) is not None:
            fields[name] = text(values, key)
    properties = _map(values.get("properties") or {}, "properties")
    if not all(isinstance(name, str) for name in properties):
        raise wrong("properties", properties, "a map whose keys are strings")
    # As Python values, because those are what the data file keeps with their types.
    return CorrelationFilter(
        **fields, properties={str(name): to_python(value) for name, value in properties.items()}
    )


def _action(value: Any) -> SqlAction | None:
    if value is None:
        return None
    return SqlAction(text(_map(value, "sql-rule-action"), "expression"))


def _map(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, value, "a map")
    return value


# writing


def _described(rule: RuleDescription) -> Described:
    action = (
        Described(ULong(_EMPTY_ACTION), [])
        if rule.action is None
        else Described(ULong(_SQL_ACTION), [rule.action.expression, Int(_COMPATIBILITY_LEVEL)])
    )
    filter_ = _described_filter(rule.filter)
    return Described(ULong(_RULE), [filter_, action, rule.name, Timestamp(rule.created_ms)])


def _described_filter(filter_: Filter) -> Described:
    match filter_:
        case TrueFilter():
            return Described(ULong(_TRUE_FILTER), [])
        case FalseFilter():
            return Described(ULong(_FALSE_FILTER), [])
        case SqlFilter():
            level = Int(_COMPATIBILITY_LEVEL)
            return Described(ULong(_SQL_FILTER), [filter_.expression, level])
        case CorrelationFilter():
            fields = [getattr(filter_, name) for name in _CORRELATION.values()]
            properties = {name: to_amqp(value) for name, value in filter_.properties.items()}
            return Described(ULong(_CORRELATION_FILTER), [*fields, properties])


def _manage(function: Callable[[Context, dict[str, Any], SendReply], None]) -> ManagementOperation:
    return ManagementOperation(function, right=Right.MANAGE, billed_as="manage")


OPERATIONS: Final = {
    "com.microsoft:add-rule": _manage(add_rule),
    "com.microsoft:remove-rule": _manage(remove_rule),
    "com.microsoft:enumerate-rules": _manage(enumerate_rules),
}
