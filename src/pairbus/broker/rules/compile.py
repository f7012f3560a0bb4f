"""From filters to functions: each node of the syntax becomes one closure, called per message.

A predicate returns True, False or None for UNKNOWN; an expression returns a Python value, or None.
The usual case, a property compared with a literal, gets a closure of its own without inner calls.
The text of a rule is never run as code.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, assert_never
from uuid import UUID, uuid4

from pairbus.broker.rules import nodes
from pairbus.broker.rules.facts import SYSTEM_NAMES, Facts
from pairbus.broker.rules.filters import (
    CORRELATION_PROPERTIES,
    CorrelationFilter,
    EvaluationError,
    FalseFilter,
    Filter,
    RuleError,
    SqlFilter,
    TrueFilter,
)
from pairbus.broker.rules.like import BadPattern, Pattern, compile_pattern
from pairbus.broker.rules.nodes import INT64_MAX, INT64_MIN
from pairbus.broker.rules.operators import (
    COMPARISONS,
    KINDS,
    MIRRORED,
    TEXT_CHARACTERS_MAX,
    Test,
    Value,
    after,
    all_of,
    any_of,
    chained,
    comparable_types,
    comparison,
    equal,
    is_member,
    is_null,
    is_special,
    negated,
    signed,
)
from pairbus.broker.rules.values import to_python, utc

DEPTH_MAX: Final = 64

_VALUE_TYPES: Final = (str, bool, int, float, Decimal, datetime, timedelta, UUID, bytes)


def compile_filter(filter: Filter) -> Callable[[Facts], bool]:
    """Whether a message matches: only if the condition is TRUE; UNKNOWN does not match.

    Raises RuleError; what it returns raises EvaluationError.
    """
    match filter:
        case TrueFilter():
            return lambda facts: True
        case FalseFilter():
            return lambda facts: False
        case SqlFilter(expression, parameters):
            # Loaded with the first expression: a broker without rules needs no parser.
            from pairbus.broker.rules.parse import parse_filter

            test = Compiler(expression, parameters).test(parse_filter(expression))
            return lambda facts: test(facts) is True
        case CorrelationFilter():
            return _correlation(filter)
    assert_never(filter)


def _correlation(filter: CorrelationFilter) -> Callable[[Facts], bool]:
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
        user.append((name, expected, KINDS[expected.__class__]))
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


def check_values(expression: str, values: Mapping[str, object]) -> dict[str, object]:
    """Parameters, or a correlation filter's properties, as Python values by lower-case name.

    Raises RuleError for a type that rules do not have.
    """
    found: dict[str, object] = {}
    for name, given in values.items():
        value = to_python(given)
        if value is not None and not isinstance(value, _VALUE_TYPES):
            kinds = "a string, number, boolean, time, duration, uuid or bytes"
            raise RuleError(expression, f"the value of {name} must be {kinds}, not {value!r}")
        if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            raise RuleError(expression, f"the value of {name} exceeds 64 bits: {value}")
        found[name.lower()] = utc(value) if isinstance(value, datetime) else value
    return found


class Compiler:
    """Compiles one rule. Holds its parameters, and counts how deep its nodes are nested."""

    def __init__(self, expression: str, parameters: Mapping[str, object]) -> None:
        self._expression = expression
        self._parameters = {
            name.removeprefix("@"): value
            for name, value in check_values(expression, parameters).items()
        }
        self._depth = 0

    def refused(self, at: nodes.Place, reason: str) -> RuleError:
        return RuleError(self._expression, reason, line=at[0], column=at[1])

    def _deeper(self, node: nodes.Predicate | nodes.Expression) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.refused(node.at, f"nested deeper than {DEPTH_MAX}")

    # -- predicates ---------------------------------------------------------------------------

    def test(self, node: nodes.Predicate) -> Test:
        self._deeper(node)
        made = self._test(node)
        self._depth -= 1
        return made

    def _test(self, node: nodes.Predicate) -> Test:
        match node:
            case nodes.And():
                return all_of([self.test(each) for each in node.operands])
            case nodes.Or():
                return any_of([self.test(each) for each in node.operands])
            case nodes.Not():
                return negated(self.test(node.operand))
            case nodes.Compare():
                return self._compare(node)
            case nodes.In():
                return self._in(node)
            case nodes.Like():
                made = self._like(node)
                return negated(made) if node.negated else made
            case nodes.IsNull():
                return is_null(self.value(node.property), node.negated)
            case nodes.Exists():
                return exists(node.property)

    def _compare(self, node: nodes.Compare) -> Test:
        symbol, left, right = node.symbol, self._known(node.left), self._known(node.right)
        if isinstance(left, nodes.Literal) and not isinstance(right, nodes.Literal):
            symbol, left, right = MIRRORED.get(symbol, symbol), right, left
        if isinstance(right, nodes.Literal) and not _is_special(right.value):
            if isinstance(left, nodes.Literal):
                verdict = comparison(symbol)(left.value, right.value)
                return lambda facts: verdict
            return self._compare_literal(symbol, left, right.value)
        first, second, compare = self.value(left), self.value(right), comparison(symbol)
        return lambda facts: compare(first(facts), second(facts))

    def _compare_literal(self, symbol: str, left: nodes.Expression, literal: Any) -> Test:
        kinds, operate = comparable_types(symbol, literal), COMPARISONS[symbol]
        if isinstance(left, nodes.Property) and not left.is_system:
            name = left.name.lower()

            def of_user(facts: Facts) -> bool | None:
                value = facts.user[name]
                return operate(value, literal) if value.__class__ in kinds else None

            return of_user
        if isinstance(left, nodes.Property):
            name = system_name(left)

            def of_system(facts: Facts) -> bool | None:
                value = facts.system[name]
                return operate(value, literal) if value.__class__ in kinds else None

            return of_system
        read = self.value(left)

        def of_value(facts: Facts) -> bool | None:
            value = read(facts)
            return operate(value, literal) if value.__class__ in kinds else None

        return of_value

    def _in(self, node: nodes.In) -> Test:
        read = self.value(node.value)
        known = [self._known(choice) for choice in node.choices]
        literals = [each.value for each in known if isinstance(each, nodes.Literal)]
        kinds = KINDS.get(literals[0].__class__, frozenset()) if literals else frozenset()
        if len(literals) == len(known) and all(
            each.__class__ in kinds and not _is_special(each) for each in literals
        ):
            return is_member(read, frozenset(literals), kinds, node.negated)
        choices = [self.value(each) for each in known]

        def among(facts: Facts) -> bool | None:
            value = read(facts)
            verdict: bool | None = False
            for choice in choices:
                same = equal(value, choice(facts))
                if same:
                    return not node.negated
                if same is None:
                    verdict = None
            return verdict if verdict is None else node.negated

        return among

    def _like(self, node: nodes.Like) -> Test:
        read, pattern = self.value(node.value), self._known(node.pattern)
        escape = None if node.escape is None else self._known(node.escape)
        if isinstance(pattern, nodes.Literal) and (
            escape is None or isinstance(escape, nodes.Literal)
        ):
            return self._like_literal(read, pattern, escape)
        read_pattern = self.value(pattern)
        read_escape = None if escape is None else self.value(escape)

        def like(facts: Facts) -> bool | None:
            value, wanted = read(facts), read_pattern(facts)
            mark = None if read_escape is None else read_escape(facts)
            if value is None or wanted is None or (read_escape is not None and mark is None):
                return None
            try:
                pattern = _pattern(wanted, mark)
            except BadPattern as error:
                raise EvaluationError(f"LIKE: {error}") from error
            facts.budget.spend(len(wanted))
            return _matches(pattern, value, facts)

        return like

    def _like_literal(
        self, read: Value, pattern: nodes.Literal, escape: nodes.Literal | None
    ) -> Test:
        if pattern.value is None or (escape is not None and escape.value is None):
            return after(read, None)
        try:
            compiled = _pattern(pattern.value, None if escape is None else escape.value)
        except BadPattern as error:
            raise self.refused(pattern.at, f"LIKE: {error}") from error

        def like(facts: Facts) -> bool | None:
            return _matches(compiled, read(facts), facts)

        return like

    # -- expressions --------------------------------------------------------------------------

    def _known(self, node: nodes.Expression) -> nodes.Expression:
        """The node as a literal, if its value does not depend on the message."""
        if isinstance(node, nodes.Parameter):
            if node.name.lower() not in self._parameters:
                raise self.refused(node.at, f"the parameter @{node.name} has no value")
            return nodes.Literal(self._parameters[node.name.lower()], node.at)
        if isinstance(node, nodes.Sign):
            operand = node.operand
            if isinstance(operand, nodes.Literal) and operand.value.__class__ in (int, float):
                return nodes.Literal(signed(node.symbol, operand.value), node.at)
        return node

    def value(self, node: nodes.Expression) -> Value:
        self._deeper(node)
        made = self._value(self._known(node))
        self._depth -= 1
        return made

    def _value(self, node: nodes.Expression) -> Value:
        match node:
            case nodes.Literal(value):
                return lambda facts: value
            case nodes.Property():
                return property_value(node)
            case nodes.NewId():
                return lambda facts: uuid4()
            case nodes.Lookup():
                return lookup(self.value(node.name))
            case nodes.Sign():
                symbol, operand = node.symbol, self.value(node.operand)
                return lambda facts: signed(symbol, operand(facts))
            case nodes.Chain():
                first = self.value(node.first)
                return chained(first, [(each, self.value(other)) for each, other in node.rest])
            case nodes.Parameter():
                raise AssertionError("_known has replaced it")


def _is_special(value: object) -> bool:
    """Literals that cannot be compared with every number. Only a parameter can be one."""
    return is_special(value) or isinstance(value, Decimal)


def _pattern(pattern: object, escape: object) -> Pattern:
    if not isinstance(pattern, str):
        raise BadPattern(f"the pattern must be a string, not {pattern!r}")
    if escape is not None and not isinstance(escape, str):
        raise BadPattern(f"ESCAPE takes one character, not {escape!r}")
    return compile_pattern(pattern, escape)


def _matches(pattern: Pattern, value: object, facts: Facts) -> bool | None:
    if not isinstance(value, str):
        return None
    if len(value) > TEXT_CHARACTERS_MAX:
        raise EvaluationError(f"LIKE on a string of more than {TEXT_CHARACTERS_MAX} characters")
    facts.budget.spend(pattern.work(value))
    return pattern.matches(value)


# -- properties ------------------------------------------------------------------------------


def system_name(node: nodes.Property) -> str:
    return SYSTEM_NAMES.get(node.name.lower(), node.name)


def property_value(node: nodes.Property) -> Value:
    if node.is_system:
        canonical = system_name(node)
        return lambda facts: facts.system[canonical]
    lower = node.name.lower()
    return lambda facts: facts.user[lower]


def property_name(value: object) -> str:
    """The name that `property(...)` was given."""
    if isinstance(value, str):
        return value.lower()
    raise EvaluationError(f"property() takes a name, not {value!r}")


def lookup(name: Value) -> Value:
    def value(facts: Facts) -> object:
        wanted = name(facts)
        return None if wanted is None else facts.user[property_name(wanted)]

    return value


def exists(node: nodes.Property) -> Test:
    """A system property exists if the message has it."""
    if node.is_system:
        return is_null(property_value(node), True)
    lower = node.name.lower()
    return lambda facts: lower in facts.user.read()
