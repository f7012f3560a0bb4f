"""Compiled filters against a naive evaluator, written on its own, over random conditions.

The evaluator walks nested tuples and knows nothing of the code under test: no literals folded, no
closures, types asked one by one. `Failed` stands for an evaluation error.
"""

import re

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import slice_message
from pairbus.broker.rules import (
    EvaluationError,
    Facts,
    SqlAction,
    SqlFilter,
    apply_changes,
    compile_action,
    compile_filter,
)
from tests.amqp.wire import values
from tests.broker.rules.messages import BODY, facts, message


class Failed(Exception):
    pass


# -- the naive evaluator -----------------------------------------------------------------------


def kind_of(value):
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "string"


def compare(symbol, left, right):
    if left is None or right is None or kind_of(left) != kind_of(right):
        return None
    if symbol == "=":
        return left == right
    if symbol in ("<>", "!="):
        return left != right
    if kind_of(left) == "boolean":
        return None
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[symbol]


def shown(value):
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else str(value)
    return str(value)


def calculate(symbol, left, right):
    if left is None or right is None:
        return None
    kinds = {kind_of(left), kind_of(right)}
    if symbol == "+" and "string" in kinds:
        return shown(left) + shown(right)
    if kinds != {"number"}:
        raise Failed
    whole = isinstance(left, int) and isinstance(right, int)
    if symbol in "/%":
        if right == 0:
            if whole:
                raise Failed
            return None if symbol == "%" else "divided by zero"  # filtered out, see `expression`
        quotient = abs(left) // abs(right) if whole else left / right
        if whole and (left < 0) != (right < 0):
            quotient = -quotient
        if symbol == "/":
            result = quotient
        else:
            result = left - right * (quotient if whole else int(quotient))
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[symbol]
    if whole and not -(2**63) <= result < 2**63:
        raise Failed
    return result


def value_of(node, properties):
    kind, *parts = node
    if kind == "literal":
        return parts[0]
    if kind in ("property", "lookup"):
        return properties.get(parts[0])
    if kind == "sign":
        value = value_of(parts[1], properties)
        if value is None:
            return None
        if kind_of(value) != "number":
            raise Failed
        return calculate("*", value, -1 if parts[0] == "-" else 1)
    assert kind == "calculate"
    first = value_of(parts[1], properties)
    return calculate(parts[0], first, value_of(parts[2], properties))


def like(value, pattern, properties):
    value, pattern = value_of(value, properties), value_of(pattern, properties)
    if value is None or pattern is None or not isinstance(value, str):
        return None
    wild = re.escape(pattern).replace("%", ".*").replace("_", ".")
    return re.fullmatch(wild, value, re.DOTALL) is not None


def verdict_of(node, properties):
    kind, *parts = node
    if kind == "compare":
        left = value_of(parts[1], properties)
        return compare(parts[0], left, value_of(parts[2], properties))
    if kind == "null":
        return properties.get(parts[0]) is None
    if kind == "exists":
        return parts[0] in properties
    if kind == "like":
        return like(*parts, properties)
    if kind == "in":
        value, verdicts = value_of(parts[0], properties), []
        for choice in parts[1]:
            verdicts.append(compare("=", value, value_of(choice, properties)))
            if verdicts[-1]:
                return True
        return None if None in verdicts else False
    if kind == "not":
        verdict = verdict_of(parts[0], properties)
        return None if verdict is None else not verdict
    decisive = kind == "or"
    verdicts = []
    for operand in parts[0]:
        verdicts.append(verdict_of(operand, properties))
        if verdicts[-1] is decisive:
            return decisive
    return None if None in verdicts else not decisive


# -- random conditions, and their text ---------------------------------------------------------

NAMES = ("a", "b", "Cd", "e f")
strings = st.text("ab%_'", max_size=3)
numbers = st.integers(-12, 12) | st.sampled_from([0.5, 2.0, -2.25, 10.0, 2**62])
scalars = strings | numbers | st.booleans() | st.none()
ordinary = st.dictionaries(st.sampled_from(NAMES), scalars)
names = st.sampled_from(NAMES)
literals = st.tuples(st.just("literal"), scalars)
leaves = literals | st.tuples(st.sampled_from(["property", "lookup"]), names)


def deeper(inner):
    return st.tuples(st.just("sign"), st.sampled_from("+-"), inner) | st.tuples(
        st.just("calculate"), st.sampled_from("+-*/%"), inner, inner
    )


expressions = st.recursive(leaves, deeper, max_leaves=4)
patterns = st.tuples(st.just("literal"), strings) | st.just(
    ("calculate", "+", ("literal", "a"), ("property", "a"))
)
tests = st.one_of(
    st.tuples(
        st.just("compare"),
        st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]),
        leaves | expressions,
        leaves | expressions,
    ),
    st.tuples(st.sampled_from(["null", "exists"]), names),
    st.tuples(st.just("like"), leaves | expressions, patterns),
    st.tuples(st.just("in"), leaves | expressions, st.lists(leaves, min_size=1, max_size=4)),
)
conditions = st.recursive(
    tests,
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=6,
)


def text_of(node):
    """With all parentheses; precedence has tests of its own."""
    kind, *parts = node
    match kind:
        case "literal":
            return literal(parts[0])
        case "property":
            return f"[{parts[0].upper()}]"
        case "lookup":
            return f"property('{parts[0]}')"
        case "sign":
            return f"({parts[0]} {text_of(parts[1])})"
        case "calculate":
            return f"({text_of(parts[1])} {parts[0]} {text_of(parts[2])})"
        case "compare":
            return f"{text_of(parts[1])} {parts[0]} {text_of(parts[2])}"
        case "null":
            return f'"{parts[0]}" IS NULL'
        case "exists":
            return f"EXISTS(user.[{parts[0]}])"
        case "like":
            return f"{text_of(parts[0])} LIKE {text_of(parts[1])}"
        case "in":
            return f"{text_of(parts[0])} IN ({', '.join(map(text_of, parts[1]))})"
        case "not":
            return f"NOT ({text_of(parts[0])})"
    return f" {kind} ".join(f"({text_of(operand)})" for operand in parts[0])


def literal(value):
    if value is None or isinstance(value, bool):
        return str(value).upper() if value is not None else "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def is_beyond_the_model(node, properties):
    """Doubles that are infinite or NaN: C#'s rules for them are tested one by one."""
    if isinstance(node, list):
        return any(is_beyond_the_model(each, properties) for each in node)
    if not isinstance(node, tuple):
        return False
    if node[:1] == ("calculate",) and node[1] in "/%":
        try:
            left, right = value_of(node[2], properties), value_of(node[3], properties)
        except Failed:
            return True
        if right == 0 and (isinstance(left, float) or isinstance(right, float)):
            return True
    return any(is_beyond_the_model(each, properties) for each in node)


@pytest.mark.req("B-08")
@settings(max_examples=max(200, settings.default.max_examples))
@given(conditions, ordinary, st.booleans())
def test_a_compiled_filter_agrees_with_the_naive_evaluator(condition, properties, negated):
    if is_beyond_the_model(condition, properties):
        return
    if negated:
        condition = ("not", condition)
    text = text_of(condition)
    if len(text) > 1024:
        return
    match, seen = compile_filter(SqlFilter(text)), facts(properties)

    try:
        expected = verdict_of(condition, properties)
    except Failed:
        event("fails")
        with pytest.raises(EvaluationError):
            match(seen)
        return

    event(str(expected))
    assert match(seen) is (expected is True)


# -- any values at all -------------------------------------------------------------------------

strange = st.dictionaries(st.sampled_from(NAMES), values | scalars)


@given(conditions, strange)
def test_a_filter_on_any_values_says_yes_or_no_or_fails(condition, properties):
    text = text_of(condition)
    if len(text) > 1024:
        return
    match = compile_filter(SqlFilter(text))

    try:
        verdict = match(facts(properties))
    except EvaluationError:
        return

    assert verdict in (True, False)


@given(
    st.lists(st.tuples(st.sampled_from([*NAMES, "new"]), expressions | st.none()), min_size=1),
    strange,
    st.sampled_from(["", "SET sys.Label = [a]; ", "SET sys.TimeToLive = [a];"]),
)
def test_an_action_on_any_values_can_be_applied_or_fails(statements, properties, first):
    text = first + ";".join(
        f"REMOVE [{name}]" if value is None else f"SET [{name}] = {text_of(value)}"
        for name, value in statements
    )
    if len(text) > 1024 or len(statements) > 30:
        return
    parts = message(properties)

    try:
        changes = compile_action(SqlAction(text))(Facts.from_parts(parts))
    except EvaluationError:
        return

    after = apply_changes(parts, changes)
    assert after.bare.endswith(BODY)
    assert slice_message(after.bare).application_properties == after.application_properties
