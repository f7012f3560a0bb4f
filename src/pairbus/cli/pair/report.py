"""`pairbus report`: what a person types to see what a syphon has done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.options import AS_JSON


def report(
    ledger: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder that `pairbus syphon --ledger` has filled."),
    ],
    gap: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="MINUTES",
            help="Diverted messages of one destination that are further apart belong to two "
            "outages.",
        ),
    ] = 10,
    as_json: AS_JSON = False,
) -> None:
    """Report what a syphon's ledger holds: messages, waiting times, outages and operations.

    Reads the ledger on this machine and changes nothing. A syphon may write to it meanwhile.

    \b
    Examples:
      pairbus report --ledger ./ledger
      pairbus report --ledger ./ledger --json
    """
    from pairbus.cli.pair.report_work import run

    run(ledger, gap_minutes=gap, as_json=as_json)
