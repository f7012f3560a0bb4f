"""The rules of subscriptions: which messages they match, and what they change in them.

It implements filters and actions in the documented language of Service Bus. A rule is checked and
compiled when it is created, and then called once per message. What happens to a message that
matches, or that a filter fails on, is decided elsewhere.
"""

from pairbus.broker.rules.actions import PropertyChanges, apply_changes, compile_action
from pairbus.broker.rules.compile import compile_filter
from pairbus.broker.rules.facts import Facts
from pairbus.broker.rules.filters import (
    BATCH_WORK_MAX,
    CORRELATION_PROPERTIES,
    CorrelationFilter,
    EvaluationError,
    FalseFilter,
    Filter,
    RuleError,
    RuleWork,
    SqlAction,
    SqlFilter,
    TrueFilter,
    work_of,
)

__all__ = [
    "BATCH_WORK_MAX",
    "CORRELATION_PROPERTIES",
    "CorrelationFilter",
    "EvaluationError",
    "Facts",
    "FalseFilter",
    "Filter",
    "PropertyChanges",
    "RuleError",
    "RuleWork",
    "SqlAction",
    "SqlFilter",
    "TrueFilter",
    "apply_changes",
    "compile_action",
    "compile_filter",
    "work_of",
]
