"""Correlation filters: a message matches if it has all the values that the filter names."""

from collections.abc import Callable
from typing import Any

from pairbus.broker.rules import operators
from pairbus.broker.rules.facts import Facts
from pairbus.broker.rules.filters import CORRELATION_PROPERTIES, CorrelationFilter, RuleError
from pairbus.broker.rules.values import check_values


def compile_correlation(filter: CorrelationFilter) -> Callable[[Facts], bool]:
    system = [
        (name, getattr(filter, field_name))
        for name, field_name in CORRELATION_PROPERTIES.items()
        if getattr(filter, field_name) is not None
    ]
    user: list[tuple[str, Any, frozenset[type]]] = []
    shown = "CorrelationFilter"
    for name, expected in check_values(shown, filter.properties).items():
        if expected is None:
            raise RuleError(shown, f"the property {name!r} needs a value: nothing equals null")
        user.append((name, expected, operators.KINDS[expected.__class__]))
    if len(system) == 1 and not user:
        [(only, wanted)] = system
        return lambda facts: bool(facts.system[only] == wanted)

    def matches(facts: Facts) -> bool:
        system_values, user_values = facts.system, facts.user
        for name, expected in system:
            if system_values[name] != expected:
                return False
        for name, expected, kinds in user:
            value = user_values[name]
            if value.__class__ not in kinds or value != expected:
                return False
        return True

    return matches
