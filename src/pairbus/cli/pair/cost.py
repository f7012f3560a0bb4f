"""`pairbus cost`: what a person types to learn what a pair of namespaces costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.options import AS_JSON
from pairbus.cost.usage import RANGES
from pairbus.errors import UsageError


def _number(name: str, help: str, metavar: str = "N") -> typer.models.OptionInfo:
    allowed = RANGES[name]
    option: typer.models.OptionInfo = typer.Option(
        min=allowed.least,
        max=allowed.most,
        metavar=metavar,
        help=help,
    )
    return option


def cost(
    context: typer.Context,
    backlog_queues: Annotated[int, _number("backlog_queues", "Backlog queues of the pair.")] = 10,
    syphons: Annotated[
        int, _number("syphons", "Syphons that run all the time. With 0, nothing comes home.")
    ] = 1,
    messages_per_day: Annotated[
        int, _number("messages_per_day", "Messages that the application sends in a day.")
    ] = 0,
    message_bytes: Annotated[
        int,
        _number("message_bytes", "How large one is, encoded. Each begun 64 KB is one.", "BYTES"),
    ] = 1024,
    outage_hours: Annotated[
        float,
        _number("outage_hours", "How long the primary is down in these days, in all.", "HOURS"),
    ] = 0,
    ping_interval: Annotated[
        float, _number("ping_seconds", "Between two pings of an entity.", "SECONDS")
    ] = 60,
    entities: Annotated[
        int, _number("entities", "Queues and topics that fail over, each pinged by each client.")
    ] = 1,
    clients: Annotated[int, _number("clients", "Paired clients.")] = 1,
    days: Annotated[int, _number("days", "For how many days.")] = 30,
    other_operations: Annotated[
        int,
        _number(
            "other_operations",
            "What else the Azure subscription uses in that time: it has the cheaper tiers first.",
        ),
    ] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Not from these numbers, but from what a syphon has done: the folder of "
            "`pairbus syphon --ledger`.",
            show_default=False,
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            envvar="PAIRBUS_PRICES",
            help="Your price list. Default: an example.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|FILE.png",
            help="Also draw the cost against hours of outage and number of backlog queues.",
            show_default=False,
        ),
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Estimate what a pair of namespaces costs: billed operations, and money by a price list.

    It also says what would make it cheaper. It connects to nothing.

    \b
    Examples:
      pairbus cost --backlog-queues 10
      pairbus cost --messages-per-day 1000000 --outage-hours 4 --entities 5 --clients 20
      pairbus cost --messages-per-day 1000000 --outage-hours 4 --plot cost.svg
      pairbus cost --ledger ./ledger --prices our-prices.toml --json
    """
    from pairbus.cli.pair.cost_work import run, run_ledger
    from pairbus.cost.usage import Usage

    if ledger is not None:
        _refuse_beside_ledger(context)
        run_ledger(
            ledger,
            prices=prices,
            syphons=syphons,
            other_operations=other_operations,
            as_json=as_json,
        )
        return
    usage = Usage(
        backlog_queues=backlog_queues,
        syphons=syphons,
        messages_per_day=messages_per_day,
        message_bytes=message_bytes,
        outage_hours=outage_hours,
        ping_seconds=ping_interval,
        entities=entities,
        clients=clients,
        days=days,
        other_operations=other_operations,
    )
    run(usage, prices=prices, plot=plot, as_json=as_json)


_BESIDE_LEDGER = ("ledger", "prices", "as_json", "other_operations", "syphons")


def _refuse_beside_ledger(context: typer.Context) -> None:
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _BESIDE_LEDGER and source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} and --ledger exclude each other: the ledger tells")
