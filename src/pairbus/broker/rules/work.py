"""How much work rules are. They run on the event loop, where all other clients wait.

A step is a tenth of a microsecond: the time for one character that LIKE looks at by itself. What a
rule does with each message is estimated from its text. What depends on the length of a value is
counted while the rule runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pairbus.broker.rules.filters import CorrelationFilter, EvaluationError, Filter, SqlFilter

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
