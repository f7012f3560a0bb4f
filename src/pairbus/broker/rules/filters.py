"""Filters and actions as they are described, and the two ways in which a rule can fail.

Descriptions are values: what the administration API stores, lists and gives back. `compile` and
`actions` make functions of them, which is also their check: a rule that cannot be compiled is
refused when it is created.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pairbus.errors import ConfigError

_SHOWN_MAX: Final = 120


class RuleError(ConfigError):
    """A filter or an action that is not valid: which one, where, and why. Counted from 1."""

    def __init__(
        self, expression: str, reason: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        shown = expression if len(expression) <= _SHOWN_MAX else expression[:_SHOWN_MAX] + "..."
        where = "" if line is None else f" at line {line}, column {column}"
        super().__init__(f"the expression {shown!r} is not valid{where}: {reason}")
        self.expression = expression
        self.reason = reason
        self.line = line
        self.column = column


class EvaluationError(Exception):
    """The filter or action fails on this message. The subscription decides what happens to it."""


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Matches every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Matches no message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """By name, with or without the @."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Matches messages that equal all fields given here. None: the field does not matter."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)


CORRELATION_PROPERTIES: Final = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
"""System property -> field of CorrelationFilter, in the order that they have on the wire."""

Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)
