"""What `pairbus fault` does once its words are understood.

A fault is checked here already, by the broker's own descriptions: a mistake costs no request, and
is told in the words of the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final

from pairbus.broker.faults.fault_json import script_from_json, to_json
from pairbus.broker.faults.kinds import KINDS, Mode, Unreachable
from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.output import make_table, print_json, print_table
from pairbus.cli.target import Target
from pairbus.errors import ConfigError, UsageError

_SHOWN_ELSEWHERE: Final = frozenset(
    ("id", "kind", "entity", "state", "startsAt", "endsAt", "hits", "seconds", "seed")
)


def described(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A fault as JSON. Raises UsageError."""
    name = kind.lower().replace("-", "_")
    if name not in KINDS:
        raise UsageError(f"{kind!r} is no fault; there are {', '.join(map(_word, KINDS))}")
    known = [field.name for field in fields(KINDS[name])]
    for setting in given:
        if setting not in known:
            options = ", ".join(f"--{_word(one)}" for one in known)
            raise UsageError(f"{_word(name)} has no --{_word(setting)}; it has {options}")
    fault = KINDS[name](**given)
    _check_way_back([fault])
    return to_json(fault)


def read_script(file: Path, *, seed: int | None) -> dict[str, Any]:
    """The file may be a list, or the whole of what `/$faults` takes. Raises UsageError."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file}: not JSON: {error}") from error
    body = content if isinstance(content, dict) else {"script": content}
    if seed is not None:
        body["seed"] = seed
    try:
        _check_way_back(fault for _, fault in script_from_json(body.get("script")))
    except (ConfigError, UsageError) as error:
        raise UsageError(f"{file}: {error}") from error
    return body


def _check_way_back(faults: Iterable[object]) -> None:
    for fault in faults:
        if (
            isinstance(fault, Unreachable)
            and fault.mode is Mode.REFUSE
            and fault.entity is None
            and fault.seconds is None
        ):
            raise UsageError(
                "unreachable closes the port, and nobody could come in to clear it: "
                "say for how many seconds"
            )


def show_list(target: Target, *, as_json: bool) -> None:
    _show(FaultClient(target).all(), as_json=as_json)


def add(target: Target, fault: dict[str, Any], *, as_json: bool) -> None:
    started = FaultClient(target).add(fault)
    if as_json:
        print_json(started)
    else:
        print(f"fault {started['id']} is {started['state']}: {_sentence(started)}")


def run(target: Target, script: dict[str, Any], *, as_json: bool) -> None:
    _show(FaultClient(target).run(script), as_json=as_json)


def clear(target: Target, numbers: list[int], *, as_json: bool) -> None:
    client = FaultClient(target)
    if not numbers:
        client.clear_all()
    for number in numbers:
        client.clear(number)
        if not as_json:
            print(f"fault {number} cleared")
    if as_json:
        print_json({"cleared": numbers or "all"})
    elif not numbers:
        print("all faults cleared")


def show_kinds(*, as_json: bool) -> None:
    if as_json:
        print_json({name: [field.name for field in fields(kind)] for name, kind in KINDS.items()})
        return
    table = make_table("Kind", "Settings", "What happens")
    for name, kind in KINDS.items():
        own = [f for f in fields(kind) if f.name not in ("entity", "seconds", "seed")]
        common = ["--entity"] if kind.is_for_entities else []
        settings = [*common, "--seconds", *map(_option, own)]
        text = (kind.__doc__ or "").strip()
        what = "" if text.startswith(f"{kind.__name__}(") else " ".join(text.split())
        table.add_row(_word(name), " ".join(settings), what)
    print_table(table)


def _option(field: Field[Any]) -> str:
    option = f"--{_word(field.name)}"
    if field.default is MISSING or field.default is None:
        return option
    return f"{option} ({_text(field.default)})"


def _show(faults: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(faults)
        return
    table = make_table("Id", "Kind", "Entity", "State", "Until", "Settings", right=("Hits",))
    for fault in faults:
        table.add_row(
            str(fault["id"]),
            _word(fault["kind"]),
            fault.get("entity") or "(all)",
            fault["state"] if fault["state"] == "active" else f"from {fault['startsAt']}",
            fault["endsAt"] or "cleared",
            _settings(fault),
            str(fault["hits"]),
        )
    print_table(table)


def _sentence(fault: Mapping[str, Any]) -> str:
    words = [_word(fault["kind"]), f"of {fault.get('entity') or 'all'}", _settings(fault)]
    until = f"until {fault['endsAt'] or 'it is cleared'}"
    return ", ".join([" ".join(filter(None, words)), until])


def _settings(fault: Mapping[str, Any]) -> str:
    own = {name: value for name, value in fault.items() if name not in _SHOWN_ELSEWHERE}
    return " ".join(f"{_word(name)}={_text(value)}" for name, value in own.items())


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _word(name: str) -> str:
    """As it is typed: `latency_seconds` and `latencySeconds` are `latency-seconds`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower().replace("_", "-")
