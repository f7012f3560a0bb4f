"""JSON whose values know the line they stand on, so that a complaint about one can name it.

The standard decoder judges the syntax; what it accepts is then read again for the lines. Objects
keep their members as they came, repeats included: whether a repeat is a mistake is for others.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


class Complaint(Exception):
    """Something is wrong on this line; whoever knows the file's name says so."""

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
class Array:
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


Node = Scalar | Array | Object


class Member(NamedTuple):
    key: str
    line: int
    node: Node


def parse(text: str) -> Node:
    """Raises Complaint on what is not JSON."""
    try:
        json.loads(text)
        return _Reader(text).node()
    except json.JSONDecodeError as error:
        raise Complaint(error.lineno, f"not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise Complaint(1, "nested too deeply") from error


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
            return Array(line, self._items())
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
