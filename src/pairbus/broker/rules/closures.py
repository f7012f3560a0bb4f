"""The pieces that compiled rules are put together from: one function in, one function out.

A predicate says True, False or None for UNKNOWN; an expression gives a plain value, None if it has
none. AND and OR stop as soon as the verdict is certain, and only then: what follows UNKNOWN is
still evaluated, and may still fail.
"""

from collections.abc import Callable
from typing import Any

from pairbus.broker.rules import nodes
from pairbus.broker.rules.errors import EvaluationError
from pairbus.broker.rules.facts import SYSTEM_NAMES, Facts
from pairbus.broker.rules.operators import calculate

Value = Callable[[Facts], Any]
Test = Callable[[Facts], bool | None]


def system_name(node: nodes.Property) -> str:
    return SYSTEM_NAMES.get(node.name.lower(), node.name)


def property_value(node: nodes.Property) -> Value:
    if node.is_system:
        canonical = system_name(node)
        return lambda facts: facts.own[canonical]
    lower = node.name.lower()
    return lambda facts: facts.app[lower]


def property_name(value: object) -> str:
    """The name that `property(...)` was given."""
    if isinstance(value, str):
        return value.lower()
    raise EvaluationError(f"property() takes a name, not {value!r}")


def lookup(name: Value) -> Value:
    def value(facts: Facts) -> object:
        wanted = name(facts)
        return None if wanted is None else facts.app[property_name(wanted)]

    return value


def chained(first: Value, rest: list[tuple[str, Value]]) -> Value:
    def value(facts: Facts) -> object:
        result = first(facts)
        for symbol, operand in rest:
            result = calculate(symbol, result, operand(facts))
        return result

    return value


def after(read: Value, verdict: bool | None) -> Test:
    """A verdict that is known, after the evaluation that may fail."""

    def test(facts: Facts) -> bool | None:
        read(facts)
        return verdict

    return test


def is_member(
    read: Value, choices: frozenset[object], kinds: frozenset[type], negated: bool
) -> Test:
    if negated:

        def is_none_of_them(facts: Facts) -> bool | None:
            value = read(facts)
            return value not in choices if value.__class__ in kinds else None

        return is_none_of_them

    def is_one_of_them(facts: Facts) -> bool | None:
        value = read(facts)
        return value in choices if value.__class__ in kinds else None

    return is_one_of_them


def is_null(read: Value, negated: bool) -> Test:
    if negated:
        return lambda facts: read(facts) is not None
    return lambda facts: read(facts) is None


def exists(node: nodes.Property) -> Test:
    """A system property exists if the message has it; the language knows no other absence."""
    if node.is_system:
        return is_null(property_value(node), True)
    lower = node.name.lower()
    return lambda facts: lower in facts.app.read()


def negated(operand: Test) -> Test:
    def test(facts: Facts) -> bool | None:
        verdict = operand(facts)
        return verdict if verdict is None else not verdict

    return test


def all_of(operands: list[Test]) -> Test:
    def test(facts: Facts) -> bool | None:
        verdict: bool | None = True
        for operand in operands:
            one = operand(facts)
            if one is not True:
                if one is False:
                    return False
                verdict = None
        return verdict

    return test


def any_of(operands: list[Test]) -> Test:
    def test(facts: Facts) -> bool | None:
        verdict: bool | None = False
        for operand in operands:
            one = operand(facts)
            if one is not False:
                if one:
                    return True
                verdict = None
        return verdict

    return test
