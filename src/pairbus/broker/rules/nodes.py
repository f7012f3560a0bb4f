"""The syntax of rules as values: `parse` makes them, `compile` and `actions` read them.

Chains of one precedence are flat, so that `a + b + c` is no deeper than `a + b`: only what was
written nested is nested here. Nothing here computes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

Place = tuple[int, int]
"""Line and column, counted from 1."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: object
    at: Place


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    at: Place


@dataclass(frozen=True, slots=True)
class Property:
    is_system: bool
    name: str
    at: Place


@dataclass(frozen=True, slots=True)
class NewId:
    at: Place


@dataclass(frozen=True, slots=True)
class Lookup:
    """`property(name)`: the application property whose name is computed."""

    name: Expression
    at: Place


@dataclass(frozen=True, slots=True)
class Sign:
    symbol: str
    operand: Expression
    at: Place


@dataclass(frozen=True, slots=True)
class Chain:
    """`first symbol operand symbol operand ...`, from left to right."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]
    at: Place


Expression = Literal | Parameter | Property | NewId | Lookup | Sign | Chain


@dataclass(frozen=True, slots=True)
class Compare:
    symbol: str
    left: Expression
    right: Expression
    at: Place


@dataclass(frozen=True, slots=True)
class Like:
    value: Expression
    pattern: Expression
    escape: Expression | None
    negated: bool
    at: Place


@dataclass(frozen=True, slots=True)
class In:
    value: Expression
    choices: tuple[Expression, ...]
    negated: bool
    at: Place


@dataclass(frozen=True, slots=True)
class IsNull:
    property: Property
    negated: bool
    at: Place


@dataclass(frozen=True, slots=True)
class Exists:
    property: Property
    at: Place


@dataclass(frozen=True, slots=True)
class Not:
    operand: Predicate
    at: Place


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Predicate, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Predicate, ...]
    at: Place


Predicate = Compare | Like | In | IsNull | Exists | Not | And | Or


@dataclass(frozen=True, slots=True)
class Assign:
    property: Property
    value: Expression


@dataclass(frozen=True, slots=True)
class RemoveProperty:
    property: Property


Statement = Assign | RemoveProperty
