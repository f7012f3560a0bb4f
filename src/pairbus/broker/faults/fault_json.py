"""Faults as JSON, both ways: what `/$faults` accepts and what it lists.

Pure. A fault is an object with its `kind` and its settings. A listed one also has its number, its
state and its times. Errors show the correct form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from pairbus.broker.faults.kinds import KINDS, Fault
from pairbus.broker.faults.schedule import RunningFault
from pairbus.errors import ConfigError
from pairbus.json_style import camel_case, utc_text

_AT: Final = "at"


def to_json(fault: Fault) -> dict[str, Any]:
    settings = {camel_case(each.name): getattr(fault, each.name) for each in fields(fault)}
    given = {name: _plain(value) for name, value in settings.items() if value is not None}
    return {"kind": fault.kind, **given}


def from_json(value: object) -> Fault:
    """Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"a fault is a JSON object with its kind, not {_shown(value)}")
    name = value.get("kind")
    # Also `cannot-send`, like an option.
    kind = KINDS.get(name.replace("-", "_")) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"kind is {_shown(name)}, but must be one of {', '.join(KINDS)}")
    known = {camel_case(each.name): each.name for each in fields(kind)}
    settings = {}
    for key, given in value.items():
        if key in known:
            settings[known[key]] = given
        elif key != "kind":
            raise ConfigError(f"{name} has no setting {_shown(key)}; it has {', '.join(known)}")
    try:
        return kind(**settings)
    except ConfigError as error:
        raise ConfigError(_in_json_names(str(error), known.values())) from error


def script_from_json(value: object) -> list[tuple[float, Fault]]:
    """A list of faults, each with its start in seconds as `at`. Raises ConfigError."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"a script is a JSON list of faults, not {_shown(value)}")
    entries: list[tuple[float, Fault]] = []
    for number, each in enumerate(value):
        if not isinstance(each, Mapping) or _AT not in each:
            raise ConfigError(f"entry {number} of the script needs {_AT!r}: when it starts")
        at = each[_AT]
        if not isinstance(at, int | float) or isinstance(at, bool):
            raise ConfigError(f"entry {number} of the script: {_AT!r} is {_shown(at)}, not seconds")
        fault = from_json({key: given for key, given in each.items() if key != _AT})
        entries.append((at, fault))
    return entries


def running_to_json(running: RunningFault) -> dict[str, Any]:
    """As it is listed. The seed is the one in use, so that a run can be repeated."""
    return {
        "id": running.id,
        **to_json(running.fault),
        "seed": running.seed,
        "state": running.state,
        "startsAt": utc_text(running.starts_at),
        "endsAt": None if running.ends_at is None else utc_text(running.ends_at),
        "hits": running.hits,
    }


def _in_json_names(text: str, names: Iterable[str]) -> str:
    for name in names:
        text = re.sub(rf"\b{name}\b", camel_case(name), text)
    return text


def _plain(value: Any) -> Any:
    """Members of an enumeration as plain text."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
