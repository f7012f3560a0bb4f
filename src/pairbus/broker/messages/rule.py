"""A subscription's rule at work: what it matches, and the copies that its action makes.

It is compiled before its first message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from pairbus.amqp.codec.sections import read_annotations
from pairbus.broker import rules
from pairbus.broker.entities.descriptions import RuleDescription
from pairbus.broker.messages.incoming import SCHEDULED_TIME, IncomingMessage
from pairbus.broker.rules import EvaluationError, Facts, PropertyChanges, RuleWork

logger = logging.getLogger(__name__)

_CHARACTERS_MIN: Final = 10
"""What even the shortest rule takes."""
_SCHEDULE: Final = "ScheduledEnqueueTimeUtc"
_RULE_NAME: Final = "RuleName"
"""The property of a copy that an action has changed: the name of its rule."""


class CompiledRule:
    __slots__ = ("_action", "_action_steps", "_matches", "description", "is_compiled", "work")

    def __init__(self, description: RuleDescription) -> None:
        self.description = description
        self.is_compiled = False
        self._matches: Callable[[Facts], bool] | None = None
        """None matches everything."""
        self._action: Callable[[Facts], PropertyChanges] | None = None
        self._action_steps = 0
        self.work = RuleWork()
        """Known when it is compiled."""

    @property
    def characters(self) -> int:
        """What takes time to compile."""
        filter, action = self.description.filter, self.description.action
        found = _CHARACTERS_MIN
        if isinstance(filter, rules.SqlFilter):
            found += len(filter.expression)
        return found if action is None else found + len(action.expression)

    def compile(self) -> None:
        filter, action = self.description.filter, self.description.action
        self.is_compiled = True
        self.work = rules.work_of([filter])
        try:
            if not isinstance(filter, rules.TrueFilter):
                self._matches = rules.compile_filter(filter)
            if action is not None:
                self._action = rules.compile_action(action)
                self._action_steps = rules.work_of([rules.SqlFilter(action.expression)]).steps
        except rules.RuleError as error:  # the data file is damaged, or of another version
            logger.error("rule %r fails on every message: %s", self.description.name, error)
            self._matches = partial(_fail, str(error))

    def matches(self, facts: Facts) -> bool:
        return self._matches is None or self._matches(facts)

    def changed_copy(self, one: IncomingMessage, facts: Facts) -> IncomingMessage:
        """What its action makes of a message that it matches. Raises EvaluationError."""
        assert self._action is not None
        facts.budget.spend(self._action_steps)
        changes = self._action(facts)
        changes.user_set.setdefault(_RULE_NAME, self.description.name)
        try:
            parts = rules.apply_changes(one.parts, changes)
        except ValueError as error:  # a result that cannot be stored in a message
            raise EvaluationError(f"rule {self.description.name!r}: {error}") from error
        due_ms = None
        if _SCHEDULE in changes.system:
            due_ms = read_annotations(parts.annotations).get(SCHEDULED_TIME)
        size = one.size + len(parts.bare) - len(one.parts.bare)
        return replace(one, parts=parts, size=size, due_ms=due_ms)


def _fail(reason: str, facts: Facts) -> bool:
    raise EvaluationError(reason)
