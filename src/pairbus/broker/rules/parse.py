"""From the text of a rule to its syntax tree, or to a RuleError with line, column and reason.

The grammar is in `grammar.lark`; its rules are the names of the tree's nodes. Here are the reserved
words and the error texts. The text is untrusted: its length is limited before it is read, and the
parser keeps its own stack, so that deep nesting cannot exhaust Python's.
"""

from functools import lru_cache
from importlib import resources
from typing import Final
from unicodedata import category

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken

from pairbus.broker.rules.filters import RuleError

EXPRESSION_CHARACTERS_MAX: Final = 1024

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


class _Refused(Exception):
    def __init__(self, token: Token, reason: str) -> None:
        self.token = token
        self.reason = reason


def parse(expression: str, start: str) -> Tree[Token]:
    """`start` is `filter` or `action`."""
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
        token, reason = refused.token, refused.reason
        raise RuleError(expression, reason, line=token.line, column=token.column) from None
    except UnexpectedCharacters as error:
        character = expression[error.pos_in_stream or 0]
        reason = _UNTERMINATED.get(character, f"{character!r} has no meaning here")
        raise RuleError(expression, reason, line=error.line, column=error.column) from None
    except UnexpectedToken as error:
        token, at = error.token, (error.line, error.column)
        if token.type == "$END":
            at = _place(expression, len(expression))
        reason = _unexpected(token, error.accepts or error.expected)
        raise RuleError(expression, reason, line=at[0], column=at[1]) from None


def _place(text: str, index: int) -> tuple[int, int]:
    """Line and column, counted from 1."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


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
            raise _Refused(token, reason)
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
    )
