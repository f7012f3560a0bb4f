"""Descriptions as the data file keeps them: JSON with ISO 8601 durations, only what is not default.

A later version may add settings: a setting that an old file lacks has its default, and an unknown
one is an error, because a broker that ignores a setting would not do what its user expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pairbus.broker.entities.descriptions import (
    EntityDescription,
    QueueDescription,
    RuleDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entities.durations import format_duration, parse_duration
from pairbus.broker.entities.policies import Policy, Right
from pairbus.broker.rules import (
    CorrelationFilter,
    FalseFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from pairbus.errors import DataFileError

FIXED: Final = ("requires_session", "requires_duplicate_detection", "enable_partitioning")
"""Settings that cannot be changed once the entity exists."""

_KINDS: Final[dict[str, type[EntityDescription]]] = {
    kind.noun: kind for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}
_FILTERS: Final = {kind.__name__: kind for kind in (TrueFilter, FalseFilter, SqlFilter)} | {
    CorrelationFilter.__name__: CorrelationFilter
}


def bare_description(description: EntityDescription) -> EntityDescription:
    """The description with the same name and nothing but defaults."""
    return type(description)(name=description.name)


def to_stored(description: EntityDescription) -> dict[str, Any]:
    default = bare_description(description)
    stored: dict[str, Any] = {}
    for field in fields(description):
        value = getattr(description, field.name)
        if field.name != "name" and value != getattr(default, field.name):
            stored[field.name] = _WRITERS.get(field.name, _plain)(value)
    return stored


def from_stored(kind: str, name: str, stored: dict[str, Any]) -> EntityDescription:
    try:
        described = _KINDS[kind]
        default = described(name=name)
        settings: dict[str, Any] = {}
        for key, value in stored.items():
            if isinstance(getattr(default, key), timedelta):
                settings[key] = parse_duration(value)
            else:
                settings[key] = _READERS.get(key, _plain)(value)
        return described(name=name, **settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataFileError(
            f"the data file has a description of {kind} {name!r} that this version of pairbus "
            f"cannot read: {error}"
        ) from error


def changed_fixed_setting(old: EntityDescription, new: EntityDescription) -> str | None:
    """The first fixed setting that differs, if any."""
    return next((name for name in FIXED if getattr(old, name) != getattr(new, name)), None)


# -- values -----------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    return format_duration(value) if isinstance(value, timedelta) else value


def _write_rules(rules: tuple[RuleDescription, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": rule.name,
            "created_ms": rule.created_ms,
            "filter": {"kind": type(rule.filter).__name__, **_tagged(asdict(rule.filter))},
            "action": None if rule.action is None else _tagged(asdict(rule.action)),
        }
        for rule in rules
    ]


def _read_rules(stored: list[dict[str, Any]]) -> tuple[RuleDescription, ...]:
    rules = []
    for one in stored:
        settings = _untagged(one["filter"])
        kind = _FILTERS[settings.pop("kind")]
        action = one["action"]
        rules.append(
            RuleDescription(
                name=one["name"],
                filter=kind(**settings),
                action=None if action is None else SqlAction(**_untagged(action)),
                created_ms=one["created_ms"],
                is_checked=True,
            )
        )
    return tuple(rules)


def _tagged(value: Any) -> Any:
    """JSON has no times, durations and UUIDs, but rules compare with them."""
    if isinstance(value, Mapping):
        tagged = {key: _tagged(inner) for key, inner in value.items()}
        # Names are the user's: a map that looks like a tagged value gets a tag of its own.
        return {_MAP: tagged} if len(tagged) == 1 and {_MAP, *_TAGS} & tagged.keys() else tagged
    for tag, (kind, write, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    return value


def _untagged(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag in _TAGS:
            return _TAGS[tag][2](inner)
        if tag == _MAP:
            value = inner
    return {key: _untagged(inner) for key, inner in value.items()}


_MAP: Final = "$map"
_MICROSECOND: Final = timedelta(microseconds=1)
_TAGS: Final[dict[str, tuple[type, Any, Any]]] = {
    "$time": (datetime, datetime.isoformat, datetime.fromisoformat),
    # Whole numbers: seconds as a float are not exact for long durations.
    "$duration": (timedelta, lambda span: span // _MICROSECOND, lambda count: count * _MICROSECOND),
    "$uuid": (UUID, str, UUID),
    "$bytes": (bytes, bytes.hex, bytes.fromhex),
    "$decimal": (Decimal, str, Decimal),
}


def _write_policies(policies: tuple[Policy, ...]) -> list[dict[str, Any]]:
    return [asdict(policy) | {"rights": sorted(policy.rights)} for policy in policies]


def _read_policies(stored: list[dict[str, Any]]) -> tuple[Policy, ...]:
    return tuple(
        Policy(**(one | {"rights": frozenset(map(Right, one["rights"]))})) for one in stored
    )


_WRITERS: Final[dict[str, Any]] = {
    "rules": _write_rules,
    "authorization_rules": _write_policies,
}
_READERS: Final[dict[str, Any]] = {
    "rules": _read_rules,
    "authorization_rules": _read_policies,
    "status": Status,
}
