"""Rules that are refused when they are created: where in the expression, and why."""

from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.broker.rules import (
    CorrelationFilter,
    RuleError,
    SqlAction,
    SqlFilter,
    compile_action,
    compile_filter,
)
from pairbus.errors import ConfigError

FILTERS = {
    "nothing": ("", 1, 1, "the expression ends, expected a value, NOT or EXISTS"),
    "only blanks": ("  \n ", 2, 2, "the expression ends"),
    "a value is no condition": ("color", 1, 6, "expected IN, IS, LIKE, NOT, a comparison or"),
    "a boolean is no condition": ("TRUE", 1, 5, "the expression ends"),
    "a comparison without its right side": ("color = ", 1, 9, "expected a value"),
    "two comparisons in a row": ("1 < n < 3", 1, 7, "'<' is unexpected, expected AND, OR or"),
    "C#'s equality": ("color == 'red'", 1, 8, "'=' is unexpected"),
    "C#'s and": ("a = 1 && b = 2", 1, 7, "'&' has no meaning here"),
    "a parenthesis too few": ("(a = 1", 1, 7, "the expression ends, expected '\\)'|AND, OR or"),
    "a parenthesis too many": ("a = 1)", 1, 6, "'\\)' is unexpected"),
    "a string without an end": ("a =\n  'x", 2, 3, "no closing '"),
    "a name without an end": ("[a = 1", 1, 1, "no closing ]"),
    "a quoted name without an end": ('a = "b', 1, 5, 'no closing "'),
    "a name of nothing": ("[] = 1", 1, 1, "is empty"),
    "a reserved word as a name": ("in = 1", 1, 1, "IN is a reserved word.*\\[in\\]"),
    "a word of actions as a name": ("user.Set = 1", 1, 6, "SET is a reserved word.*\\[Set\\]"),
    "a name that begins with an underscore": ("_a = 1", 1, 1, "'_' has no meaning here"),
    "a name with what is no letter": ("a² = 1", 1, 1, "not a letter or digit.*\\[a²\\]"),
    "a name with two dots": ("user.a.b = 1", 1, 7, "'.' is unexpected"),
    "a scope that is none": ("message.Label = 'a'", 1, 1, "'message' is not a scope"),
    "a function that is none": ("lower(a) = 'a'", 1, 1, "no function 'lower'"),
    "newid() with an argument": ("newid(1) = 1", 1, 1, "takes 0 arguments, not 1"),
    "property() without one": ("a = 1 AND p() = 1", 1, 11, "takes 1 arguments, not 0"),
    "an integer beyond 64 bits": ("a = 9223372036854775808", 1, 5, "too large"),
    "a double beyond its range": ("a = 1e999", 1, 5, "too large"),
    "a number that runs into a name": ("a = 1b", 1, 6, "'b' is unexpected"),
    "IN without a list": ("a IN 'x'", 1, 6, "is unexpected, expected '\\('"),
    "IN with an empty list": ("a IN ()", 1, 7, "expected a value"),
    "BETWEEN": ("a BETWEEN 1 AND 2", 1, 3, "'BETWEEN' is unexpected"),
    "IS without NULL": ("a IS 1", 1, 6, "expected NOT or NULL"),
    "IS NULL of what is no property": ("a + 1 IS NULL", 1, 7, "'IS' is unexpected"),
    "EXISTS of what is no property": ("EXISTS(1)", 1, 8, "expected a property"),
    "EXISTS without parentheses": ("EXISTS a", 1, 8, "expected '\\('"),
    "a pattern that is no string": ("a LIKE 1", 1, 8, "must be a string"),
    "a pattern that ends in its escape": ("a LIKE 'b!' ESCAPE '!'", 1, 8, "ends with its escape"),
    "an escape of two characters": ("a LIKE 'b' ESCAPE '!!'", 1, 8, "one character"),
    "an escape that is no string": ("a LIKE 'b' ESCAPE 1", 1, 8, "one character"),
    "a parameter without a value": ("a = @b", 1, 5, "@b has no value"),
    "an action": ("SET a = 1", 1, 1, "'SET' is unexpected"),
    "half a character": ("a =\n'\ud800'", 2, 2, "surrogate"),
    "NOT nested too deep": ("NOT " * 100 + "a = 1", 1, 257, "nested deeper than 64"),
    "signs nested too deep": ("a = " + "-" * 900 + "1", 1, 68, "nested deeper than 64"),
    "calls nested too deep": ("p(" * 300 + "'a'" + ")" * 300 + "=1", 1, 127, "nested deeper"),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "line", "column", "reason"), FILTERS.values(), ids=FILTERS)
def test_a_filter_is_refused_with_position_and_reason(expression, line, column, reason):
    with pytest.raises(RuleError, match=reason) as caught:
        compile_filter(SqlFilter(expression))

    assert (caught.value.line, caught.value.column) == (line, column)
    assert f"at line {line}, column {column}: {caught.value.reason}" in str(caught.value)
    assert caught.value.expression == expression
    assert isinstance(caught.value, ConfigError)


ACTIONS = {
    "nothing": ("", 1, 1, "the expression ends, expected REMOVE or SET"),
    "a semicolon alone": (";", 1, 1, "expected REMOVE or SET"),
    "a condition": ("EventType = 1", 1, 1, "'EventType' is unexpected, expected REMOVE or SET"),
    "SET with another sign": ("SET a <> 1", 1, 7, "expected '='"),
    "SET without a value": ("SET a =", 1, 8, "expected a value"),
    "SET with a condition": ("SET a = b > 1", 1, 11, "'>' is unexpected"),
    "statements between commas": ("SET a = 1, SET b = 2", 1, 10, "',' is unexpected"),
    "SET of a literal": ("SET 'a' = 1", 1, 5, "expected a property"),
    "REMOVE without a name": ("REMOVE", 1, 7, "expected a property"),
    "a system property that is read-only": (
        "SET a = 1; SET sys.SequenceNumber = 1", 1, 16, "sys.SequenceNumber is read-only.*Label"
    ),
    "a system property that does not exist": ("SET sys.Nope = 1", 1, 5, "does not exist"),
    "REMOVE of a system property": ("REMOVE sys.Label", 1, 8, "cannot be removed"),
    "a parameter without a value": ("SET a = @b", 1, 9, "@b has no value"),
    "more than 32 statements": ("SET a=1;" * 33, 1, 261, "at most 32 statements.*has 33"),
    "a value nested too deep": ("SET a = " + "-" * 100 + "b", 1, 73, "nested deeper than 64"),
}  # fmt: skip


@pytest.mark.req("B-08")
@pytest.mark.parametrize(("expression", "line", "column", "reason"), ACTIONS.values(), ids=ACTIONS)
def test_an_action_is_refused_with_position_and_reason(expression, line, column, reason):
    with pytest.raises(RuleError, match=reason) as caught:
        compile_action(SqlAction(expression))

    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.req("B-08")
def test_expressions_have_at_most_1024_characters():
    longest = "a = '" + "x" * (1024 - 6) + "'"

    compile_filter(SqlFilter(longest))
    with pytest.raises(RuleError, match="1025 characters, but at most 1024") as caught:
        compile_filter(SqlFilter(longest + " "))
    with pytest.raises(RuleError, match="at most 1024"):
        compile_action(SqlAction("SET a = 1;".ljust(1025)))

    assert len(str(caught.value)) < 300


def test_what_is_long_but_not_deep_is_taken():
    compile_filter(SqlFilter("+".join("a" * 500) + " = 1"))
    compile_filter(SqlFilter(" OR ".join(["a=1"] * 140)))
    compile_filter(SqlFilter(f"a IN ({','.join('1' * 500)})"))
    compile_filter(SqlFilter("(" * 400 + "a = 1" + ")" * 400))
    compile_action(SqlAction("SET a=1;" * 32))


VALUES = {
    "a date": (date(2024, 5, 17), "must be a string, number"),
    "a list": ([1], "must be a string, number"),
    "a number beyond 64 bits": (2**63, "exceeds 64 bits"),
    "a time before the first": (
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        "is outside the calendar",
    ),
}


@pytest.mark.parametrize(("value", "reason"), VALUES.values(), ids=VALUES)
def test_a_parameter_is_refused(value, reason):
    with pytest.raises(RuleError, match=f"@a.*{reason}"):
        compile_filter(SqlFilter("b = @a", {"@a": value}))
    with pytest.raises(RuleError, match=f"@a.*{reason}"):
        compile_action(SqlAction("SET b = @a", {"@a": value}))
    with pytest.raises(RuleError, match=f"@a.*{reason}"):
        compile_filter(CorrelationFilter(properties={"@a": value}))


def test_a_correlation_filter_on_null_is_refused():
    with pytest.raises(RuleError, match="'a' needs a value"):
        compile_filter(CorrelationFilter(properties={"a": None}))


# -- anything at all ---------------------------------------------------------------------------

PIECES = (
    "AND", "or", "NOT", "LIKE", "ESCAPE", "IN", "IS", "NULL", "EXISTS", "TRUE", "SET", "REMOVE",
    "sys", "user", "Label", "a", "b1", "p", "property", "newid", "(", ")", "[", "]", '"', "'", ",",
    ".", ";", "=", "<>", "!=", "<=", ">", "+", "-", "*", "/", "%", "@", "@a", "1", "2.5", "1e9",
    "'x'", "'%_'", '"q"', "[a b]", "\n", "é", "²", "\x00", "\ud800", "\u2028",
)  # fmt: skip
NONSENSE = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join)


@given(NONSENSE | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@example("(" * 1024)
@example("NOT" * 341)
@example("p(" * 512)
@example("-" * 1024)
@example("'" * 1023)
@example("[" * 1024)
@example("\u0130 = 1")
def test_any_text_is_a_rule_or_a_rule_error(text):
    for error in (refusal(compile_filter, SqlFilter), refusal(compile_action, SqlAction)):
        refused = error(text)
        if refused is not None:
            assert refused.reason
            assert refused.line is None or 1 <= refused.line <= text.count("\n") + 1
            assert refused.column is None or 1 <= refused.column <= len(text) + 1


def refusal(compile_rule, describe):
    def error(text):
        try:
            compile_rule(describe(text, {"a": 1}))
        except RuleError as refused:
            return refused
        return None

    return error
