"""The filters and actions of rules as they are described, and filters as functions of a message.

Descriptions are values: what the administration API stores, lists and gives back. Compiling is also
the check of one: a rule that cannot be compiled is refused when it is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from pairbus.broker.rules.compile import Compiler, check_values
from pairbus.broker.rules.errors import RuleError
from pairbus.broker.rules.facts import Facts
from pairbus.broker.rules.operators import KINDS

Matches = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Takes every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Takes none."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """By name, with or without the @."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Takes what equals all that is given here; what is None is not looked at."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)


Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)


_SYSTEM: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}


def compile_filter(filter: Filter) -> Matches:
    """Whether a message matches: only if the condition is TRUE, UNKNOWN does not do.

    Raises RuleError; what it returns raises EvaluationError.
    """
    match filter:
        case TrueFilter():
            return lambda facts: True
        case FalseFilter():
            return lambda facts: False
        case SqlFilter(expression, parameters):
            # The parser is loaded with the first expression: a broker without rules needs none.
            from pairbus.broker.rules.parse import parse_filter

            test = Compiler(expression, parameters).test(parse_filter(expression))
            return lambda facts: test(facts) is True
        case CorrelationFilter():
            return _correlation(filter)
    assert_never(filter)


def _correlation(filter: CorrelationFilter) -> Matches:
    system = [
        (name, getattr(filter, field_name))
        for field_name, name in _SYSTEM.items()
        if getattr(filter, field_name) is not None
    ]
    user: list[tuple[str, Any, frozenset[type]]] = []
    shown = "CorrelationFilter"
    for name, expected in check_values(shown, filter.properties).items():
        if expected is None:
            raise RuleError(shown, f"the property {name!r} must have a value, nothing equals null")
        user.append((name, expected, KINDS[expected.__class__]))
    if len(system) == 1 and not user:
        [(only, wanted)] = system
        return lambda facts: bool(facts.own[only] == wanted)

    def matches(facts: Facts) -> bool:
        own, app = facts.own, facts.app
        for name, expected in system:
            if own[name] != expected:
                return False
        for name, expected, kinds in user:
            value = app[name]
            if value.__class__ not in kinds or value != expected:
                return False
        return True

    return matches
