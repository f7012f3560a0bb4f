"""JSON whose values know their line, so that an error about one of them can name it.

The standard decoder checks the syntax; what it accepts is then read again for the lines. No JSON
library that we know keeps them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from pairbus.broker.entities.durations import parse_duration

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


class ConfigMistake(Exception):
    """An error on this line. `load_config` adds the file's name."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its line.

    Each method returns the value if it has the expected form, and raises ConfigMistake otherwise.
    `what` names the value in the error.
    """

    line: int
    value: Any
    """A string, number, boolean or None; a list of nodes; or a tuple of members for an object."""

    def __str__(self) -> str:
        if isinstance(self.value, list):
            return "a list"
        return "an object" if self.is_object else json.dumps(self.value)

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, tuple)

    def text(self, what: str) -> str:
        if isinstance(self.value, str):
            return self.value
        raise self._wrong(what, "a string")

    def text_or_none(self, what: str) -> str | None:
        return self.text(what) or None  # the emulator's own file writes "" for none

    def boolean(self, what: str) -> bool:
        if isinstance(self.value, bool):
            return self.value
        raise self._wrong(what, "true or false")

    def integer(self, what: str) -> int:
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.value
        raise self._wrong(what, "a whole number")

    def duration(self, what: str) -> timedelta:
        wanted = 'a duration such as "PT1M" or "P14D"'
        if not isinstance(self.value, str):
            raise self._wrong(what, wanted)
        try:
            return parse_duration(self.value)
        except (ValueError, OverflowError) as error:
            raise self._wrong(what, wanted) from error

    def one_of(self, what: str, allowed: tuple[str, ...]) -> str:
        value = self.text(what)
        if value not in allowed:
            # People write "SQL" and "SqlFilter" for Sql.
            alike = [option for option in allowed if value.lower().startswith(option.lower())]
            hint = f": did you mean {alike[0]}?" if alike else ""
            wanted = f"one of {', '.join(allowed)}"
            raise ConfigMistake(self.line, f"{what} must be {wanted}, not {self}{hint}")
        return value

    def members(self, what: str, known: Iterable[str] | None) -> Members:
        """If `known` is None, any name is allowed."""
        if not self.is_object:
            raise self._wrong(what, "an object")
        known = None if known is None else sorted(known)
        found = Members(self.line)
        for member in self.value:
            if known is not None and member.key not in known:
                hint = hint_for(member.key, known)
                raise ConfigMistake(member.line, f"{what} has no {json.dumps(member.key)}: {hint}")
            if member.key in found:
                first = found[member.key].line
                raise ConfigMistake(
                    member.line, f"{what} has {member.key} twice, first in line {first}"
                )
            found[member.key] = member
        for key in [key for key, member in found.items() if member.node.value is None]:
            del found[key]
        return found

    def _wrong(self, what: str, wanted: str) -> ConfigMistake:
        return ConfigMistake(self.line, f"{what} must be {wanted}, not {self}")


class Member(NamedTuple):
    key: str
    line: int
    node: Node


class Members(dict[str, Member]):
    """An object's members by name. A null counts as not given, as it does for the emulator."""

    def __init__(self, line: int) -> None:
        self.line = line

    def list(self, key: str, what: str) -> list[Node]:
        if key not in self:
            return []
        node = self[key].node
        if not isinstance(node.value, list):
            raise ConfigMistake(node.line, f"{what} must be a list, not {node}")
        return node.value

    def name(self, kind: str, seen: dict[str, int], *, before: str = "") -> tuple[str, int]:
        """The object's name, with `before` in front of it, and its line. The name must not be in
        `seen`, and is added to it.
        """
        if "Name" not in self:
            raise ConfigMistake(self.line, f"this {kind} has no Name")
        name, line = before + self["Name"].node.text(f"the Name of a {kind}"), self["Name"].line
        if name.lower() in seen:
            first = seen[name.lower()]
            raise ConfigMistake(line, f"{kind} {name!r} is defined twice, first in line {first}")
        seen[name.lower()] = line
        return name, line


def hint_for(key: str, known: Iterable[str]) -> str:
    # The most likely mistake is upper or lower case, which difflib treats like any other
    # difference.
    known = list(known)
    alike = [name for name in known if name.lower() == key.lower()]
    alike = alike or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"


# -- reading -----------------------------------------------------------------------------------


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
            return Node(line, self._members())
        if token == "[":
            return Node(line, self._items())
        return Node(line, json.loads(token))

    def _next(self) -> str:
        match = next(self._tokens)
        self._line += self._text.count("\n", self._position, match.start())
        self._position = match.start()
        return match.group()

    def _members(self) -> tuple[Member, ...]:
        members = []
        while (token := self._next()) != "}":
            if token == ",":
                continue
            line = self._line
            self._next()  # the colon
            members.append(Member(json.loads(token), line, self.node()))
        return tuple(members)

    def _items(self) -> list[Node]:
        items = []
        while (token := self._next()) != "]":
            if token != ",":
                items.append(self.node(token))
        return items
