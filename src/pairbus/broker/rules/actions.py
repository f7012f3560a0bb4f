"""SQL actions: what SET and REMOVE make of a message, as changes that are applied to its bytes.

Statements run in order, each on what the ones before have left. The message itself is not touched:
an action works on a draft, and several rules may look at the same Facts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pairbus.broker.rules import nodes
from pairbus.broker.rules.closures import Value, property_name
from pairbus.broker.rules.compile import Compiler
from pairbus.broker.rules.errors import EvaluationError
from pairbus.broker.rules.facts import SYSTEM_NAMES, Facts
from pairbus.broker.rules.filters import SqlAction
from pairbus.broker.rules.plain import wire
from pairbus.broker.rules.values import as_type_of, duration, moment, text

ID_CHARACTERS_MAX: Final = 128


@dataclass(slots=True)
class Changes:
    """What an action wants: system properties by name, application properties as they are spelled.

    Those of `user_removed` go first, then those of `user_set` come. Values have AMQP types where it
    matters; a system property that is None is cleared.
    """

    system: dict[str, object | None] = field(default_factory=dict)
    user_set: dict[str, object] = field(default_factory=dict)
    user_removed: set[str] = field(default_factory=set)


Step = Callable[[Facts, Changes], None]


def compile_action(action: SqlAction) -> Callable[[Facts], Changes]:
    """Raises RuleError; what it returns raises EvaluationError, and leaves the facts alone."""
    compiler = Compiler(action.expression, action.parameters)
    from pairbus.broker.rules.parse import parse_action  # as late as in filters.py

    steps = [_step(compiler, statement) for statement in parse_action(action.expression)]

    def act(facts: Facts) -> Changes:
        draft, changes = facts.draft(), Changes()
        for step in steps:
            step(draft, changes)
        return changes

    return act


def _step(compiler: Compiler, statement: nodes.Statement) -> Step:
    target = statement.property
    match statement:
        case nodes.Assign(value=value) if target.is_system:
            canonical = SYSTEM_NAMES.get(target.name.lower())
            convert = None if canonical is None else _SETTABLE.get(canonical)
            if canonical is None or convert is None:
                reason = "is read-only" if canonical else "does not exist"
                may = ", ".join(_SETTABLE)
                raise compiler.refused(
                    target.at, f"sys.{target.name} {reason}, an action may set {may}"
                )
            return _set_system(canonical, convert, compiler.value(value))
        case nodes.Assign(value=value):
            return _set_user(target.name, _wire_value(compiler, value))
        case nodes.Remove() if target.is_system:
            reason = f"system properties cannot be removed: SET sys.{target.name} = NULL clears it"
            raise compiler.refused(target.at, reason)
        case nodes.Remove():
            return _remove_user(target.name)


def _wire_value(compiler: Compiler, node: nodes.Expression) -> Value:
    """What is only copied keeps its AMQP type, also one that rules cannot compute with."""
    if isinstance(node, nodes.Property) and not node.is_system:
        lower = node.name.lower()
        return lambda draft: draft.app.wire.get(lower)
    if isinstance(node, nodes.Lookup):
        read = compiler.value(node.name)

        def look_up(draft: Facts) -> Any:
            name = read(draft)
            return None if name is None else draft.app.wire.get(property_name(name))

        return look_up
    return compiler.value(node)


def _set_user(name: str, read: Value) -> Step:
    lower = name.lower()

    def step(draft: Facts, changes: Changes) -> None:
        app = draft.app
        value = read(draft)
        existing = app.wire.get(lower)
        if existing is not None:
            value = as_type_of(existing, value)
        try:
            value = wire(value)
        except OverflowError as error:
            raise EvaluationError(f"SET {name}: {error}") from error
        spelled = app.spelling.get(lower, name)
        app.put(lower, spelled, value)
        changes.user_set[spelled] = value

    return step


def _remove_user(name: str) -> Step:
    lower = name.lower()

    def step(draft: Facts, changes: Changes) -> None:
        app = draft.app
        if lower in app:
            spelled = app.spelling.pop(lower)
            del app[lower], app.wire[lower]
            changes.user_set.pop(spelled, None)
            changes.user_removed.add(spelled)

    return step


def _set_system(name: str, convert: Callable[[str, object], object], read: Value) -> Step:
    def step(draft: Facts, changes: Changes) -> None:
        value = read(draft)
        if value is not None:
            value = convert(name, value)
        draft.own[name] = changes.system[name] = value

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
