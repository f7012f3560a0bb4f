"""From the text of a rule to its syntax, or to a RuleError with line, column and reason.

The grammar is in `grammar.lark`. Here are the reserved words, the meaning of literals, and the
error texts. The text is untrusted: its length is limited before it is read, and the parser keeps
its own stack, so that deep nesting cannot exhaust Python's.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from math import isinf
from typing import Any, Final
from unicodedata import category

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken

from pairbus.broker.rules import nodes
from pairbus.broker.rules.filters import RuleError

EXPRESSION_CHARACTERS_MAX: Final = 1024
STATEMENTS_MAX: Final = 32

# Reserved word -> the grammar's token for it. All of them are reserved in filters and in actions.
_WORDS: Final = {
    "AND": "_AND",
    "OR": "_OR",
    "NOT": "NOT",
    "IS": "_IS",
    "NULL": "NULL",
    "IN": "_IN",
    "LIKE": "LIKE",
    "ESCAPE": "ESCAPE",
    "EXISTS": "EXISTS",
    "TRUE": "TRUE",
    "FALSE": "FALSE",
    "SET": "_SET",
    "REMOVE": "_REMOVE",
}
_VALUES: Final = {"INTEGER", "FLOAT", "STRING", "TRUE", "FALSE", "NULL", "PARAMETER", "NAME"}
_TOKEN_NAMES: Final = {
    **{token: word for word, token in _WORDS.items()},
    "EQUAL": "'='",
    "ORDER": "a comparison",
    **dict.fromkeys(("PLUS", "MINUS", "STAR", "SLASH", "PERCENT"), "arithmetic"),
    "_SEMICOLON": "';'",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "DOT": "'.'",
    **dict.fromkeys(("NAME", "BRACKETED", "QUOTED"), "a property"),
    "$END": "the end",
}
_UNTERMINATED: Final = {
    "'": "the string that begins here has no closing '",
    '"': 'the name that begins here has no closing "',
    "[": "the name that begins here has no closing ]",
}
_SCOPES: Final = {"sys": True, "user": False}
_ARGUMENT_COUNTS: Final = {"newid": 0, "property": 1, "p": 1}


class _Refused(Exception):
    def __init__(self, at: nodes.Place, reason: str) -> None:
        self.at = at
        self.reason = reason


def parse_filter(expression: str) -> nodes.Predicate:
    found: nodes.Predicate = _parse(expression, "filter")
    return found


def parse_action(expression: str) -> tuple[nodes.Statement, ...]:
    statements: tuple[nodes.Statement, ...] = _parse(expression, "action")
    if len(statements) > STATEMENTS_MAX:
        reason = (
            f"an action has at most {STATEMENTS_MAX} statements, but this has {len(statements)}"
        )
        line, column = statements[STATEMENTS_MAX].property.at
        raise RuleError(expression, reason, line=line, column=column)
    return statements


def _parse(expression: str, start: str) -> Any:
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise RuleError(
            expression,
            f"it has {len(expression)} characters, but at most {EXPRESSION_CHARACTERS_MAX} "
            "are possible",
        )
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        line, column = _place(expression, error.start)
        reason = "half of a surrogate pair is not a character"
        raise RuleError(expression, reason, line=line, column=column) from error
    try:
        return _parser().parse(expression, start=start)
    except _Refused as refused:
        (line, column), reason = refused.at, refused.reason
        raise RuleError(expression, reason, line=line, column=column) from None
    except UnexpectedCharacters as error:
        character = expression[error.pos_in_stream or 0]
        reason = _UNTERMINATED.get(character, f"{character!r} has no meaning here")
        raise RuleError(expression, reason, line=error.line, column=error.column) from None
    except UnexpectedToken as error:
        token = error.token
        if token.type == "$END":
            line, column = _place(expression, len(expression))
        else:
            line, column = _at(token)
        reason = _unexpected(token, error.accepts or error.expected)
        raise RuleError(expression, reason, line=line, column=column) from None


def _place(text: str, index: int) -> nodes.Place:
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def _at(token: Token) -> nodes.Place:
    assert token.line is not None
    assert token.column is not None
    return token.line, token.column


def _unexpected(token: Token, expected: set[str]) -> str:
    if expected >= _VALUES:
        words = ["a value"] + [_TOKEN_NAMES[name] for name in ("NOT", "EXISTS") if name in expected]
    else:
        words = sorted({_TOKEN_NAMES.get(name, name) for name in expected})
        if "ORDER" in expected:
            words.remove("'='")
    wanted = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    found = "the expression ends" if token.type == "$END" else f"{str(token)!r} is unexpected"
    hint = ""
    if token.type in _WORDS.values() and "NAME" in expected:
        hint = f"; {token.upper()} is a reserved word; write a property of that name as [{token}]"
    return f"{found}, expected {wanted}{hint}"


def _word_or_name(token: Token) -> Token:
    kind = _WORDS.get(token.upper())
    if kind is not None:
        return token.update(type=kind)
    for character in token:
        # \w is wider than a letter, a decimal digit or an underscore.
        if character != "_" and category(character)[0] != "L" and category(character) != "Nd":
            reason = f"{character!r} is not a letter or digit: write the name as [{token}]"
            raise _Refused(_at(token), reason)
    return token


@lru_cache(maxsize=1)
def _parser() -> Lark:
    """Built with the first rule: a broker without rules does not wait for it."""
    return Lark(
        resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        start=["filter", "action"],
        lexer_callbacks={"NAME": _word_or_name},
        transformer=_Build(),
    )


def _chain(self: Any, children: list[Any]) -> nodes.Chain:
    first, *rest = children
    pairs = zip(map(str, rest[::2]), rest[1::2], strict=True)
    return nodes.Chain(first, tuple(pairs), first.at)


def _literal(convert: Callable[[Token], object]) -> Callable[[Any, list[Token]], nodes.Literal]:
    return lambda self, children: nodes.Literal(convert(children[0]), _at(children[0]))


def _integer(token: Token) -> int:
    number = int(token)
    if number > nodes.INT64_MAX:
        raise _Refused(_at(token), f"{token} is too large: an integer is at most {nodes.INT64_MAX}")
    return number


def _float(token: Token) -> float:
    number = float(token)
    if isinf(number):
        raise _Refused(_at(token), f"{token} is too large for a double")
    return number


class _Build(Transformer[Token, Any]):
    """One method per rule of the grammar, called while parsing; children come first."""

    integer = _literal(_integer)
    float = _literal(_float)
    string = _literal(lambda token: token[1:-1].replace("''", "'"))
    true = _literal(lambda token: True)
    false = _literal(lambda token: False)
    null = _literal(lambda token: None)
    sum = _chain
    product = _chain

    def parameter(self, children: list[Token]) -> nodes.Parameter:
        return nodes.Parameter(str(children[0][1:]), _at(children[0]))

    def property(self, children: list[Token]) -> nodes.Property:
        at = _at(children[0])
        name = _identifier(children[-1])
        if len(children) == 1:
            return nodes.Property(False, name, at)
        scope = _identifier(children[0])
        if scope.lower() not in _SCOPES:
            raise _Refused(at, f"{scope!r} is not a scope; use sys or user")
        return nodes.Property(_SCOPES[scope.lower()], name, at)

    def call(self, children: list[Any]) -> nodes.NewId | nodes.Lookup:
        function, *arguments = children
        at = _at(function)
        count = _ARGUMENT_COUNTS.get(function.lower())
        if count is None:
            reason = f"there is no function {str(function)!r}, only newid(), property() and p()"
            raise _Refused(at, reason)
        if len(arguments) != count:
            reason = f"{function}() takes {count} arguments, not {len(arguments)}"
            raise _Refused(at, reason)
        return nodes.Lookup(arguments[0], at) if count else nodes.NewId(at)

    def signed(self, children: list[Any]) -> nodes.Sign:
        symbol, operand = children
        return nodes.Sign(str(symbol), operand, _at(symbol))

    def compare(self, children: list[Any]) -> nodes.Compare:
        left, symbol, right = children
        return nodes.Compare(str(symbol), left, right, left.at)

    def is_null(self, children: list[Any]) -> nodes.IsNull:
        return nodes.IsNull(children[0], len(children) == 3, children[0].at)

    def is_in(self, children: list[Any]) -> nodes.In:
        value, *choices = children
        negated = isinstance(choices[0], Token)
        return nodes.In(value, tuple(choices[negated:]), negated, value.at)

    def is_like(self, children: list[Any]) -> nodes.Like:
        value, *rest = children
        negated = rest[0].type == "NOT"
        pattern, *escape = [each for each in rest if not isinstance(each, Token)]
        return nodes.Like(value, pattern, escape[0] if escape else None, negated, value.at)

    def exists(self, children: list[Any]) -> nodes.Exists:
        return nodes.Exists(children[1], _at(children[0]))

    def negate(self, children: list[Any]) -> nodes.Not:
        return nodes.Not(children[1], _at(children[0]))

    def conjunction(self, children: list[Any]) -> nodes.And:
        return nodes.And(tuple(children), children[0].at)

    def disjunction(self, children: list[Any]) -> nodes.Or:
        return nodes.Or(tuple(children), children[0].at)

    def assign(self, children: list[Any]) -> nodes.Assign:
        return nodes.Assign(children[0], children[2])

    def remove(self, children: list[Any]) -> nodes.RemoveProperty:
        return nodes.RemoveProperty(children[0])

    def action(self, children: list[nodes.Statement]) -> tuple[nodes.Statement, ...]:
        return tuple(children)


def _identifier(token: Token) -> str:
    if token.type == "NAME":
        return str(token)
    closing = token[-1]
    name = token[1:-1].replace(closing * 2, closing)
    if not name:
        raise _Refused(_at(token), "the name is empty")
    return name
