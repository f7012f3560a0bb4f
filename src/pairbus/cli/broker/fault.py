"""`pairbus fault`: makes a local broker fail, on demand.

The kinds of faults and their settings are those of `broker/faults`. A fault is checked here before
it is sent, so a usage error costs no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import Any, Final

from pairbus.broker.faults.fault_json import script_from_json, to_json
from pairbus.broker.faults.kinds import KINDS, Fault, Mode, Unreachable
from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.output import did_you_mean, make_table, print_json, print_rows, print_table
from pairbus.cli.parse import parse_duration
from pairbus.cli.shared_options import (
    AS_JSON,
    ConnectionOptions,
    argument,
    command_group,
    flatten_options,
    option,
    option_group,
)
from pairbus.errors import ConfigError, UsageError
from pairbus.json_style import camel_case

_DURATIONS: Final = {
    "duration": "seconds",
    "latency": "latency_seconds",
    "delay": "delay_seconds",
    "offset": "offset_seconds",
}
"""Options that are durations, and the settings that they stand for."""
_OPTIONS: Final = {setting: name for name, setting in _DURATIONS.items()}
_NO_FAULTS: Final = "no faults are active or planned"
_OTHER_COLUMNS: Final = frozenset(
    ("id", "kind", "entity", "state", "startsAt", "endsAt", "hits", "seconds", "seed")
)

app = command_group(
    "fault",
    "Make a local broker fail as a datacenter does: throttle, hang, restart, lose its disk.\n\n"
    "The policy of the connection string needs Manage. If it has the well-known key, start the "
    "broker with --allow-faults.\n\n"
    "Exit codes: 0 success, 1 the broker refused or did not answer, 2 usage error, 130 "
    "interrupted.\n\n"
    "\b\n"
    "Examples:\n"
    "  pairbus fault add throttle --entity orders --rate 0.2 --duration 30s\n"
    "  pairbus fault clear",
)


@option_group
class FaultSettings:
    entity: str | None = option(
        "PATH", "Entity that the fault hits (default: the whole namespace)."
    )
    duration: str | None = option(
        "DURATION",
        "How long the fault lasts, unless you clear it before (default: 10m; a restart: 5s).",
    )
    seed: int | None = option("N", "Seed: the same seed makes the same choices.")
    rate: float | None = option("0..1", "Share of the requests that succeed.")
    probability: float | None = option("0..1", "Share of the requests that are hit.")
    times: int | None = option("N", "The fault ends after this number of hits.")
    on: list[str] | None = option("OPERATION", "Operation that is hit; repeat it for several.")
    condition: str | None = option("NAME", "Condition of the AMQP error.")
    description: str | None = option("TEXT", "Text of the AMQP error.")
    mode: str | None = option("refuse|drop", "Refuse connections, or accept and ignore them.")
    latency: str | None = option("DURATION", "Mean latency, such as 200ms.")
    distribution: str | None = option(
        "NAME", "Distribution of the latency: constant, uniform or exponential."
    )
    bytes_per_second: float | None = option("N", "Bandwidth of each connection.")
    delay: str | None = option("DURATION", "How long messages stay invisible.")
    offset: str | None = option("DURATION", "How far the clock jumps forward; -90s jumps back.")

    def given(self) -> dict[str, Any]:
        """Returns the settings of a fault, by their names in Python. Raises UsageError."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        return {
            _DURATIONS.get(name, name): _seconds(value, name) if name in _DURATIONS else value
            for name, value in values.items()
        }


def _seconds(text: str, name: str) -> float:
    sign = -1 if name == "offset" and text.startswith("-") else 1
    return sign * parse_duration(text[1:] if sign < 0 else text, f"--{name}").total_seconds()


# -- commands -----------------------------------------------------------------------------------


@app.command("list")
@flatten_options
def list_(connection: ConnectionOptions, as_json: bool = AS_JSON) -> None:
    """List the faults that are active or planned.

    \b
    Example:
      pairbus fault list
    """
    _print_faults(FaultClient(connection.target).all(), as_json=as_json)


@app.command()
def kinds(as_json: bool = AS_JSON) -> None:
    """List the kinds of faults, and their settings.

    \b
    Example:
      pairbus fault kinds
    """
    if as_json:
        print_json(
            {
                name: [camel_case(field.name) for field in fields(kind)]
                for name, kind in KINDS.items()
            }
        )
        return
    table = make_table("kind", "options", "description")
    for name, kind in KINDS.items():
        own = [each for each in fields(kind) if each.name not in ("entity", "seconds", "seed")]
        common = ["--entity"] if kind.is_for_entities else []
        options = [*common, "--duration", *map(_option_with_default, own)]
        table.add_row(name, " ".join(options), " ".join((kind.__doc__ or "").split()))
    print_table(table)


@app.command()
@flatten_options
def add(
    kind: str = argument("KIND", "Kind of fault; see `pairbus fault kinds`."),
    *,
    settings: FaultSettings,
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Start a fault, for the namespace or for one entity.

    \b
    Examples:
      pairbus fault add throttle --entity orders --rate 0.2 --duration 30s
      pairbus fault add cut_after_accept --probability 0.1 --seed 7
      pairbus fault add unreachable --duration 1m
    """
    fault = make_fault(kind, settings.given())
    started = FaultClient(connection.target).add(to_json(fault))
    if as_json:
        print_json(started)
    else:
        print(f"fault {started['id']} is {started['state']}: {_summary(started)}")


@app.command()
@flatten_options
def script(
    file: Path = argument("FILE", "JSON: a list of faults; `at` is the second when each starts."),
    *,
    connection: ConnectionOptions,
    seed: int | None = option("N", "Seed: the same seed makes the same choices."),
    as_json: bool = AS_JSON,
) -> None:
    """Start faults on a timeline.

    The file contains faults in the form of `pairbus fault list --json`, each with its time:

    \b
      [{"at": 0, "kind": "throttle", "rate": 0.2, "seconds": 30},
       {"at": 60, "kind": "restart"}]

    \b
    Example:
      pairbus fault script outage.json --seed 7
    """
    body = read_script(file, seed=seed)
    _print_faults(FaultClient(connection.target).run(body), as_json=as_json)


@app.command()
@flatten_options
def clear(
    connection: ConnectionOptions,
    numbers: list[int] | None = argument(
        "NUMBER", "Ids from `pairbus fault list` (default: all faults).", default=None
    ),
    as_json: bool = AS_JSON,
) -> None:
    """End faults now.

    \b
    Examples:
      pairbus fault clear
      pairbus fault clear 3 4
    """
    client = FaultClient(connection.target)
    for number in numbers or ():
        client.clear(number)
        if not as_json:
            print(f"fault {number} cleared")
    if not numbers:
        text = "all faults cleared" if client.all() else _NO_FAULTS
        client.clear_all()
        if not as_json:
            print(text)
    if as_json:
        print_json({"cleared": numbers or "all"})


# -- checks -------------------------------------------------------------------------------------


def make_fault(kind: str, given: Mapping[str, Any]) -> Fault:
    """Raises UsageError."""
    name = kind.lower().replace("-", "_")  # also `cannot-send`, like an option
    if name not in KINDS:
        hint = did_you_mean(name, KINDS) or f"; the kinds are {', '.join(KINDS)}"
        raise UsageError(f"{kind!r} is not a kind of fault{hint}")
    settings = [field.name for field in fields(KINDS[name])]
    for setting in given:
        if setting not in settings:
            options = ", ".join(map(_option_name, settings))
            raise UsageError(f"{name} has no option {_option_name(setting)}; it has {options}")
    try:
        fault = KINDS[name](**given)
    except ConfigError as error:
        raise UsageError(_with_option_names(str(error), settings)) from error
    _check_recoverable([fault])
    return fault


def _with_option_names(text: str, settings: Iterable[str]) -> str:
    """Of the settings of one word, only the one that is wrong: they may be ordinary words, too."""
    for setting in settings:
        pattern = rf"\b{setting}\b" if "_" in setting else f"(?<=: ){setting}(?= is )"
        text = re.sub(pattern, _option_name(setting), text)
    return text


def read_script(file: Path, *, seed: int | None) -> dict[str, Any]:
    """The file is a list of faults, or the whole body of a request. Raises UsageError."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file}: not JSON: {error}") from error
    body = content if isinstance(content, dict) else {"script": content}
    if seed is not None:
        body["seed"] = seed
    try:
        _check_recoverable(fault for _, fault in script_from_json(body.get("script")))
    except (ConfigError, UsageError) as error:
        raise UsageError(f"{file}: {error}") from error
    return body


def _check_recoverable(faults: Iterable[object]) -> None:
    for fault in faults:
        if (
            isinstance(fault, Unreachable)
            and fault.mode is Mode.REFUSE
            and fault.entity is None
            and fault.seconds is None
        ):
            raise UsageError(
                "unreachable closes the port, so it cannot be cleared from outside; set --duration "
                '(in a script, "seconds")'
            )


# -- output -------------------------------------------------------------------------------------


def _print_faults(faults: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(faults)
        return
    table = make_table("id", "kind", "entity", "state", "until", "settings", right=("hits",))
    for fault in faults:
        table.add_row(
            str(fault["id"]),
            fault["kind"],
            fault.get("entity") or "(all)",
            fault["state"] if fault["state"] == "active" else f"from {fault['startsAt']}",
            fault["endsAt"] or "cleared",
            _settings_text(fault),
            f"{fault['hits']:,}",
        )
    print_rows(table, if_empty=_NO_FAULTS)


def _summary(fault: Mapping[str, Any]) -> str:
    entity = f"on {fault.get('entity') or 'all entities'}"
    words = [fault["kind"], entity, _settings_text(fault)]
    return f"{' '.join(filter(None, words))}, until {fault['endsAt'] or 'it is cleared'}"


def _settings_text(fault: Mapping[str, Any]) -> str:
    own = {name: value for name, value in fault.items() if name not in _OTHER_COLUMNS}
    return " ".join(f"{_kebab(name)}={_text(value)}" for name, value in own.items())


def _option_with_default(field: Field[Any]) -> str:
    name = _option_name(field.name)
    if field.default is MISSING or field.default is None:
        return name
    unit = "s" if field.name in _OPTIONS else ""
    return f"{name} ({_text(field.default)}{unit})"


def _option_name(setting: str) -> str:
    return f"--{_OPTIONS.get(setting) or _kebab(setting)}"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"  # without an exponent
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _kebab(name: str) -> str:
    """`latency_seconds` and `latencySeconds` are `latency-seconds`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower().replace("_", "-")
