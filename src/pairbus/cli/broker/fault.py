"""`pairbus fault`: what a person types to make a broker fail as a datacenter does.

Which faults there are, and what may be said of them, is `broker/faults`' business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.options import AS_JSON, CA_FILE, CONNECTION_STRING, command_group
from pairbus.cli.target import parse_target

app = command_group(
    "fault",
    "Make a local broker fail as a datacenter does: throttle, hang, restart, lose its disk.\n\n"
    "The broker is that of --connection-string, or of PAIRBUS_PRIMARY in the environment; its "
    "policy needs Manage. Ends with 0 if all went well, 1 if the broker refused or did not "
    "answer, and 2 if the words are wrong.",
)


def _number(help: str, metavar: str = "NUMBER") -> Any:
    return typer.Option(metavar=metavar, help=help, show_default=False)


@app.command("list")
def list_(
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """List the faults that are active or planned.

    \b
    Example:
      pairbus fault list
    """
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.broker.fault_work import show_list

    show_list(target, as_json=as_json)


@app.command()
def kinds(as_json: AS_JSON = False) -> None:
    """Show what kinds of faults there are, and their settings.

    \b
    Example:
      pairbus fault kinds
    """
    from pairbus.cli.broker.fault_work import show_kinds

    show_kinds(as_json=as_json)


@app.command()
def add(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="What goes wrong; see `pairbus fault kinds`.")
    ],
    entity: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Whom it hits; all, unless given.", show_default=False),
    ] = None,
    seconds: Annotated[float | None, _number("For how long; until it is cleared.")] = None,
    seed: Annotated[int | None, _number("The same choices with the same seed.")] = None,
    rate: Annotated[float | None, _number("The share that gets through.", "0..1")] = None,
    probability: Annotated[float | None, _number("The share that is hit.", "0..1")] = None,
    times: Annotated[int | None, _number("Over after so many hits.")] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATION", help="What it hits; may be repeated."),
    ] = None,
    condition: Annotated[
        str | None, typer.Option(metavar="NAME", help="The AMQP error.", show_default=False)
    ] = None,
    description: Annotated[
        str | None, typer.Option(metavar="TEXT", help="And its text.", show_default=False)
    ] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="refuse|drop", help="How.", show_default=False)
    ] = None,
    latency_seconds: Annotated[float | None, _number("On average.")] = None,
    distribution: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="constant, uniform or exponential.", show_default=False),
    ] = None,
    bytes_per_second: Annotated[float | None, _number("Of each connection.")] = None,
    delay_seconds: Annotated[float | None, _number("Until messages appear.")] = None,
    offset_seconds: Annotated[float | None, _number("Forward, or back if negative.")] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Start a fault, for the namespace or for one entity.

    \b
    Examples:
      pairbus fault add throttle --entity orders --rate 0.2 --seconds 30
      pairbus fault add cut-after-accept --probability 0.1 --seed 7
      pairbus fault add unreachable --seconds 60
    """
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    for name in ("kind", "connection_string", "ca_file", "as_json"):
        given.pop(name, None)
    from pairbus.cli.broker import fault_work

    fault = fault_work.described(kind, given)
    fault_work.add(parse_target(connection_string, ca_file), fault, as_json=as_json)


@app.command()
def script(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON: a list of faults, each with the second `at`."),
    ],
    seed: Annotated[int | None, _number("The same choices with the same seed.")] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Start faults on a timeline.

    \b
    The file has a fault as `pairbus fault list --json` shows it, with its time, for each:
      [{"at": 0, "kind": "throttle", "rate": 0.2, "seconds": 30},
       {"at": 60, "kind": "restart"}]

    \b
    Example:
      pairbus fault script outage.json --seed 7
    """
    from pairbus.cli.broker import fault_work

    body = fault_work.read_script(file, seed=seed)
    fault_work.run(parse_target(connection_string, ca_file), body, as_json=as_json)


@app.command()
def clear(
    numbers: Annotated[
        list[int] | None,
        typer.Argument(metavar="NUMBERS", help="As `list` shows them; all, unless given."),
    ] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """End faults now.

    \b
    Examples:
      pairbus fault clear
      pairbus fault clear 3 4
    """
    target = parse_target(connection_string, ca_file)
    from pairbus.cli.broker import fault_work

    fault_work.clear(target, numbers or [], as_json=as_json)
