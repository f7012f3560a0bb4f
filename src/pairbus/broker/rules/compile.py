"""From filters to functions: each node of the syntax tree becomes one closure, called per message.

A predicate returns True, False or None for UNKNOWN; an expression returns a Python value, or None.
The usual case, a property compared with a literal, gets a closure of its own without inner calls.
The text of a rule is never run as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isinf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never
from uuid import uuid4

from pairbus.broker.rules import operators
from pairbus.broker.rules.correlation import compile_correlation
from pairbus.broker.rules.facts import SYSTEM_NAMES, Facts
from pairbus.broker.rules.filters import (
    CorrelationFilter,
    EvaluationError,
    FalseFilter,
    Filter,
    RuleError,
    SqlFilter,
    TrueFilter,
)
from pairbus.broker.rules.like import BadPattern, Pattern, compile_pattern
from pairbus.broker.rules.operators import Test, Value
from pairbus.broker.rules.values import INT64_MAX, check_values

if TYPE_CHECKING:
    from lark import Token, Tree

    Node = Tree[Token]

DEPTH_MAX: Final = 64

_SCOPES: Final = {"sys": True, "user": False}
_ARGUMENT_COUNTS: Final = {"newid": 0, "property": 1, "p": 1}


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
            from pairbus.broker.rules.parse import parse

            test = Compiler(expression, parameters).test(parse(expression, "filter"))
            return lambda facts: test(facts) is True
        case CorrelationFilter():
            return compile_correlation(filter)
    assert_never(filter)


@dataclass(frozen=True, slots=True)
class Constant:
    """An expression whose value does not depend on the message."""

    value: Any


class PropertyName(NamedTuple):
    is_system: bool
    name: str
    """As it was written. Names are compared in lower case."""


class Compiler:
    """Compiles one rule. Holds its parameters, and counts how deep its nodes are nested."""

    def __init__(self, expression: str, parameters: Mapping[str, object]) -> None:
        self._expression = expression
        self._parameters = {
            name.removeprefix("@"): value
            for name, value in check_values(expression, parameters).items()
        }
        self._depth = 0

    def refused(self, at: Node | Token, reason: str) -> RuleError:
        """An error with the position at which the node begins."""
        while not isinstance(at, str):
            at = at.children[0]
        return RuleError(self._expression, reason, line=at.line, column=at.column)

    def _deeper(self, node: Node) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.refused(node, f"nested deeper than {DEPTH_MAX}")

    # -- predicates ---------------------------------------------------------------------------

    def test(self, node: Node) -> Test:
        self._deeper(node)
        made = self._test(node)
        self._depth -= 1
        return made

    def _test(self, node: Node) -> Test:
        # Lark's tokens are strings. Lark itself is not loaded here.
        operands: list[Any] = [each for each in node.children if not isinstance(each, str)]
        is_negated = any(isinstance(each, str) and each.type == "NOT" for each in node.children)
        match node.data:
            case "conjunction":
                return operators.all_of([self.test(each) for each in operands])
            case "disjunction":
                return operators.any_of([self.test(each) for each in operands])
            case "negate":
                return operators.negated(self.test(operands[0]))
            case "compare":
                return self._compare(str(node.children[1]), *operands)
            case "is_in":
                return self._in(operands[0], operands[1:], is_negated)
            case "is_like":
                made = self._like(*operands)
                return operators.negated(made) if is_negated else made
            case "is_null":
                return operators.is_null(self.value(operands[0]), is_negated)
            case "exists":
                return exists(self.property(operands[0]))
        raise AssertionError(f"{node.data} is not a predicate of the grammar")

    def _compare(self, symbol: str, left: Node, right: Node) -> Test:
        first, second = self._constant(left), self._constant(right)
        if first is not None and second is None:
            symbol, left, right = operators.MIRRORED.get(symbol, symbol), right, left
            first, second = second, first
        if second is not None and not _is_special(second.value):
            if first is not None:
                verdict = operators.comparison(symbol)(first.value, second.value)
                return lambda facts: verdict
            return self._compare_literal(symbol, left, second.value)
        read_left, read_right = self.value(left), self.value(right)
        compare = operators.comparison(symbol)
        return lambda facts: compare(read_left(facts), read_right(facts))

    def _compare_literal(self, symbol: str, left: Node, literal: Any) -> Test:
        kinds, operate = operators.comparable_types(symbol, literal), operators.COMPARISONS[symbol]
        if left.data == "property":
            is_system, name = self.property(left)
            if is_system:
                name = SYSTEM_NAMES.get(name.lower(), name)

                def of_system(facts: Facts) -> bool | None:
                    value = facts.system[name]
                    return operate(value, literal) if value.__class__ in kinds else None

                return of_system
            lower = name.lower()

            def of_user(facts: Facts) -> bool | None:
                value = facts.user[lower]
                return operate(value, literal) if value.__class__ in kinds else None

            return of_user
        read = self.value(left)

        def of_value(facts: Facts) -> bool | None:
            value = read(facts)
            return operate(value, literal) if value.__class__ in kinds else None

        return of_value

    def _in(self, value: Node, choices: list[Node], is_negated: bool) -> Test:
        read = self.value(value)
        known = [self._constant(choice) for choice in choices]
        literals = [each.value for each in known if each is not None]
        kinds = operators.KINDS.get(literals[0].__class__, frozenset()) if literals else frozenset()
        if len(literals) == len(known) and all(
            each.__class__ in kinds and not _is_special(each) for each in literals
        ):
            return operators.is_member(read, frozenset(literals), kinds, is_negated)
        read_choices = [self.value(each) for each in choices]

        def among(facts: Facts) -> bool | None:
            value = read(facts)
            verdict: bool | None = False
            for choice in read_choices:
                same = operators.equal(value, choice(facts))
                if same:
                    return not is_negated
                if same is None:
                    verdict = None
            return verdict if verdict is None else is_negated

        return among

    def _like(self, value: Node, pattern: Node, escape: Node | None = None) -> Test:
        read, known = self.value(value), self._constant(pattern)
        known_escape = Constant(None) if escape is None else self._constant(escape)
        if known is not None and known_escape is not None:
            if known.value is None or (escape is not None and known_escape.value is None):
                return operators.after(read, None)
            try:
                compiled = _pattern(known.value, known_escape.value)
            except BadPattern as error:
                raise self.refused(pattern, f"LIKE: {error}") from error
            return lambda facts: _matches(compiled, read(facts), facts)
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

    # -- expressions --------------------------------------------------------------------------

    def _constant(self, node: Node) -> Constant | None:
        """None if the value depends on the message."""
        children: list[Any] = node.children
        match node.data, children:
            case "parameter", [token]:
                name = str(token[1:])
                if name.lower() not in self._parameters:
                    raise self.refused(node, f"the parameter @{name} has no value")
                return Constant(self._parameters[name.lower()])
            case "signed", [symbol, operand] if operand.data in ("integer", "float"):
                return Constant(operators.signed(str(symbol), self._number(operand)))
            case "integer" | "float", _:
                return Constant(self._number(node))
            case "string", [token]:
                return Constant(token[1:-1].replace("''", "'"))
            case "true", _:
                return Constant(True)
            case "false", _:
                return Constant(False)
            case "null", _:
                return Constant(None)
        return None

    def _number(self, node: Node) -> int | float:
        token = str(node.children[0])
        if node.data == "integer":
            whole = int(token)
            if whole > INT64_MAX:
                reason = f"{token} is too large: an integer is at most {INT64_MAX}"
                raise self.refused(node, reason)
            return whole
        number = float(token)
        if isinf(number):
            raise self.refused(node, f"{token} is too large for a double")
        return number

    def value(self, node: Node) -> Value:
        self._deeper(node)
        constant = self._constant(node)
        made = self._value(node) if constant is None else _always(constant.value)
        self._depth -= 1
        return made

    def _value(self, node: Node) -> Value:
        children: list[Any] = node.children
        match node.data:
            case "property":
                return property_value(self.property(node))
            case "call":
                return self._call(children[0], children[1:])
            case "signed":
                symbol, operand = str(children[0]), self.value(children[1])
                return lambda facts: operators.signed(symbol, operand(facts))
            case "sum" | "product":  # flat: only what was written nested is nested
                symbols = [str(token) for token in children[1::2]]
                first, *others = [self.value(each) for each in children[::2]]
                return operators.chained(first, list(zip(symbols, others, strict=True)))
        raise AssertionError(f"{node.data} is not an expression of the grammar")

    def _call(self, function: Token, arguments: list[Node]) -> Value:
        count = _ARGUMENT_COUNTS.get(function.lower())
        if count is None:
            reason = f"there is no function {str(function)!r}, only newid(), property() and p()"
            raise self.refused(function, reason)
        if len(arguments) != count:
            reason = f"{function}() takes {count} arguments, not {len(arguments)}"
            raise self.refused(function, reason)
        return lookup(self.value(arguments[0])) if count else lambda facts: uuid4()

    def property(self, node: Node) -> PropertyName:
        """The property that a node `property` names."""
        *scopes, name = [self._identifier(token) for token in node.children]
        if not scopes:
            return PropertyName(False, name)
        if scopes[0].lower() not in _SCOPES:
            raise self.refused(node, f"{scopes[0]!r} is not a scope; use sys or user")
        return PropertyName(_SCOPES[scopes[0].lower()], name)

    def _identifier(self, token: Any) -> str:
        if token.type == "NAME":
            return str(token)
        closing = token[-1]
        name: str = token[1:-1].replace(closing * 2, closing)
        if not name:
            raise self.refused(token, "the name is empty")
        return name


def _always(value: object) -> Value:
    return lambda facts: value


def _is_special(value: object) -> bool:
    """Literals that cannot be compared with every number. Only a parameter can be one."""
    return operators.is_special(value) or isinstance(value, Decimal)


def _pattern(pattern: object, escape: object) -> Pattern:
    if not isinstance(pattern, str):
        raise BadPattern(f"the pattern must be a string, not {pattern!r}")
    if escape is not None and not isinstance(escape, str):
        raise BadPattern(f"ESCAPE takes one character, not {escape!r}")
    return compile_pattern(pattern, escape)


def _matches(pattern: Pattern, value: object, facts: Facts) -> bool | None:
    if not isinstance(value, str):
        return None
    if len(value) > operators.TEXT_CHARACTERS_MAX:
        longest = operators.TEXT_CHARACTERS_MAX
        raise EvaluationError(f"LIKE on a string of more than {longest} characters")
    facts.budget.spend(pattern.work(value))
    return pattern.matches(value)


# -- properties ------------------------------------------------------------------------------


def property_value(of: PropertyName) -> Value:
    lower = of.name.lower()
    if of.is_system:
        canonical = SYSTEM_NAMES.get(lower, of.name)
        return lambda facts: facts.system[canonical]
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


def exists(of: PropertyName) -> Test:
    """A system property exists if the message has it."""
    if of.is_system:
        return operators.is_null(property_value(of), True)
    lower = of.name.lower()
    return lambda facts: lower in facts.user.read()
