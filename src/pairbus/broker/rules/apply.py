"""Changes of an action, written into the bytes of a message; all other bytes stay as they came.

Only the properties and application-properties sections are taken apart, never the body: a large
message costs one copy. What is in `Changes` has been checked when it was made, so this cannot fail.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pairbus.amqp.codec.sections import APPLICATION_PROPERTIES, Parts, section_values
from pairbus.amqp.codec.stamp import with_property, without_keys
from pairbus.amqp.codec.types import Symbol, Timestamp
from pairbus.amqp.codec.values import encode, encode_map
from pairbus.broker.rules.actions import Changes
from pairbus.broker.rules.facts import ANNOTATIONS, FIELDS
from pairbus.broker.rules.plain import to_ms

_UINT_MAX: Final = 2**32 - 1
_NULL: Final = encode(None)


def apply_changes(parts: Parts, changes: Changes) -> Parts:
    """New parts; the old ones stay valid, other subscriptions have their own copy to make."""
    system = changes.system
    if "TimeToLive" in system:
        parts = replace(parts, ttl_ms=_ttl_ms(system["TimeToLive"]))
    if not system.keys().isdisjoint(ANNOTATIONS):
        parts = _with_annotations(parts, system)
    fields = [(FIELDS[name], value) for name, value in system.items() if name in FIELDS]
    if fields:
        parts = _with_fields(parts, fields)
    if changes.user_set or changes.user_removed:
        parts = _with_user_properties(parts, changes)
    return parts


def _ttl_ms(value: Any) -> int | None:
    if value is None:
        return None
    milliseconds = value // timedelta(milliseconds=1)
    return None if milliseconds > _UINT_MAX else max(1, milliseconds)


def _with_annotations(parts: Parts, system: dict[str, Any]) -> Parts:
    changed = {key: system[name] for name, key in ANNOTATIONS.items() if name in system}
    raw, count = without_keys(parts.annotations, frozenset(key.encode() for key in changed))
    for key, value in changed.items():
        if value is not None:
            value = Timestamp(to_ms(value)) if isinstance(value, datetime) else value
            raw, count = raw + encode(Symbol(key)) + encode(value), count + 1
    return replace(parts, annotations=raw, annotation_count=count)


def _with_fields(parts: Parts, fields: list[tuple[int, Any]]) -> Parts:
    start, end = parts.properties or (0, 0)
    section = parts.bare[start:end]
    for index, value in fields:
        span = (0, len(section)) if section else None
        encoded = _NULL if value is None else encode(_field_type(index)(value))
        section = with_property(section, span, index, encoded)
    return _with_section(parts, start, end, section, is_properties=True)


def _field_type(index: int) -> type[str]:
    return Symbol if index == FIELDS["ContentType"] else str


def _with_user_properties(parts: Parts, changes: Changes) -> Parts:
    span = parts.application_properties
    if span is None:
        if not changes.user_set:
            return parts
        # In the place that the standard gives it: behind the properties, if they come first.
        at = parts.properties[1] if parts.properties and not parts.properties[0] else 0
        start, end, pairs = at, at, b""
    else:
        start, end = span
        pairs = parts.bare[section_values(parts.bare, start, end)[0] : end]
    gone = changes.user_removed.union(changes.user_set)
    pairs, count = without_keys(pairs, frozenset(name.encode() for name in gone))
    for name, value in changes.user_set.items():
        pairs, count = pairs + encode(name) + encode(value), count + 1
    section = bytes((0x00, 0x53, APPLICATION_PROPERTIES)) + encode_map(pairs, count)
    return _with_section(parts, start, end, section, is_properties=False)


def _with_section(
    parts: Parts, start: int, end: int, section: bytes, *, is_properties: bool
) -> Parts:
    """`section` instead of bare[start:end]; whatever lies behind moves."""
    grown = len(section) - (end - start)
    bare = b"".join((parts.bare[:start], section, parts.bare[end:]))
    here = (start, start + len(section))
    other = parts.application_properties if is_properties else parts.properties
    if other is not None and other[0] >= end:
        other = (other[0] + grown, other[1] + grown)
    if is_properties:
        return replace(parts, bare=bare, properties=here, application_properties=other)
    return replace(parts, bare=bare, properties=other, application_properties=here)
