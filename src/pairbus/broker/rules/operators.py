"""The operators of rules on Python values, and how they join functions of a message.

None is UNKNOWN: a property that is missing or null, and a comparison without an answer, as between
a string and a number. Arithmetic that is not possible is an EvaluationError. Only numbers are
converted to one another, and any value that is added to a string. AND and OR stop only when the
verdict is certain: what follows UNKNOWN is still evaluated, and may still fail.
"""

import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal, DecimalException
from math import copysign, fmod, inf, isfinite, nan
from typing import Any, Final
from uuid import UUID

from pairbus.broker.rules.facts import Facts
from pairbus.broker.rules.filters import EvaluationError
from pairbus.broker.rules.values import INT64_MAX, INT64_MIN, text

Value = Callable[[Facts], Any]
Test = Callable[[Facts], bool | None]

TEXT_CHARACTERS_MAX: Final = 65_536
"""The limit of all properties of a message together; concatenation must not exceed it."""

_COPIED_AT_ONCE: Final = 32
"""The number of characters that are joined in the time of one step of a LIKE."""

NUMBERS: Final = frozenset((int, float, Decimal))
STRINGS: Final = frozenset((str,))
# Types that can be equal to each other; by exact type, because a bool is Python's int.
KINDS: Final[dict[type, frozenset[type]]] = {
    **dict.fromkeys(NUMBERS, NUMBERS),
    **{kind: frozenset((kind,)) for kind in (bool, UUID, datetime, timedelta, bytes)},
    str: STRINGS,
}
ORDERED: Final = frozenset((int, float, Decimal, str, datetime, timedelta))

EQUALITY: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
}
ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARISONS: Final = {**EQUALITY, **ORDER}
MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def is_special(number: Any) -> bool:
    return number.__class__ is float and not isfinite(number)


def comparison(symbol: str) -> Callable[[Any, Any], bool | None]:
    operate = COMPARISONS[symbol]
    ordered = symbol in ORDER

    def compare(left: Any, right: Any) -> bool | None:
        kind, other = left.__class__, right.__class__
        if other is not kind:
            if kind not in NUMBERS or other not in NUMBERS:
                return None
            if is_special(left) or is_special(right):  # a decimal refuses to meet a NaN
                return operate(float(left), float(right))
            return operate(left, right)
        if kind not in (ORDERED if ordered else KINDS):
            return None
        return operate(left, right)

    return compare


def comparable_types(symbol: str, literal: object) -> frozenset[type]:
    """The types that can be compared with this literal."""
    kind = literal.__class__
    return KINDS.get(kind, frozenset()) if symbol in EQUALITY or kind in ORDERED else frozenset()


equal: Final = comparison("=")


# -- arithmetic -------------------------------------------------------------------------------


def _truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _quotient(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or left != left:
        return nan
    return copysign(inf, left) * copysign(1, right)


def _float_remainder(left: float, right: float) -> float:
    return nan if not right or abs(left) == inf else fmod(left, right)


_ADD: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul}
# As C# has them: integers divide towards zero, doubles divide by zero.
_INTEGERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **_ADD,
    "/": _truncated,
    "%": _remainder,
}
_DOUBLES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **_ADD,
    "/": _quotient,
    "%": _float_remainder,
}
_DECIMALS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **_ADD,
    "/": operator.truediv,
    "%": operator.mod,
}
_TIMES: Final = {
    (datetime, "-", datetime),
    (datetime, "+", timedelta),
    (datetime, "-", timedelta),
    (timedelta, "+", timedelta),
    (timedelta, "-", timedelta),
}


def calculate(symbol: str, left: Any, right: Any) -> object:
    if left is None or right is None:
        return None
    kind, other = left.__class__, right.__class__
    if kind in NUMBERS and other in NUMBERS:
        return _calculate_numbers(symbol, left, right)
    if symbol == "+" and (kind is str or other is str):
        return _joined(left, right)
    if (kind, symbol, other) in _TIMES:
        try:
            return _ADD[symbol](left, right)
        except OverflowError as error:
            raise EvaluationError(f"{left} {symbol} {right} is out of range") from error
    raise _misfit(symbol, left, right)


def _calculate_numbers(symbol: str, left: Any, right: Any) -> int | float | Decimal:
    result: int | float | Decimal
    if left.__class__ is float or right.__class__ is float:
        result = _DOUBLES[symbol](float(left), float(right))
        return result
    try:
        if left.__class__ is int and right.__class__ is int:
            number: int = _INTEGERS[symbol](left, right)
            return in_range(number)
        result = _DECIMALS[symbol](left, right)
        return result
    except ZeroDivisionError as error:
        raise EvaluationError(f"{left} {symbol} {right} divides by zero") from error
    except DecimalException as error:
        raise EvaluationError(f"{left} {symbol} {right} is out of range") from error


def in_range(number: int) -> int:
    if INT64_MIN <= number <= INT64_MAX:
        return number
    raise EvaluationError(f"{number} does not fit into an integer of 64 bits")


def _joined(left: object, right: object) -> str:
    first, second = text(left), text(right)
    if first is None or second is None:
        raise _misfit("+", left, right)
    if len(first) + len(second) > TEXT_CHARACTERS_MAX:
        raise EvaluationError(f"a string of more than {TEXT_CHARACTERS_MAX} characters")
    return first + second


def signed(symbol: str, value: Any) -> Any:
    kind = value.__class__
    if value is None:
        return None
    if kind not in NUMBERS and kind is not timedelta:
        raise EvaluationError(f"{symbol!r} does not work on {_name(value)}")
    if kind is int:
        return in_range(-value if symbol == "-" else value)
    try:
        return -value if symbol == "-" else value
    except OverflowError as error:
        raise EvaluationError(f"-({value}) is out of range") from error


def _misfit(symbol: str, left: object, right: object) -> EvaluationError:
    return EvaluationError(f"{symbol!r} does not work on {_name(left)} and {_name(right)}")


_NAMES: Final[dict[type, str]] = {
    int: "integer",
    float: "double",
    Decimal: "decimal",
    str: "string",
    bool: "boolean",
    UUID: "uuid",
    datetime: "time",
    timedelta: "duration",
    bytes: "binary",
}


def _name(value: object) -> str:
    return _NAMES.get(value.__class__, value.__class__.__name__)


# -- functions of a message -------------------------------------------------------------------


def chained(first: Value, rest: list[tuple[str, Value]]) -> Value:
    def value(facts: Facts) -> object:
        result = first(facts)
        for symbol, operand in rest:
            result = calculate(symbol, result, operand(facts))
            if result.__class__ is str:
                facts.budget.spend(len(result) // _COPIED_AT_ONCE)
        return result

    return value


def after(read: Value, verdict: bool | None) -> Test:
    """A known verdict, but only after an evaluation that may fail."""

    def test(facts: Facts) -> bool | None:
        read(facts)
        return verdict

    return test


def is_member(
    read: Value, choices: frozenset[object], kinds: frozenset[type], negated: bool
) -> Test:
    def test(facts: Facts) -> bool | None:
        value = read(facts)
        return (value in choices) is not negated if value.__class__ in kinds else None

    return test


def is_null(read: Value, negated: bool) -> Test:
    if negated:
        return lambda facts: read(facts) is not None
    return lambda facts: read(facts) is None


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
