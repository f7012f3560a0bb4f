"""What any value of a Config.json may be: texts, numbers, durations, objects, lists and names.

Each reader takes a node and says what it should have been, if it is not that. Which values an
entity has, and what they mean, is for `config.py` and `config_rules.py`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta

from pairbus.broker.entities.descriptions import Status
from pairbus.broker.entities.durations import parse_duration
from pairbus.broker.entities.located_json import Array, Complaint, Member, Node, Object, Scalar

Members = Mapping[str, Member]


# -- single values ------------------------------------------------------------------------------


def text(node: Node, what: str) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    raise Complaint(node.line, f"{what} must be a text, not {node}")


def text_or_none(node: Node, what: str) -> str | None:
    return text(node, what) or None  # the emulator's own file writes "" for none


def boolean(node: Node, what: str) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    raise Complaint(node.line, f"{what} must be true or false, not {node}")


def integer(node: Node, what: str) -> int:
    if (
        isinstance(node, Scalar)
        and isinstance(node.value, int)
        and not isinstance(node.value, bool)
    ):
        return node.value
    raise Complaint(node.line, f"{what} must be a whole number, not {node}")


def duration(node: Node, what: str) -> timedelta:
    example = 'a duration such as "PT1M" or "P14D"'
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise Complaint(node.line, f"{what} must be {example}, not {node}")
    try:
        return parse_duration(node.value)
    except (ValueError, OverflowError) as error:
        raise Complaint(node.line, f"{what} must be {example}, not {node}") from error


def status(node: Node, what: str) -> Status:
    return Status(one_of(node, what, tuple(Status)))


def one_of(node: Node, what: str, allowed: tuple[str, ...]) -> str:
    value = text(node, what)
    if value not in allowed:
        # "SQL" and "SqlFilter" for Sql are what people write.
        alike = [option for option in allowed if value.lower().startswith(option.lower())]
        hint = f": did you mean {alike[0]}?" if alike else ""
        raise Complaint(node.line, f"{what} must be one of {', '.join(allowed)}, not {node}{hint}")
    return value


# -- objects and lists --------------------------------------------------------------------------


def members(node: Node, what: str, known: Iterable[str] | None) -> Members:
    """An object's members by name. A null counts as not given, as it does for the emulator.

    With `known` None, the names are the user's own.
    """
    if not isinstance(node, Object):
        raise Complaint(node.line, f"{what} must be an object, not {node}")
    known = None if known is None else sorted(known)
    found: dict[str, Member] = {}
    for member in node.members:
        if known is not None and member.key not in known:
            raise Complaint(
                member.line,
                f"{what} has no {json.dumps(member.key)}: {hint_for(member.key, known)}",
            )
        if member.key in found:
            first = found[member.key].line
            raise Complaint(member.line, f"{what} has {member.key} twice, first in line {first}")
        found[member.key] = member
    return {
        key: member
        for key, member in found.items()
        if not (isinstance(member.node, Scalar) and member.node.value is None)
    }


def hint_for(key: str, known: Iterable[str]) -> str:
    # The likeliest slip is a letter's case, which difflib would weigh like any other difference.
    known = list(known)
    alike = [name for name in known if name.lower() == key.lower()]
    alike = alike or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"


def items(of: Members, key: str, what: str) -> list[Node]:
    if key not in of:
        return []
    node = of[key].node
    if not isinstance(node, Array):
        raise Complaint(node.line, f"{what} must be a list, not {node}")
    return node.items


def name_of(of: Members, node: Node, kind: str) -> tuple[str, int]:
    if "Name" not in of:
        raise Complaint(node.line, f"this {kind} has no Name")
    return text(of["Name"].node, f"the Name of a {kind}"), of["Name"].line


def once(seen: dict[str, int], name: str, line: int, kind: str) -> None:
    if name.lower() in seen:
        first = seen[name.lower()]
        raise Complaint(line, f"{kind} {name!r} is defined twice, first in line {first}")
    seen[name.lower()] = line
