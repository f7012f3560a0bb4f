"""JSON whose values know their line, so that an error about one of them can name it.

The standard decoder checks the syntax; what it accepts is then read again for the lines. No JSON
library that we know keeps them. The readers below take a node and raise an error with the expected
form if it does not match.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pairbus.broker.entities.durations import parse_duration

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


class ConfigMistake(Exception):
    """An error on this line. `load_config` adds the file's name."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Scalar:
    line: int
    value: str | int | float | bool | None

    def __str__(self) -> str:
        return json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class JsonArray:
    line: int
    items: list[Node]

    def __str__(self) -> str:
        return "a list"


@dataclass(frozen=True, slots=True)
class Object:
    line: int
    members: list[Member]

    def __str__(self) -> str:
        return "an object"


Node = Scalar | JsonArray | Object


class Member(NamedTuple):
    key: str
    line: int
    node: Node


def parse(text: str) -> Node:
    """Raises ConfigMistake if it is not JSON."""
    try:
        json.loads(text)
        return _Reader(text).node()
    except json.JSONDecodeError as error:
        raise ConfigMistake(
            error.lineno, f"not JSON: {error.msg} (column {error.colno})"
        ) from error
    except RecursionError as error:
        raise ConfigMistake(1, "nested too deeply") from error


class _Reader:
    """Builds nodes from text that is known to be JSON, so it needs no error handling."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.finditer(text)
        self._line = 1
        self._position = 0

    def node(self, token: str | None = None) -> Node:
        token = token or self._next()
        line = self._line
        if token == "{":
            return Object(line, self._members())
        if token == "[":
            return JsonArray(line, self._items())
        return Scalar(line, json.loads(token))

    def _next(self) -> str:
        match = next(self._tokens)
        self._line += self._text.count("\n", self._position, match.start())
        self._position = match.start()
        return match.group()

    def _members(self) -> list[Member]:
        members = []
        while (token := self._next()) != "}":
            if token == ",":
                continue
            line = self._line
            self._next()  # the colon
            members.append(Member(json.loads(token), line, self.node()))
        return members

    def _items(self) -> list[Node]:
        items = []
        while (token := self._next()) != "]":
            if token != ",":
                items.append(self.node(token))
        return items


Members = Mapping[str, Member]


# -- readers of single values -------------------------------------------------------------------


def text(node: Node, what: str) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    raise ConfigMistake(node.line, f"{what} must be a text, not {node}")


def text_or_none(node: Node, what: str) -> str | None:
    return text(node, what) or None  # the emulator's own file writes "" for none


def boolean(node: Node, what: str) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    raise ConfigMistake(node.line, f"{what} must be true or false, not {node}")


def integer(node: Node, what: str) -> int:
    if (
        isinstance(node, Scalar)
        and isinstance(node.value, int)
        and not isinstance(node.value, bool)
    ):
        return node.value
    raise ConfigMistake(node.line, f"{what} must be a whole number, not {node}")


def duration(node: Node, what: str) -> timedelta:
    example = 'a duration such as "PT1M" or "P14D"'
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise ConfigMistake(node.line, f"{what} must be {example}, not {node}")
    try:
        return parse_duration(node.value)
    except (ValueError, OverflowError) as error:
        raise ConfigMistake(node.line, f"{what} must be {example}, not {node}") from error


def one_of(node: Node, what: str, allowed: tuple[str, ...]) -> str:
    value = text(node, what)
    if value not in allowed:
        # People write "SQL" and "SqlFilter" for Sql.
        alike = [option for option in allowed if value.lower().startswith(option.lower())]
        hint = f": did you mean {alike[0]}?" if alike else ""
        raise ConfigMistake(
            node.line, f"{what} must be one of {', '.join(allowed)}, not {node}{hint}"
        )
    return value


# -- readers of objects and lists ---------------------------------------------------------------


def members(node: Node, what: str, known: Iterable[str] | None) -> Members:
    """An object's members by name. A null counts as not given, as it does for the emulator.

    If `known` is None, any name is allowed.
    """
    if not isinstance(node, Object):
        raise ConfigMistake(node.line, f"{what} must be an object, not {node}")
    known = None if known is None else sorted(known)
    found: dict[str, Member] = {}
    for member in node.members:
        if known is not None and member.key not in known:
            raise ConfigMistake(
                member.line,
                f"{what} has no {json.dumps(member.key)}: {hint_for(member.key, known)}",
            )
        if member.key in found:
            first = found[member.key].line
            raise ConfigMistake(
                member.line, f"{what} has {member.key} twice, first in line {first}"
            )
        found[member.key] = member
    return {
        key: member
        for key, member in found.items()
        if not (isinstance(member.node, Scalar) and member.node.value is None)
    }


def hint_for(key: str, known: Iterable[str]) -> str:
    # The most likely mistake is upper or lower case, which difflib treats like any other
    # difference.
    known = list(known)
    alike = [name for name in known if name.lower() == key.lower()]
    alike = alike or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"


def items(of: Members, key: str, what: str) -> list[Node]:
    if key not in of:
        return []
    node = of[key].node
    if not isinstance(node, JsonArray):
        raise ConfigMistake(node.line, f"{what} must be a list, not {node}")
    return node.items


def name_of(of: Members, node: Node, kind: str) -> tuple[str, int]:
    if "Name" not in of:
        raise ConfigMistake(node.line, f"this {kind} has no Name")
    return text(of["Name"].node, f"the Name of a {kind}"), of["Name"].line


def check_unique(seen: dict[str, int], name: str, line: int, kind: str) -> None:
    if name.lower() in seen:
        first = seen[name.lower()]
        raise ConfigMistake(line, f"{kind} {name!r} is defined twice, first in line {first}")
    seen[name.lower()] = line
