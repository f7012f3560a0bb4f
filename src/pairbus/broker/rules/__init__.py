"""The rules of subscriptions: which messages they take, and what they change in them.

Filters and actions in the language that Service Bus documents: described, checked and compiled when
a rule is made, and then asked once per message. What becomes of a message that matches, or that a
filter fails on, is decided elsewhere.
"""

from pairbus.broker.rules.actions import Changes, compile_action
from pairbus.broker.rules.apply import apply_changes
from pairbus.broker.rules.errors import EvaluationError, RuleError
from pairbus.broker.rules.facts import Facts
from pairbus.broker.rules.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    compile_filter,
)

__all__ = [
    "Changes",
    "CorrelationFilter",
    "EvaluationError",
    "Facts",
    "FalseFilter",
    "Filter",
    "RuleError",
    "SqlAction",
    "SqlFilter",
    "TrueFilter",
    "apply_changes",
    "compile_action",
    "compile_filter",
]
