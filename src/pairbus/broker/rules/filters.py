"""Filters and actions as they are described, the two ways in which a rule can fail, and its work.

Descriptions are values: what the administration API stores, lists and gives back. `compile` and
`actions` make functions of them, which is also their check: a rule that cannot be compiled is
refused when it is created.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
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

    # In the order that they have on the wire.
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
    one.name.title().replace("_", ""): one.name
    for one in fields(CorrelationFilter)
    if one.name != "properties"
}
"""System property -> field of CorrelationFilter: `ReplyTo` -> `reply_to`."""

Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)


# -- work: rules run on the event loop, where all other clients wait ---------------------------
#
# A step is a tenth of a microsecond: the time for one character that LIKE looks at by itself. What
# a rule does with each message is estimated from its text. What depends on the length of a value is
# counted while the rule runs.

WORK_MAX: Final = 300_000
"""For one message, over all rules of a topic: about 30 ms."""
BATCH_WORK_MAX: Final = 50 * WORK_MAX

_CHARACTERS_IN_A_STEP: Final = 16
_OPERATOR_STEPS: Final = 3
_LIKE_STEPS: Final = 7
_NEWID_STEPS: Final = 15
_FOUND_AT_ONCE: Final = 32
_TEXT: Final = re.compile("'[^']*'")
_OPERATORS: Final = re.compile("[-+*/%<>]")
_NEWID: Final = re.compile("newid", re.IGNORECASE)
_LIKE: Final = re.compile("like", re.IGNORECASE)
_SLOW_LIKE: Final = re.compile(r"like\s+'[^']*_|like\s+[^\s']", re.IGNORECASE)
"""Patterns with `_`, and those that are not known before."""


@dataclass(frozen=True, slots=True)
class RuleWork:
    """What rules need for a message, at most."""

    steps: int = 0
    scans: int = 0
    """How often they look at a value, in thirty-seconds of a step for each byte."""

    def for_properties(self, size_bytes: int) -> int:
        return min(WORK_MAX, self.steps + self.scans * size_bytes // _FOUND_AT_ONCE)


def work_of(filters: Iterable[Filter]) -> RuleWork:
    steps = scans = 0
    for one in filters:
        if isinstance(one, SqlFilter):
            code = _TEXT.sub("''", one.expression)
            likes = len(_LIKE.findall(code))
            steps += max(1, len(one.expression) // _CHARACTERS_IN_A_STEP)
            steps += len(_OPERATORS.findall(code)) * _OPERATOR_STEPS
            steps += len(_NEWID.findall(code)) * _NEWID_STEPS + likes * _LIKE_STEPS
            slow = len(_SLOW_LIKE.findall(one.expression)) + code.count("+")
            scans += likes + slow * _FOUND_AT_ONCE
        elif isinstance(one, CorrelationFilter):
            steps += 1
    return RuleWork(steps, scans)


class WorkBudget:
    """Limits the work for one message over all rules of a topic."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = WORK_MAX

    def spend(self, steps: int) -> None:
        """Raises EvaluationError if too little is left. Rules that need less still run."""
        if steps > self._left:
            raise EvaluationError(
                f"the rules of this topic need more than {WORK_MAX:,} steps for one message"
            )
        self._left -= steps
