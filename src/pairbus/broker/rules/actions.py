"""SQL actions: the effect of SET and REMOVE on a message and its bytes.

Statements run in order, each on the result of the ones before. An action works on a draft, because
several rules may read the same Facts. When its changes are written, only the properties and the
application properties are taken apart, never the body; all other bytes stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.codec.sections import HEADER_TTL_MS_MAX, Parts, slice_message
from pairbus.amqp.codec.stamp import with_application_properties, with_property, without_keys
from pairbus.amqp.codec.types import Symbol, Timestamp
from pairbus.amqp.codec.values import encode
from pairbus.broker.rules.compile import Compiler, property_name
from pairbus.broker.rules.facts import ANNOTATIONS, FIELDS, SYSTEM_NAMES, Facts
from pairbus.broker.rules.filters import EvaluationError, SqlAction
from pairbus.broker.rules.operators import Value
from pairbus.broker.rules.values import as_type_of, duration, moment, text, to_amqp, to_ms

if TYPE_CHECKING:
    from pairbus.broker.rules.compile import Node

STATEMENTS_MAX: Final = 32
ID_CHARACTERS_MAX: Final = 128
_NULL: Final = encode(None)


@dataclass(slots=True)
class PropertyChanges:
    """What an action changes: system properties by name, application properties by spelling.

    `user_removed` is removed first, then `user_set` is added. Values have AMQP types where it
    matters. None clears a system property.
    """

    system: dict[str, object | None] = field(default_factory=dict)
    user_set: dict[str, object] = field(default_factory=dict)
    user_removed: set[str] = field(default_factory=set)


Step = Callable[[Facts, PropertyChanges], None]


def compile_action(action: SqlAction) -> Callable[[Facts], PropertyChanges]:
    """Raises RuleError. The function it returns raises EvaluationError and changes no facts."""
    compiler = Compiler(action.expression, action.parameters)
    from pairbus.broker.rules.parse import parse  # imported late, as in compile.py

    statements: list[Any] = parse(action.expression, "action").children
    if len(statements) > STATEMENTS_MAX:
        reason = (
            f"an action has at most {STATEMENTS_MAX} statements, but this has {len(statements)}"
        )
        raise compiler.refused(statements[STATEMENTS_MAX], reason)
    steps = [_step(compiler, statement) for statement in statements]

    def act(facts: Facts) -> PropertyChanges:
        draft, changes = facts.draft(), PropertyChanges()
        for step in steps:
            step(draft, changes)
        return changes

    return act


def _step(compiler: Compiler, statement: Node) -> Step:
    children: list[Any] = statement.children
    target, name = children[0], compiler.property(children[0])
    if statement.data == "remove":
        if name.is_system:
            reason = f"system properties cannot be removed: SET sys.{name.name} = NULL clears it"
            raise compiler.refused(target, reason)
        return _remove_user(name.name)
    value = children[-1]
    if not name.is_system:
        return _set_user(name.name, _copied_value(compiler, value))
    canonical = SYSTEM_NAMES.get(name.name.lower())
    convert = None if canonical is None else _SETTABLE.get(canonical)
    if canonical is None or convert is None:
        reason = "is read-only" if canonical else "does not exist"
        may = ", ".join(_SETTABLE)
        raise compiler.refused(target, f"sys.{name.name} {reason}; an action may set {may}")
    return _set_system(canonical, convert, compiler.value(value))


def _copied_value(compiler: Compiler, node: Node) -> Value:
    """A value that is only copied keeps its AMQP type, even one that rules cannot compute with."""
    compiled = compiler.value(node)  # which also checks it
    children: list[Any] = node.children
    if node.data == "property":
        name = compiler.property(node)
        lower = name.name.lower()
        return compiled if name.is_system else lambda draft: draft.user.amqp.get(lower)
    if node.data == "call" and len(children) == 2:
        read = compiler.value(children[1])

        def look_up(draft: Facts) -> Any:
            name = read(draft)
            return None if name is None else draft.user.amqp.get(property_name(name))

        return look_up
    return compiled


def _set_user(name: str, read: Value) -> Step:
    lower = name.lower()

    def step(draft: Facts, changes: PropertyChanges) -> None:
        user = draft.user
        value = read(draft)
        existing = user.amqp.get(lower)
        if existing is not None:
            value = as_type_of(existing, value)
        try:
            value = to_amqp(value)
        except OverflowError as error:
            raise EvaluationError(f"SET {name}: {error}") from error
        spelled = user.spelling.get(lower, name)
        user.put(lower, spelled, value)
        changes.user_set[spelled] = value

    return step


def _remove_user(name: str) -> Step:
    lower = name.lower()

    def step(draft: Facts, changes: PropertyChanges) -> None:
        user = draft.user
        if lower in user:
            spelled = user.spelling.pop(lower)
            del user[lower], user.amqp[lower]
            changes.user_set.pop(spelled, None)
            changes.user_removed.add(spelled)

    return step


def _set_system(name: str, convert: Callable[[str, object], object], read: Value) -> Step:
    def step(draft: Facts, changes: PropertyChanges) -> None:
        value = read(draft)
        if value is not None:
            value = convert(name, value)
        draft.system[name] = changes.system[name] = value

    return step


# -- system properties that may be set ---------------------------------------------------------


def _text(name: str, value: object) -> str:
    found = text(value)
    if found is None:
        raise EvaluationError(f"SET sys.{name}: {value!r} has no text")
    return found


def _ascii(name: str, value: object) -> str:
    found = _text(name, value)
    if not found.isascii():
        raise EvaluationError(f"SET sys.{name}: {found!r} has characters beyond ASCII")
    return found


def _identifier(name: str, value: object) -> str:
    found = _text(name, value)
    if len(found) > ID_CHARACTERS_MAX:
        raise EvaluationError(f"SET sys.{name}: longer than {ID_CHARACTERS_MAX} characters")
    return found


def _time_to_live(name: str, value: object) -> object:
    found = duration(value)
    if found is None or found <= timedelta(0):
        raise EvaluationError(f"SET sys.{name}: {value!r} is not a positive duration")
    return found


def _moment(name: str, value: object) -> object:
    found = moment(value)
    if found is None:
        raise EvaluationError(f"SET sys.{name}: {value!r} is not a time")
    return found


_SETTABLE: Final[dict[str, Callable[[str, object], object]]] = {
    "MessageId": _identifier,
    "To": _text,
    "Label": _text,
    "ReplyTo": _text,
    "CorrelationId": _text,
    "ContentType": _ascii,
    "SessionId": _identifier,
    "ReplyToSessionId": _identifier,
    "TimeToLive": _time_to_live,
    "PartitionKey": _identifier,
    "ViaPartitionKey": _identifier,
    "ScheduledEnqueueTimeUtc": _moment,
}


# -- writing the changes into a message -------------------------------------------------------


def apply_changes(parts: Parts, changes: PropertyChanges) -> Parts:
    """New parts; the old ones stay valid for other subscriptions. Checked values cannot fail."""
    system = changes.system
    if "TimeToLive" in system:
        parts = replace(parts, ttl_ms=_ttl_ms(system["TimeToLive"]))
    if not system.keys().isdisjoint(ANNOTATIONS):
        parts = _with_annotations(parts, system)
    fields = [(FIELDS[name], value) for name, value in system.items() if name in FIELDS]
    if fields:
        parts = _with_bare(parts, _with_fields(parts, fields))
    if changes.user_set or (changes.user_removed and parts.application_properties is not None):
        bare = with_application_properties(
            parts.bare, parts.application_properties, changes.user_set, changes.user_removed
        )
        parts = _with_bare(parts, bare)
    return parts


def _with_bare(parts: Parts, bare: bytes) -> Parts:
    found = slice_message(bare)
    return replace(
        parts,
        bare=bare,
        properties=found.properties,
        application_properties=found.application_properties,
    )


def _ttl_ms(value: Any) -> int | None:
    if value is None:
        return None
    milliseconds = value // timedelta(milliseconds=1)
    return None if milliseconds > HEADER_TTL_MS_MAX else max(1, milliseconds)


def _with_annotations(parts: Parts, system: dict[str, Any]) -> Parts:
    changed = {key: system[name] for name, key in ANNOTATIONS.items() if name in system}
    raw, count = without_keys(parts.annotations, frozenset(key.encode() for key in changed))
    for key, value in changed.items():
        if value is not None:
            value = Timestamp(to_ms(value)) if isinstance(value, datetime) else value
            raw, count = raw + encode(Symbol(key)) + encode(value), count + 1
    return replace(parts, annotations=raw, annotation_count=count)


def _with_fields(parts: Parts, fields: list[tuple[int, Any]]) -> bytes:
    start, end = parts.properties or (0, 0)
    section = parts.bare[start:end]  # a copy without the body, which may be large
    for index, value in fields:
        span = (0, len(section)) if section else None
        kind = Symbol if index == FIELDS["ContentType"] else str
        section = with_property(
            section, span, index, _NULL if value is None else encode(kind(value))
        )
    return b"".join((parts.bare[:start], section, parts.bare[end:]))
