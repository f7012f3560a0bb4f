"""What can go wrong with a rule: when it is made, and when it meets a message.

The first is the fault of whoever wrote the rule, and is refused to their face; the second only
shows on a message, and what becomes of that message is the subscription's decision.
"""

from pairbus.errors import ConfigError

SHOWN_MAX = 120


class RuleError(ConfigError):
    """A filter or an action that cannot be: which one, where in it, and why. Counted from 1."""

    def __init__(
        self, expression: str, reason: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        shown = expression if len(expression) <= SHOWN_MAX else expression[:SHOWN_MAX] + "..."
        where = "" if line is None else f" at line {line}, column {column}"
        super().__init__(f"the expression {shown!r} is not valid{where}: {reason}")
        self.expression = expression
        self.reason = reason
        self.line = line
        self.column = column


class EvaluationError(Exception):
    """This filter or action cannot say anything about this message."""
